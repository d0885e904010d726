// What the processor is like where two ways give the same bits and it decides which one is faster. No result depends on
// it.
#pragma once

#include <cstdint>

namespace leakcore {

// Bytes of a core's second-level cache; 1 MiB where the system does not say.
int64_t second_level_cache();

// Whether this is a core of Intel's, or the environment variable LEAKCORE_TUNED_FOR=intel|other, which tests set, says
// so; std::invalid_argument for another value.
bool intel();

}  // namespace leakcore
