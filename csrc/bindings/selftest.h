// What the compiled core can check about itself without Python's help: the generator's published answers, and a
// deliberately schedule-dependent sum that shows the determinism tests can fail.
#pragma once

#include <cstdint>
#include <string>

namespace leakcore {

// Empty when all is well, else what is wrong.
std::string selftest();

// Sum in chunk-sized pieces: floating addition does not associate, so this one depends on the chunk, on purpose.
double chunk_dependent_sum(const double* x, int64_t count, int64_t chunk, int num_threads);

}  // namespace leakcore
