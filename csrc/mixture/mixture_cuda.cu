// The mixture on CUDA: a thread takes one sample through all steps (four samples, where there is one step), for a few
// configurations at a time. Arithmetic is core/elementary.h's and steps.h's in the order of mixture_simd.cpp, so ratios
// equal those of the CPU's tiers with fused multiply-add bit for bit, and with them counts and exact sums.
//
// Per sample and step, in float32 with one σ and q: about 65 instructions, 15 of them for Philox, 27 for the normal and
// 17 for the factor (nvcc 13, sm_90).
#include <type_traits>
#include <vector>

#include "core/products/rows.cuh"
#include "core/runtime/launch.cuh"
#include "mixture/mixture.h"
#include "mixture/samples.cuh"

namespace leakcore {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 16384;  // beyond it, threads take several samples
constexpr int kTailBlocks = 1056;      // each adds its sums to the total once
// Per configuration and threshold, in shared memory: a count and the digits of one sum.
constexpr int kCell = 1 + kSumDigits;
constexpr int kTogether = 4;  // so many lanes in a bracket are worth adding up before they go there

template <class T>
__global__ void __launch_bounds__(kThreads) one_step_kernel(Samples x, T* out, int64_t stride) {
  for_each_one_step(x, 0, x.configs, [&](bool counts, int64_t i, int64_t c, double ratio) {
    if (counts) out[c * stride + i] = static_cast<T>(ratio);
  });
}

template <class Ratios, int kConfigs, class T>
__global__ void __launch_bounds__(kThreads) log_ratio_kernel(Samples x, T* out, int64_t stride) {
  const int64_t config = static_cast<int64_t>(blockIdx.y) * kConfigs;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < x.count; i += step) {
    double total[kConfigs];
    Ratios::template get<kConfigs>(x, x.first + static_cast<uint64_t>(i), config, total);
#pragma unroll
    for (int c = 0; c < kConfigs; ++c) {
      if (config + c < x.configs) out[(config + c) * stride + i] = static_cast<T>(total[c]);
    }
  }
}

__device__ inline void atomic_add(uint64_t* to, uint64_t value) {
  if (value != 0) atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}

// As exact_add_at and exact_add, from many threads at once: integer additions commute.
__device__ inline void atomic_exact_add_at(uint64_t* digits, uint64_t value, uint32_t place) {
  const uint32_t shift = place & 31;
  const uint64_t upper = value >> (32 - shift);
  uint64_t* d = digits + (place >> 5);
  atomic_add(d, (value << shift) & 0xffffffffu);
  atomic_add(d + 1, upper & 0xffffffffu);
  atomic_add(d + 2, upper >> 32);
}

__device__ inline void atomic_exact_add(uint64_t* digits, double value) {
  uint32_t place;
  const uint64_t mantissa = exact_parts(value, &place);
  atomic_exact_add_at(digits, mantissa, place);
}

struct TailSums {
  const double* thresholds;  // [configs][count], ascending
  int64_t count;
  int64_t* counts;
  uint64_t* sums;
  bool shared;  // a block's cells fit its shared memory
};

// |ratio| > kExpSafe, at or above the first `low` thresholds. Not inlined: it is rare, and its registers would cost the
// loop before it warps.
__device__ __noinline__ void tally_far(const TailSums& t, double ratio, int64_t config, int64_t low) {
  const double* thresholds = t.thresholds + config * t.count;
  const int64_t at = config * t.count + low - 1;
  uint64_t* counts = reinterpret_cast<uint64_t*>(t.counts);
  atomic_add(counts + 2 * at, 1);
  atomic_add(counts + 2 * at + 1, 1);
  atomic_exact_add(t.sums + (at * kTailSums + 1) * kSumDigits, exp_wide(-ratio));
  for (int64_t j = 0; j < low; ++j) {
    atomic_exact_add(t.sums + ((config * t.count + j) * kTailSums + 2) * kSumDigits, far_excess(thresholds[j], ratio));
  }
}

// The ratios of a warp, all of whose lanes come here together; `counts` is false where a lane has none. Lanes whose
// ratios lie in one bracket add up among themselves first: in shared memory, too, a 64-bit addition is a loop that they
// would go through one after the other.
__device__ inline void tally(const TailSums& t, bool counts, double ratio, int64_t config, uint64_t* cells) {
  const double* thresholds = t.thresholds + config * t.count;
  int64_t low = 0, high = counts ? t.count : 0;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (thresholds[middle] <= ratio) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const bool far = low > 0 && (ratio < -kExpSafe || ratio > kExpSafe);
  if (far) tally_far(t, ratio, config, low);
  const bool near = low > 0 && !far;
  const double inverse = exp_safe(near ? -ratio : 0.0);
  uint32_t place;
  const uint64_t mantissa = exact_parts(inverse, &place);
  const int64_t at = config * t.count + low - 1;
  uint64_t* const count = t.shared ? cells + (low - 1) * kCell : reinterpret_cast<uint64_t*>(t.counts) + 2 * at;
  uint64_t* const sum = t.shared ? count + 1 : t.sums + at * kTailSums * kSumDigits;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  bool alone = near;
  for (unsigned left = __ballot_sync(kFullWarp, near); left != 0;) {
    const int leader = __ffs(static_cast<int>(left)) - 1;
    const int bracket = __shfl_sync(kFullWarp, static_cast<int>(low), leader);
    const bool mine = near && low == bracket;
    const unsigned group = __ballot_sync(kFullWarp, mine);
    left &= ~group;
    if (__popc(group) < kTogether) continue;
    // Mantissas at places base … base + 32 fit two integers, the sum of the whole warp; the rest go alone.
    uint32_t top = mine ? place : 0;
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const uint32_t other = __shfl_xor_sync(kFullWarp, top, step);
      top = other > top ? other : top;
    }
    const uint32_t base = top > 32 ? top - 32 : 0;
    const bool inside = mine && place >= base;
    const uint32_t shift = inside ? place - base : 0;
    unsigned long long lower = inside ? mantissa << shift & 0xffffffffu : 0,
                       upper = inside ? mantissa >> (32 - shift) : 0;
    for (int step = kWarp / 2; step > 0; step /= 2) {
      lower += __shfl_xor_sync(kFullWarp, lower, step);
      upper += __shfl_xor_sync(kFullWarp, upper, step);
    }
    if (inside) alone = false;
    if (lane == leader) {
      atomic_exact_add_at(sum, lower, base);
      atomic_exact_add_at(sum, upper, base + 32);
      atomic_add(count, static_cast<uint64_t>(__popc(group)));
    }
    if (mine && !inside) {
      atomic_exact_add_at(sum, mantissa, place);
      alone = false;
    }
  }
  if (alone) {
    atomic_add(count, 1);
    atomic_exact_add_at(sum, mantissa, place);
  }
}

struct OneStep {};

template <class Ratios, int kConfigs>
__global__ void __launch_bounds__(kThreads) tail_kernel(Samples x, TailSums t) {
  LEAKCORE_DYNAMIC_SHARED(uint64_t, cells);  // [kConfigs][thresholds][kCell]
  const int64_t config = static_cast<int64_t>(blockIdx.y) * kConfigs;
  const int64_t per_config = t.count * kCell;
  if (t.shared) {
    for (int64_t i = threadIdx.x; i < kConfigs * per_config; i += blockDim.x) cells[i] = 0;
  }
  __syncthreads();
  if constexpr (std::is_same_v<Ratios, OneStep>) {
    const int64_t end = config + kConfigs < x.configs ? config + kConfigs : x.configs;
    for_each_one_step(x, config, end, [&](bool counts, int64_t, int64_t c, double ratio) {
      tally(t, counts, ratio, c, cells + (c - config) * per_config);
    });
  } else {
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t from = static_cast<int64_t>(blockIdx.x) * blockDim.x; from < x.count; from += step) {
      const bool counts = from + threadIdx.x < x.count;
      double total[kConfigs];
      Ratios::template get<kConfigs>(x, x.first + static_cast<uint64_t>(from + (counts ? threadIdx.x : 0)), config,
                                     total);
      for (int c = 0; c < kConfigs; ++c) {
        if (config + c < x.configs) tally(t, counts, total[c], config + c, cells + c * per_config);
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

// The plan into scratch: a few numbers per configuration where all are even, else all groups.
cudaError_t send_plan(const MixtureArgs& args, Samples* x) {
  const MixturePlan plan(args);
  *x = {round_keys(args.seed), args.seed, args.first_sample, args.num_samples, args.alternative, plan.configs,
        plan.groups,           kGroup,    nullptr,           nullptr};
  if (plan.table.empty()) return cudaSuccess;
  x->last_steps = plan.at(0, plan.groups - 1).steps;
  const cudaStream_t stream = static_cast<cudaStream_t>(args.device.stream);
  std::vector<Even> even;
  for (int64_t c = 0; c < plan.configs; ++c) {
    const Group& g = plan.at(c, 0);
    even.push_back({g.slope32[0], g.offset32[0], g.lifted32[0], g.q32[0], static_cast<uint32_t>(g.pick_high[0]),
                    g.pick_low[0], plan.period(c)});
    if (even.back().period == 0) {
      x->table = static_cast<const Group*>(args.scratch);
      return send_table(args.scratch, plan.table.data(), static_cast<size_t>(table_bytes(args)), stream);
    }
  }
  x->even = static_cast<const Even*>(args.scratch);
  return send_table(args.scratch, even.data(), even.size() * sizeof(Even), stream);
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

// call(Ratios{}) with what the plan allows.
template <class Call>
cudaError_t with_ratios(const Samples& x, Call&& call) {
  if (x.even == nullptr) return call(AnyRatios{});
  return x.alternative ? call(EvenRatios<true>{}) : call(EvenRatios<false>{});
}

template <class Ratios, int kConfigs, class T>
cudaError_t launch_log_ratio(const MixtureLogRatioArgs& args, const Samples& x) {
  const dim3 grid(blocks_for(x.count, kMaxBlocks), static_cast<unsigned>((x.configs + kConfigs - 1) / kConfigs));
  return LEAKCORE_LAUNCH((log_ratio_kernel<Ratios, kConfigs, T>), grid, kThreads, 0, args.device.stream, x,
                         static_cast<T*>(args.out), args.config_stride);
}

template <class Ratios, int kConfigs>
cudaError_t launch_tail(const MixtureTailArgs& args, const Samples& x, TailSums t) {
  const int64_t bytes = kConfigs * t.count * kCell * static_cast<int64_t>(sizeof(uint64_t));
  t.shared = bytes <= static_cast<int64_t>(kPlainSharedBytes);
  const int64_t items = std::is_same_v<Ratios, OneStep> ? quads(x) : x.count;
  const dim3 grid(blocks_for(items, kTailBlocks), static_cast<unsigned>((x.configs + kConfigs - 1) / kConfigs));
  return LEAKCORE_LAUNCH((tail_kernel<Ratios, kConfigs>), grid, kThreads, t.shared ? bytes : 0, args.device.stream, x,
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
  const cudaError_t error = with_ratios(x, [&](auto ratios) {
    using Ratios = decltype(ratios);
    if (args.single)
      return one ? launch_log_ratio<Ratios, 1, float>(args, x) : launch_log_ratio<Ratios, 4, float>(args, x);
    return one ? launch_log_ratio<Ratios, 1, double>(args, x) : launch_log_ratio<Ratios, 4, double>(args, x);
  });
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
  cudaError_t error = send_table(thresholds, args.thresholds, static_cast<size_t>(cells) * sizeof(double),
                                 static_cast<cudaStream_t>(args.device.stream));
  if (error != cudaSuccess) return cuda_status(error, kKernel);
  const TailSums t = {thresholds, args.num_thresholds, args.counts, args.sums, false};
  const bool one = args.configs == 1;
  if (args.steps == 1) {
    error = one ? launch_tail<OneStep, 1>(args, x, t) : launch_tail<OneStep, 4>(args, x, t);
  } else {
    error = with_ratios(x, [&](auto ratios) {
      using Ratios = decltype(ratios);
      return one ? launch_tail<Ratios, 1>(args, x, t) : launch_tail<Ratios, 4>(args, x, t);
    });
  }
  if (error != cudaSuccess) return cuda_status(error, kKernel);
  error = LEAKCORE_LAUNCH(carry_kernel, static_cast<unsigned>((cells * kTailSums + kThreads - 1) / kThreads), kThreads,
                          0, args.device.stream, args.sums, cells * kTailSums);
  return cuda_status(error, kKernel);
}

}  // namespace leakcore
