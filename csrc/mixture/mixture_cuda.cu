// The mixture on CUDA: a thread takes one sample through all steps (four samples, where there is one step), for a few
// configurations at a time. Arithmetic is core/elementary.h's and steps.h's in the order of mixture_simd.cpp, so ratios
// equal those of the CPU's tiers with fused multiply-add bit for bit, and with them counts and exact sums.
//
// Per sample and step, in float32: about 15 integer operations for Philox, 27 for the normal, 17 for the factor.
#include "core/launch.cuh"
#include "mixture/mixture.h"
#include "mixture/samples.cuh"

namespace leakcore {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 16384;  // beyond it, threads take several samples
constexpr int kTailBlocks = 1056;      // each of which adds its sums to the total once
// Per configuration and threshold, in shared memory: a count and the digits of one sum.
constexpr int kCell = 1 + kSumDigits;

template <class T>
__global__ void __launch_bounds__(kThreads) one_step_kernel(Samples x, T* out, int64_t stride) {
  for_each_one_step(x, 0, x.configs,
                    [&](int64_t i, int64_t c, double ratio) { out[c * stride + i] = static_cast<T>(ratio); });
}

template <int kConfigs, class T>
__global__ void __launch_bounds__(kThreads) log_ratio_kernel(Samples x, T* out, int64_t stride) {
  const int64_t config = static_cast<int64_t>(blockIdx.y) * kConfigs;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < x.count; i += step) {
    double total[kConfigs];
    log_ratios<kConfigs>(x, x.first + static_cast<uint64_t>(i), config, total);
    for (int c = 0; c < kConfigs; ++c) {
      if (config + c < x.configs) out[(config + c) * stride + i] = static_cast<T>(total[c]);
    }
  }
}

__device__ inline void atomic_add(uint64_t* to, uint64_t value) {
  if (value != 0) atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}

// As exact_add, from many threads at once: integer additions commute.
__device__ inline void atomic_exact_add(uint64_t* digits, double value) {
  uint32_t place;
  const uint64_t mantissa = exact_parts(value, &place);
  const uint32_t shift = place & 31;
  const uint64_t upper = mantissa >> (32 - shift);
  uint64_t* d = digits + (place >> 5);
  atomic_add(d, (mantissa << shift) & 0xffffffffu);
  atomic_add(d + 1, upper & 0xffffffffu);
  atomic_add(d + 2, upper >> 32);
}

struct TailSums {
  const double* thresholds;  // [configs][count], ascending
  int64_t count;
  int64_t* counts;
  uint64_t* sums;
  bool shared;  // a block's cells fit its shared memory
};

__device__ inline void tally(const TailSums& t, double ratio, int64_t config, uint64_t* cells) {
  const double* thresholds = t.thresholds + config * t.count;
  int64_t low = 0, high = t.count;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (thresholds[middle] <= ratio) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == 0) return;
  const int64_t at = config * t.count + low - 1;
  uint64_t* counts = reinterpret_cast<uint64_t*>(t.counts);
  uint64_t* sums = t.sums + at * kTailSums * kSumDigits;
  if (ratio < -kExpSafe || ratio > kExpSafe) {
    atomic_add(counts + 2 * at, 1);
    atomic_add(counts + 2 * at + 1, 1);
    atomic_exact_add(sums + kSumDigits, exp_wide(-ratio));
    for (int64_t j = 0; j < low; ++j) {
      atomic_exact_add(t.sums + ((config * t.count + j) * kTailSums + 2) * kSumDigits,
                       far_excess(thresholds[j], ratio));
    }
    return;
  }
  const double inverse = exp_safe(-ratio);
  if (t.shared) {
    atomic_add(cells + (low - 1) * kCell, 1);
    atomic_exact_add(cells + (low - 1) * kCell + 1, inverse);
  } else {
    atomic_add(counts + 2 * at, 1);
    atomic_exact_add(sums, inverse);
  }
}

template <int kConfigs, bool kOneStep>
__global__ void __launch_bounds__(kThreads) tail_kernel(Samples x, TailSums t) {
  LEAKCORE_DYNAMIC_SHARED(uint64_t, cells);  // [kConfigs][thresholds][kCell]
  const int64_t config = static_cast<int64_t>(blockIdx.y) * kConfigs;
  const int64_t per_config = t.count * kCell;
  if (t.shared) {
    for (int64_t i = threadIdx.x; i < kConfigs * per_config; i += blockDim.x) cells[i] = 0;
  }
  __syncthreads();
  if (kOneStep) {
    const int64_t end = config + kConfigs < x.configs ? config + kConfigs : x.configs;
    for_each_one_step(x, config, end,
                      [&](int64_t, int64_t c, double ratio) { tally(t, ratio, c, cells + (c - config) * per_config); });
  } else {
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < x.count; i += step) {
      double total[kConfigs];
      log_ratios<kConfigs>(x, x.first + static_cast<uint64_t>(i), config, total);
      for (int c = 0; c < kConfigs; ++c) {
        if (config + c < x.configs) tally(t, total[c], config + c, cells + c * per_config);
      }
    }
  }
  __syncthreads();
  if (!t.shared) return;
  // Carried first, so that the totals have room for 2^32 blocks.
  for (int64_t i = threadIdx.x; i < kConfigs * t.count; i += blockDim.x) exact_carry(cells + i * kCell + 1);
  __syncthreads();
  for (int64_t i = threadIdx.x; i < kConfigs * per_config; i += blockDim.x) {
    const int64_t cell = i / kCell, part = i % kCell;
    if (config + cell / t.count >= x.configs) continue;
    const int64_t at = config * t.count + cell;
    if (part == 0) {
      atomic_add(reinterpret_cast<uint64_t*>(t.counts) + 2 * at, cells[i]);
    } else {
      atomic_add(t.sums + at * kTailSums * kSumDigits + part - 1, cells[i]);
    }
  }
}

__global__ void carry_kernel(uint64_t* sums, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) exact_carry(sums + i * kSumDigits);
}

int64_t table_bytes(const MixtureArgs& args) {
  return args.configs * ((args.steps + kGroup - 1) / kGroup) * static_cast<int64_t>(sizeof(Group));
}

// The plan into scratch. Pageable host memory: the call returns once it has been read.
cudaError_t send_plan(const MixtureArgs& args, Samples* x) {
  const MixturePlan plan(args);
  *x = {args.seed,
        args.first_sample,
        args.num_samples,
        args.alternative,
        plan.configs,
        plan.groups,
        static_cast<const Group*>(args.scratch)};
  if (plan.table.empty()) return cudaSuccess;
  return cudaMemcpyAsync(args.scratch, plan.table.data(), static_cast<size_t>(table_bytes(args)),
                         cudaMemcpyHostToDevice, static_cast<cudaStream_t>(args.device.stream));
}

unsigned blocks_for(int64_t items, int64_t at_most) {
  const int64_t wanted = (items + kThreads - 1) / kThreads;
  return static_cast<unsigned>(wanted < at_most ? wanted : at_most);
}

// Quads that the call's samples lie in, at most.
int64_t quads(const Samples& x) {
  return x.count / kGroup + 2;
}

template <class T>
cudaError_t launch_one_step(const MixtureLogRatioArgs& args, const Samples& x) {
  return LEAKCORE_LAUNCH(one_step_kernel<T>, blocks_for(quads(x), kMaxBlocks), kThreads, 0, args.device.stream, x,
                         static_cast<T*>(args.out), args.config_stride);
}

template <int kConfigs, class T>
cudaError_t launch_log_ratio(const MixtureLogRatioArgs& args, const Samples& x) {
  const dim3 grid(blocks_for(x.count, kMaxBlocks), static_cast<unsigned>((x.configs + kConfigs - 1) / kConfigs));
  return LEAKCORE_LAUNCH((log_ratio_kernel<kConfigs, T>), grid, kThreads, 0, args.device.stream, x,
                         static_cast<T*>(args.out), args.config_stride);
}

template <int kConfigs, bool kOneStep>
cudaError_t launch_tail(const MixtureTailArgs& args, const Samples& x, TailSums t) {
  const int64_t bytes = kConfigs * t.count * kCell * static_cast<int64_t>(sizeof(uint64_t));
  t.shared = bytes <= static_cast<int64_t>(kPlainSharedBytes);
  const int64_t items = kOneStep ? quads(x) : x.count;
  const dim3 grid(blocks_for(items, kTailBlocks), static_cast<unsigned>((x.configs + kConfigs - 1) / kConfigs));
  return LEAKCORE_LAUNCH((tail_kernel<kConfigs, kOneStep>), grid, kThreads, t.shared ? bytes : 0, args.device.stream, x,
                         t);
}

}  // namespace

int64_t mixture_log_ratio_cuda_scratch(const MixtureLogRatioArgs& args) {
  return table_bytes(args);
}

int64_t mixture_tail_cuda_scratch(const MixtureTailArgs& args) {
  return table_bytes(args) + args.configs * args.num_thresholds * static_cast<int64_t>(sizeof(double));
}

Status mixture_log_ratio_cuda(const MixtureLogRatioArgs& args) {
  constexpr const char* kKernel = "mixture_log_ratio";
  if (args.num_samples == 0 || args.configs == 0) return {};
  const DeviceGuard guard(args.device);
  if (guard.error() != cudaSuccess) return cuda_status(guard.error(), kKernel);
  Samples x;
  if (const cudaError_t error = send_plan(args, &x); error != cudaSuccess) return cuda_status(error, kKernel);
  if (args.steps == 1) {
    return cuda_status(args.single ? launch_one_step<float>(args, x) : launch_one_step<double>(args, x), kKernel);
  }
  const bool one = args.configs == 1;
  const cudaError_t error = args.single
                                ? (one ? launch_log_ratio<1, float>(args, x) : launch_log_ratio<4, float>(args, x))
                                : (one ? launch_log_ratio<1, double>(args, x) : launch_log_ratio<4, double>(args, x));
  return cuda_status(error, kKernel);
}

Status mixture_tail_cuda(const MixtureTailArgs& args) {
  constexpr const char* kKernel = "mixture_tail";
  const int64_t cells = args.configs * args.num_thresholds;
  if (args.num_samples == 0 || cells == 0) return {};
  const DeviceGuard guard(args.device);
  if (guard.error() != cudaSuccess) return cuda_status(guard.error(), kKernel);
  Samples x;
  if (const cudaError_t error = send_plan(args, &x); error != cudaSuccess) return cuda_status(error, kKernel);
  double* thresholds = reinterpret_cast<double*>(static_cast<char*>(args.scratch) + table_bytes(args));
  cudaError_t error = cudaMemcpyAsync(thresholds, args.thresholds, static_cast<size_t>(cells) * sizeof(double),
                                      cudaMemcpyHostToDevice, static_cast<cudaStream_t>(args.device.stream));
  if (error != cudaSuccess) return cuda_status(error, kKernel);
  const TailSums t = {thresholds, args.num_thresholds, args.counts, args.sums, false};
  if (args.steps == 1) {
    error = args.configs == 1 ? launch_tail<1, true>(args, x, t) : launch_tail<4, true>(args, x, t);
  } else {
    error = args.configs == 1 ? launch_tail<1, false>(args, x, t) : launch_tail<4, false>(args, x, t);
  }
  if (error != cudaSuccess) return cuda_status(error, kKernel);
  error = LEAKCORE_LAUNCH(carry_kernel, static_cast<unsigned>((cells * kTailSums + kThreads - 1) / kThreads), kThreads,
                          0, args.device.stream, args.sums, cells * kTailSums);
  return cuda_status(error, kKernel);
}

}  // namespace leakcore
