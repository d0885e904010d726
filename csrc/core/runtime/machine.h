// What the processor is like where sizes decide between two ways that give the same bits.
#pragma once

#include <cstdint>

namespace leakcore {

// Bytes of a core's second-level cache; 1 MiB where the system does not say.
int64_t second_level_cache();

}  // namespace leakcore
