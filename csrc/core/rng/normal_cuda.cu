// Rows of normals and uniforms on CUDA: a thread makes the four draws of a Philox block.
#include "core/products/rows.cuh"
#include "core/rng/normal.h"
#include "core/runtime/launch.cuh"

namespace leakcore {
namespace {

constexpr int kThreads = 256;
constexpr int kDraws = 4;

__global__ void __launch_bounds__(kThreads)
    random_kernel(Rows out, int64_t num_rows, uint64_t seed, uint32_t stream, uint64_t first_row, bool normal) {
  const int64_t blocks = (out.numel + kDraws - 1) / kDraws;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < num_rows * blocks; i += step) {
    const int64_t row = i / blocks, block = i % blocks;
    const Words word = draw_words(seed, stream, first_row + static_cast<uint64_t>(row), static_cast<uint32_t>(block));
    double x[kDraws];
    if (normal) {
      box_muller(static_cast<uint64_t>(word.w[0]), static_cast<uint64_t>(word.w[1]), &x[0], &x[1]);
      box_muller(static_cast<uint64_t>(word.w[2]), static_cast<uint64_t>(word.w[3]), &x[2], &x[3]);
    } else {
      for (int k = 0; k < kDraws; ++k) x[k] = unit_open(word.w[k]);
    }
    for (int k = 0; k < kDraws; ++k) {
      const int64_t column = block * kDraws + k;
      if (column < out.numel) store_element(out, row_offset(out, 0, row) + column_offset(out, column), x[k]);
    }
  }
}

}  // namespace

Status fill_random_rows_cuda(bool normal, const Rows& out, int64_t num_rows, uint64_t seed, uint32_t stream,
                             uint64_t first_row, const Device& device) {
  const char* const kernel = normal ? "standard_normal" : "uniform";
  const int64_t blocks = (out.numel + kDraws - 1) / kDraws;
  if (num_rows == 0 || blocks == 0) return {};
  const DeviceGuard guard(device);
  if (const Status refused = guard.status(kernel); !refused.ok()) return refused;
  return cuda_status(LEAKCORE_LAUNCH(random_kernel, grid_for(num_rows * blocks, kThreads), kThreads, 0, device.stream,
                                     out, num_rows, seed, stream, first_row, normal),
                     kernel);
}

}  // namespace leakcore
