// What this processor can do at best in one instruction tier: the loops that the benchmark divides by. They compute
// nothing that a kernel uses.
#pragma once

#include <cstdint>

namespace leakcore {

struct ProbeLoops {
  // Each does at least `count` of its operations on data in registers or L1 and returns something that depends on all.
  double (*fma_f64)(int64_t count);
  double (*fma_f32)(int64_t count);
  double (*exp_f64)(int64_t count);
  double (*exp_f32)(int64_t count);
  double (*philox_words)(int64_t count);
  // Reads every byte of `bytes` (a multiple of 256) once.
  uint64_t (*read)(const void* data, int64_t bytes);
};

const ProbeLoops& probe_loops_baseline();
#if LEAKCORE_X86_TIERS
const ProbeLoops& probe_loops_avx2();
const ProbeLoops& probe_loops_avx512();
#endif

}  // namespace leakcore
