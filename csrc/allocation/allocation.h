// Log likelihood ratio of random allocation: of b bins an unknown one, or k of them, holds the target, and each is
// released with Gaussian noise. Under the null y ~ N(0, σ²G); under the alternative G's column J is added, J uniform on
// the bins; L = log (1/b) Σ_j exp((y_j − G_jj/2)/σ²). G = F Fᵀ by its factor F, or the identity, where J may be k of
// the bins: then L = log e_k(exp((y_t − ½)/σ²))/C(b, k), e_k the elementary symmetric polynomial. L is summed over
// independent epochs. Samples are a pure function of (seed, sample index), as the mixture's.
#pragma once

#include "core/runtime/array.h"
#include "core/runtime/status.h"
#include "mixture/tail.h"

namespace leakcore {

struct AllocationArgs {
  uint64_t seed = 0;
  uint64_t first_sample = 0;
  int64_t num_samples = 0;
  bool alternative = false;       // y with G's column J
  bool single = false;            // float32 arithmetic wherever plan.h finds it safe
  double noise_multiplier = 1.0;  // σ > 0, such that no exponent leaves the range of a double
  int64_t bins = 1;               // b
  int64_t epochs = 1;
  int64_t chosen = 1;        // k; 1 with a factor
  double log_subsets = 0.0;  // log C(b, k)
  // The factor, in host memory; columns = 0: none. Row j has `values` [row_start[j], row_start[j + 1]) from column
  // row_column[j] on, and zeros elsewhere.
  int64_t columns = 0;
  const int64_t* row_column = nullptr;
  const int64_t* row_start = nullptr;
  const double* values = nullptr;
  Device device;
  Schedule schedule;
  void* scratch = nullptr;  // device memory of allocation_*_cuda_scratch bytes
};

// out[i] = L of sample first_sample + i, as float when single, else double.
struct AllocationLogRatioArgs : AllocationArgs {
  void* out = nullptr;
};

struct AllocationTailArgs : AllocationArgs, TailArgs {};

Status allocation_log_ratio_cpu(const AllocationLogRatioArgs& args);
Status allocation_tail_cpu(const AllocationTailArgs& args);

#if LEAKCORE_WITH_CUDA
int64_t allocation_log_ratio_cuda_scratch(const AllocationLogRatioArgs& args);
int64_t allocation_tail_cuda_scratch(const AllocationTailArgs& args);
Status allocation_log_ratio_cuda(const AllocationLogRatioArgs& args);
Status allocation_tail_cuda(const AllocationTailArgs& args);
#else
inline int64_t allocation_log_ratio_cuda_scratch(const AllocationLogRatioArgs&) {
  return 0;
}
inline int64_t allocation_tail_cuda_scratch(const AllocationTailArgs&) {
  return 0;
}
inline Status allocation_log_ratio_cuda(const AllocationLogRatioArgs&) {
  return {Code::no_cuda_build, "allocation_log_ratio"};
}
inline Status allocation_tail_cuda(const AllocationTailArgs&) {
  return {Code::no_cuda_build, "allocation_tail"};
}
#endif

}  // namespace leakcore
