// Per-sample clipping fused with what follows it: the clipped, noised sum of a batch, and the scores of clipped
// gradients against observations. Neither ever holds a clipped gradient. Accumulation is in double, unless float
// products are asked for, and except for the first few terms of 16-bit elements on the CPU (clip_simd.h); partial sums
// have a shape fixed by the sizes alone, so results do not depend on threads or chunks.
#pragma once

#include "core/runtime/array.h"
#include "core/runtime/status.h"

namespace leakcore {

// sum[run] = Σ_row mask·g·min(1, C/‖g‖) + noise_scale·z, over parameters that are clipped by their joint norm.
struct ClipArgs {
  int64_t num_runs = 0;
  int64_t num_rows = 0;
  int32_t num_params = 0;
  const Rows* grads = nullptr;    // [num_params]
  const Rows* sum = nullptr;      // [num_params], float32 or float64; one row per run (row_stride unused)
  double* norms = nullptr;        // [num_runs][num_rows]: joint norms of all rows, before clipping, masked ones too
  const uint8_t* mask = nullptr;  // null: every row counts
  int64_t mask_run_stride = 0;
  int64_t mask_row_stride = 0;
  double max_grad_norm = 1.0;
  double noise_scale = 0.0;     // σ·C; 0: no noise
  const Rows* noise = nullptr;  // [num_params] standard normals; null: drawn from seed, step and run
  uint64_t seed = 0;
  uint32_t step = 0;
  uint64_t first_run = 0;
  bool check_finite =
      true;  // CPU: stop before the sum if the norm of a row that counts is not finite: index = run·num_rows + row
  void* scratch = nullptr;  // CUDA: clip_and_noise_cuda_scratch bytes on the device
  Device device;
  Schedule schedule;
};

// dots[run][m][i] = ⟨g_i·min(1, C/‖g_i‖), o_m⟩ and norms[run][i] = ‖g_i‖, in one read of the gradients.
struct ClipScoresArgs {
  int64_t num_runs = 1;
  int64_t num_rows = 0;
  int64_t num_observed = 0;
  Rows grads;
  Rows observed;
  double* dots = nullptr;   // [num_runs][num_observed][num_rows]
  double* norms = nullptr;  // [num_runs][num_rows], before clipping
  double max_grad_norm = 1.0;
  bool float_products = false;  // inner products in float32, for arrays of at most 32 bits
  bool check_finite = true;     // CPU: index = run·num_rows + row
  void* scratch = nullptr;      // CUDA: clip_scores_cuda_scratch bytes on the device
  Device device;
  Schedule schedule;
};

Status clip_and_noise_cpu(const ClipArgs& args);
Status clip_scores_cpu(const ClipScoresArgs& args);

#if LEAKCORE_WITH_CUDA
// The same from device memory, queued on the caller's stream. Norms are not looked at: they are for the caller to
// check.
int64_t clip_and_noise_cuda_scratch(const ClipArgs& args);
int64_t clip_scores_cuda_scratch(const ClipScoresArgs& args);
Status clip_and_noise_cuda(const ClipArgs& args);
Status clip_scores_cuda(const ClipScoresArgs& args);
#else
inline int64_t clip_and_noise_cuda_scratch(const ClipArgs&) {
  return 0;
}
inline int64_t clip_scores_cuda_scratch(const ClipScoresArgs&) {
  return 0;
}
inline Status clip_and_noise_cuda(const ClipArgs&) {
  return {Code::no_cuda_build, "clip_and_noise"};
}
inline Status clip_scores_cuda(const ClipScoresArgs&) {
  return {Code::no_cuda_build, "clip_scores"};
}
#endif

}  // namespace leakcore
