// Random allocation's inner loops over a block of samples, one table per instruction tier: the same random integers on
// every tier; ratios equal to the bit where multiply-add is fused, else within tests/tolerances.py's bound.
#pragma once

#include <cstdint>

#include "allocation/plan.h"
#include "mixture/mixture_simd.h"

namespace leakcore {

struct AllocationLoops {
  // out[i] = L of sample first + i for a whole block of kBlock; first is a multiple of kBlock. `work` has room for
  // AllocationPlan's work_per_sample() · kBlock numbers.
  void (*log_ratios)(const AllocationShape& plan, uint64_t seed, bool alternative, uint64_t first, double* out,
                     double* work);
};

const AllocationLoops& allocation_loops_baseline();
#if LEAKCORE_X86_TIERS
const AllocationLoops& allocation_loops_avx2();
const AllocationLoops& allocation_loops_avx512();
#endif

}  // namespace leakcore
