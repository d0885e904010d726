// Log likelihood ratio of T steps of a Gaussian mixture against a Gaussian: for x_t ~ N(0, σ_t²), or with probability
// q_t N(1, σ_t²) under the alternative, L = Σ_t log(1 − q_t + q_t·exp((2x_t − 1)/(2σ_t²))). Samples are a pure function
// of (seed, sample index, step), so any range of them can be computed anywhere and the parts merge.
#pragma once

#include "core/array.h"
#include "core/exact_sum.h"
#include "core/status.h"

namespace leakcore {

struct MixtureArgs {
  uint64_t seed = 0;
  uint64_t first_sample = 0;
  int64_t num_samples = 0;
  bool alternative = false;  // x ~ μ instead of ν
  int64_t steps = 0;
  const double* noise_multiplier = nullptr;  // [steps], >= 0
  const double* sample_rate = nullptr;       // [steps], in [0, 1]
  Device device;
  Schedule schedule;
};

// out[i] = L of sample first_sample + i, float64, contiguous.
struct MixtureLogRatioArgs : MixtureArgs {
  double* out = nullptr;
};

// Counts and exact sums over samples, added to what the arrays hold. Thresholds ascend strictly.
//   counts[j]: samples with t_j <= L < t_{j+1}; the caller sums the suffixes
//   inverse[j]: exact sum of e^{−L} over those samples (a summand beyond the largest double counts as that double)
//   excess[j]: exact sum of 1 − e^{t_j − L} over samples with L >= t_j
struct MixtureTailArgs : MixtureArgs {
  int64_t num_thresholds = 0;
  const double* thresholds = nullptr;
  int64_t* counts = nullptr;
  uint64_t* inverse = nullptr;  // [num_thresholds][kSumDigits], carried
  uint64_t* excess = nullptr;   // likewise
};

Status mixture_log_ratio_cpu(const MixtureLogRatioArgs& args);
Status mixture_tail_cpu(const MixtureTailArgs& args);

#if LEAKCORE_WITH_CUDA
Status mixture_log_ratio_cuda(const MixtureLogRatioArgs& args);
Status mixture_tail_cuda(const MixtureTailArgs& args);
#else
inline Status mixture_log_ratio_cuda(const MixtureLogRatioArgs&) {
  return {Code::no_cuda_build, "mixture_log_ratio"};
}
inline Status mixture_tail_cuda(const MixtureTailArgs&) {
  return {Code::no_cuda_build, "mixture_tail"};
}
#endif

}  // namespace leakcore
