// What the processor is like where two ways give the same bits and it decides which one is faster. No result depends on
// it.
#pragma once

#include <cstdint>

namespace leakcore {

// Bytes of a core's second-level cache; 1 MiB where the system does not say.
int64_t second_level_cache();

}  // namespace leakcore
