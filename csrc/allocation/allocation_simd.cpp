// Compiled once per instruction tier (setup.py). All but the table is in an anonymous namespace or always inlined, and
// no library template is called, so that no inline function built for one tier can be linked into another.
#include "allocation/allocation_simd.h"

#include "allocation/correlated.h"
#include "allocation/independent.h"

namespace leakcore {
namespace {

void log_ratios(const AllocationShape& plan, uint64_t seed, bool alternative, uint64_t first, double* out,
                double* work) {
  if (plan.factor.tiles != nullptr) return correlated_ratios(plan, seed, alternative, first, out, work);
  independent_ratios(plan, seed, alternative, first, out, work);
}

constexpr AllocationLoops kLoops = {log_ratios};

}  // namespace

#define LEAKCORE_JOIN(a, b) a##b
#define LEAKCORE_TABLE(tier) LEAKCORE_JOIN(allocation_loops_, tier)
const AllocationLoops& LEAKCORE_TABLE(LEAKCORE_TIER)() {
  return kLoops;
}

}  // namespace leakcore
