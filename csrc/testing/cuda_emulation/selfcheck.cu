#include "testing/cuda_emulation/selfcheck.h"

#include <algorithm>
#include <vector>

#include "core/runtime/launch.cuh"

namespace leakcore {
namespace {

constexpr int kThreads = 256;

// A block's sum by shuffles within warps and shared memory between them; without the barrier it is a race.
template <bool Barrier>
__global__ void block_sum(const double* x, int64_t count, double* out) {
  LEAKCORE_DYNAMIC_SHARED(double, warps);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  double sum = i < count ? x[i] : 0.0;
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  if (Barrier) __syncthreads();
  if (threadIdx.x == 0) {
    sum = 0.0;
    for (int w = 0; w < kThreads / 32; ++w) sum += warps[w];
    out[blockIdx.x] = sum;
  }
}

__global__ void diverging_barrier(double* x) {
  if (threadIdx.x < 100) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  x[0] = 1.0;
}

__global__ void early_exit() {
  if (threadIdx.x == 3) return;
  __syncthreads();
}

__global__ void half_a_warp(double* x) {
  if (threadIdx.x % 32 < 16) x[0] += __shfl_down_sync(0xffffffffu, x[0], 1);
}

__global__ void past_shared(double* x) {
  LEAKCORE_DYNAMIC_SHARED(double, shared);
  shared[threadIdx.x + 1] = x[0];
}

__global__ void past_global(double* x, int64_t count) {
  if (threadIdx.x == 0) x[count] = 1.0;
}

__global__ void shuffles(double* x) {
  const int lane = static_cast<int>(threadIdx.x);
  const double down = __shfl_down_sync(0xffffffffu, x[lane], 3);
  const double up = __shfl_up_sync(0xffffffffu, x[lane], 2);
  const double first = __shfl_sync(0xffffffffu, x[lane], 5);
  const double quarter = __shfl_xor_sync(0xffffffffu, x[lane], 1, 8);
  const unsigned odd = __ballot_sync(0xffffffffu, lane % 2);
  __syncwarp();
  x[lane] = down + 100.0 * up + 10000.0 * first + 1000000.0 * quarter + (odd == 0xaaaaaaaau ? 0.0 : 0.5);
}

}  // namespace

Status emulation_check(const std::string& kernel, double* data, int64_t count) {
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  constexpr size_t kShared = kThreads / 32 * sizeof(double);
  cudaError_t error = cudaErrorInvalidValue;
  std::vector<double> sums(data, data + count);  // apart from what other blocks still read
  if (kernel == "sum") {
    error = LEAKCORE_LAUNCH(block_sum<true>, blocks, kThreads, kShared, nullptr, data, count, sums.data());
  }
  if (kernel == "race") {
    error = LEAKCORE_LAUNCH(block_sum<false>, blocks, kThreads, kShared, nullptr, data, count, sums.data());
  }
  if (kernel == "sum" || kernel == "race") std::copy(sums.begin(), sums.end(), data);
  if (kernel == "shuffles") error = LEAKCORE_LAUNCH(shuffles, 1, 32, 0, nullptr, data);
  if (kernel == "diverging") error = LEAKCORE_LAUNCH(diverging_barrier, 1, 128, 0, nullptr, data);
  if (kernel == "early exit") error = LEAKCORE_LAUNCH(early_exit, 1, 128, 0, nullptr);
  if (kernel == "half a warp") error = LEAKCORE_LAUNCH(half_a_warp, 1, 64, 0, nullptr, data);
  if (kernel == "past shared") error = LEAKCORE_LAUNCH(past_shared, 1, 32, 32 * sizeof(double), nullptr, data);
  if (kernel == "past global") error = LEAKCORE_LAUNCH(past_global, 1, 32, 0, nullptr, data, count);
  if (kernel == "large block") error = LEAKCORE_LAUNCH(early_exit, 1, 1025, 0, nullptr);
  if (kernel == "no blocks") error = LEAKCORE_LAUNCH(early_exit, 0, 32, 0, nullptr);
  if (kernel == "large shared") error = LEAKCORE_LAUNCH(early_exit, 1, 32, 227 * 1024 + 1, nullptr);
  return cuda_status(error, "emulation_check");
}

}  // namespace leakcore
