// The mixture's inner loops over a block of samples, one table per instruction tier. Random integers are the same on
// every tier; ratios are equal to the bit where multiply-add is fused, else within tests/tolerances.py's bound.
#pragma once

#include <cstdint>

#include "mixture/plan.h"

namespace leakcore {

constexpr int kBlock = 256;
constexpr int kWideBlock = 4 * kBlock;

// A worker's own sums of one configuration. Digits take 2^32 additions before they must be carried.
struct Tally {
  const double* thresholds;
  int64_t num_thresholds;
  int64_t* counts;
  uint64_t* sums;
};

struct MixtureLoops {
  // out[c·kBlock + i] = L of sample first + i under configuration c, for a whole block; first is a multiple of kBlock.
  // `work` has room for configs·kBlock numbers.
  void (*log_ratios)(const MixturePlan& plan, uint64_t seed, bool alternative, uint64_t first, double* out,
                     double* work);
  // Where T = 1 and every configuration is `sparse`: out[c·stride + i] likewise, straight to its place, for `samples`
  // of kBlock or, where first is a multiple of kWideBlock, so many of these. The second: as floats, where every one is
  // `quick`. outside: no cache holds the result, and memory for as many samples more is fetched meanwhile.
  void (*one_step)(const MixturePlan& plan, uint64_t seed, bool alternative, uint64_t first, int64_t samples,
                   double* out, int64_t stride, bool outside);
  void (*one_step_quick)(const MixturePlan& plan, uint64_t seed, bool alternative, uint64_t first, int64_t samples,
                         float* out, int64_t stride, bool outside);
  // Adds ratios [begin, end) of kBlock to the tally; the others are overwritten.
  void (*tally)(double* ratios, int begin, int end, const Tally& tally);
};

const MixtureLoops& mixture_loops_baseline();
#if LEAKCORE_X86_TIERS
const MixtureLoops& mixture_loops_avx2();
const MixtureLoops& mixture_loops_avx512();
#endif

}  // namespace leakcore
