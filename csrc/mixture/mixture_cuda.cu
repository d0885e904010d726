// The mixture on CUDA: a thread takes one sample through all steps (four samples, where there is one step), for a few
// configurations at a time. Arithmetic is core/elementary.h's and steps.h's in the order of mixture_simd.cpp, so ratios
// equal those of the CPU's tiers with fused multiply-add bit for bit, and with them counts and exact sums.
//
// Per sample and step, in float32 with one σ and q: about 65 instructions, 15 of them for Philox, 27 for the normal and
// 17 for the factor (nvcc 13, sm_90).
#include <type_traits>
#include <vector>

#include "core/runtime/launch.cuh"
#include "mixture/mixture.h"
#include "mixture/samples.cuh"
#include "mixture/tail.cuh"

namespace leakcore {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 16384;  // beyond it, threads take several samples
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

struct OneStep {};

template <class Ratios, int kConfigs>
__global__ void __launch_bounds__(kThreads) tail_kernel(Samples x, TailSums t) {
  LEAKCORE_DYNAMIC_SHARED(uint64_t, cells);  // [kConfigs][thresholds][kCell]
  const int64_t config = static_cast<int64_t>(blockIdx.y) * kConfigs;
  const int64_t per_config = t.count * kCell;
  begin_cells(t, kConfigs, cells);
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
  const int64_t left = x.configs - config;
  give_cells(t, config, left < kConfigs ? left : kConfigs, cells);
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
  const int64_t bytes = share_cells(&t, kConfigs);
  const int64_t items = std::is_same_v<Ratios, OneStep> ? quads(x) : x.count;
  const dim3 grid(blocks_for(items, kTailBlocks), static_cast<unsigned>((x.configs + kConfigs - 1) / kConfigs));
  return LEAKCORE_LAUNCH((tail_kernel<Ratios, kConfigs>), grid, kThreads, bytes, args.device.stream, x, t);
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
  if (const Status refused = guard.status(kKernel); !refused.ok()) return refused;
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
  if (const Status refused = guard.status(kKernel); !refused.ok()) return refused;
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
  error = carry_sums(args.sums, cells, args.device.stream);
  return cuda_status(error, kKernel);
}

}  // namespace leakcore
