// Batched label solving: for each problem e = N·C⁺·G, where column r of C (d × N) is sample r's derivative of its logit
// and G (d × K) the averaged gradient; with it the rank, the leverages diag((CᵀC)⁺), which samples are determined at
// all, and a bound on the rounding error of every residual.
#pragma once

#include <cfloat>

#include "core/runtime/array.h"
#include "core/runtime/status.h"

namespace leakcore {

struct SolveLabelsArgs {
  int64_t num_problems = 0;
  int64_t num_samples = 0;     // N
  int64_t num_outputs = 1;     // K
  Rows jacobian;               // run = problem, row = sample, numel = d
  Rows gradient;               // run = problem, row = output, numel = d
  double rcond = 0.0;          // singular values up to rcond·(largest) count as zero
  double unit = 0.0;           // unit roundoff of the arithmetic that made jacobian and gradient
  double lost = 0.0;           // norm of what underflow may have taken from a gradient, which no `unit` covers
  double largest = DBL_MAX;    // number that the type of the caller's results holds
  double* residual = nullptr;  // [num_problems][N][K]
  double* error = nullptr;     // likewise; infinite where not identifiable, or where the residual is beyond `largest`
  double* leverage = nullptr;  // [num_problems][N]
  uint8_t* identifiable = nullptr;  // [num_problems][N]
  int64_t* rank = nullptr;          // [num_problems]
  void* scratch = nullptr;          // CUDA: solve_labels_cuda_scratch bytes on the device
  Device device;
  Schedule schedule;
};

// Non-finite input: index = problem, detail = "jacobian" or "gradient".
Status solve_labels_cpu(const SolveLabelsArgs& args);

#if LEAKCORE_WITH_CUDA
int64_t solve_labels_cuda_scratch(const SolveLabelsArgs& args);
Status solve_labels_cuda(const SolveLabelsArgs& args);
#else
inline int64_t solve_labels_cuda_scratch(const SolveLabelsArgs&) {
  return 0;
}
inline Status solve_labels_cuda(const SolveLabelsArgs&) {
  return {Code::no_cuda_build, "solve_labels"};
}
#endif

}  // namespace leakcore
