// What a tail counts: samples of any log ratio L by brackets between thresholds, and exact sums over them.
#pragma once

#include <cstdint>

#include "core/products/exact_sum.h"

namespace leakcore {

// Counts and exact sums over samples, added to what the arrays hold. Each configuration's thresholds ascend strictly;
// bracket j holds the samples with t_j <= L < t_{j+1}. A sample is `far` where |L| > kExpSafe: there e^{−L} is not a
// normal double, or one too small for the excess over a threshold to be had from it.
struct TailArgs {
  int64_t num_thresholds = 0;
  const double* thresholds = nullptr;  // [configs][num_thresholds]; host memory
  int64_t* counts = nullptr;           // [configs][num_thresholds][2]: samples in the bracket; those among them far
  uint64_t* sums = nullptr;            // [configs][num_thresholds][3][kSumDigits], carried
};

// The three sums: e^{−L} over the bracket's near samples; over its far ones (a summand beyond the largest double
// counts as that double); and over all far samples with L >= t_j, 1 − e^{t_j − L}.
constexpr int kTailSums = 3;

}  // namespace leakcore
