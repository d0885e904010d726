// Log likelihood ratio of T steps of a Gaussian mixture against a Gaussian: for x_t ~ N(0, σ_t²), or with probability
// q_t N(1, σ_t²) under the alternative, L = Σ_t log(1 − q_t + q_t·exp((2x_t − 1)/(2σ_t²))). Samples are a pure function
// of (seed, sample index, step), so any range of them can be computed anywhere and the parts merge. Several
// configurations (σ, q) share the random numbers; each comes out to the bits of a call of its own.
#pragma once

#include "core/runtime/array.h"
#include "core/runtime/status.h"
#include "mixture/tail.h"

namespace leakcore {

struct MixtureArgs {
  uint64_t seed = 0;
  uint64_t first_sample = 0;
  int64_t num_samples = 0;
  bool alternative = false;  // x ~ μ instead of ν
  bool single = false;       // float32 arithmetic wherever plan.h finds it safe
  int64_t configs = 1;
  int64_t steps = 0;
  const double* noise_multiplier = nullptr;  // [configs][steps], >= 0; host memory
  const double* sample_rate = nullptr;       // [configs][steps], in [0, 1]; host memory
  Device device;
  Schedule schedule;
  void* scratch = nullptr;  // device memory of mixture_*_cuda_scratch bytes
};

// out[c·config_stride + i] = L of sample first_sample + i under configuration c, as float when single, else double.
struct MixtureLogRatioArgs : MixtureArgs {
  void* out = nullptr;
  int64_t config_stride = 0;
  bool written = false;  // memory of the caller's, which has been written to before
};

struct MixtureTailArgs : MixtureArgs, TailArgs {};

Status mixture_log_ratio_cpu(const MixtureLogRatioArgs& args);
Status mixture_tail_cpu(const MixtureTailArgs& args);

#if LEAKCORE_WITH_CUDA
int64_t mixture_log_ratio_cuda_scratch(const MixtureLogRatioArgs& args);
int64_t mixture_tail_cuda_scratch(const MixtureTailArgs& args);
Status mixture_log_ratio_cuda(const MixtureLogRatioArgs& args);
Status mixture_tail_cuda(const MixtureTailArgs& args);
#else
inline int64_t mixture_log_ratio_cuda_scratch(const MixtureLogRatioArgs&) {
  return 0;
}
inline int64_t mixture_tail_cuda_scratch(const MixtureTailArgs&) {
  return 0;
}
inline Status mixture_log_ratio_cuda(const MixtureLogRatioArgs&) {
  return {Code::no_cuda_build, "mixture_log_ratio"};
}
inline Status mixture_tail_cuda(const MixtureTailArgs&) {
  return {Code::no_cuda_build, "mixture_tail"};
}
#endif

}  // namespace leakcore
