// The inner loops of random rows, one table per instruction tier: the same words on every tier; normals equal to the
// bit where multiply-add is fused, else within tests/tolerances.py's bound.
#pragma once

#include <cstdint>

namespace leakcore {

constexpr int kRandomBlocks = 64;  // Philox blocks, four draws each, that a loop makes at a time

struct RandomLoops {
  // Draws 4·block … 4·(block + kRandomBlocks) − 1 of a sample.
  void (*normals)(uint64_t seed, uint32_t stream, uint64_t sample, uint32_t block, double* out);
  void (*uniforms)(uint64_t seed, uint32_t stream, uint64_t sample, uint32_t block, double* out);
};

const RandomLoops& random_loops_baseline();
#if LEAKCORE_X86_TIERS
const RandomLoops& random_loops_avx2();
const RandomLoops& random_loops_avx512();
#endif

}  // namespace leakcore
