// The mixture on CUDA: a thread takes one sample through all steps, for a few configurations at a time. Arithmetic is
// core/elementary.h's and steps.h's in the order of mixture_simd.cpp, so ratios equal those of the CPU's tiers with
// fused multiply-add bit for bit, and with them counts and exact sums.
//
// Per sample and step, in float32: about 15 integer operations for Philox, 27 for the normal, 17 for the factor.
#include "core/launch.cuh"
#include "core/normal.h"
#include "core/streams.h"
#include "mixture/mixture.h"
#include "mixture/plan.h"
#include "mixture/steps.h"

namespace leakcore {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxBlocks = 16384;  // beyond it, threads take several samples
constexpr int kTailBlocks = 1056;      // each of which adds its sums to the total once
// Per configuration and threshold, in shared memory: a count and the digits of one sum.
constexpr int kCell = 1 + kSumDigits;

struct Samples {
  uint64_t seed;
  uint64_t first;
  int64_t count;
  bool alternative;
  int64_t configs, groups;
  const Group* table;  // [configs][groups]
};

// L of one sample under configurations [config, config + kConfigs), as many as there are.
template <int kConfigs>
__device__ void log_ratios(const Samples& x, uint64_t sample, int64_t config, double* total) {
  double product[kConfigs];
  for (int c = 0; c < kConfigs; ++c) total[c] = product[c] = 0.0;
  for (int64_t k = 0; k < x.groups; ++k) {
    bool wide = false, narrow = false;
    for (int c = 0; c < kConfigs; ++c) {
      if (config + c >= x.configs) continue;
      const Form form = x.table[(config + c) * x.groups + k].form;
      narrow = narrow || form == Form::quick;
      wide = wide || (form != Form::quick && form != Form::idle);
    }
    if (!wide && !narrow) continue;
    const int steps = x.table[config * x.groups + k].steps;
    const uint32_t block = static_cast<uint32_t>(k);
    const Words word = draw_words(x.seed, stream_word(Purpose::mixture, x.alternative), sample, block);
    Words picks = {}, low = {};
    bool have_low = false;
    if (x.alternative) picks = draw_words(x.seed, stream_word(Purpose::mixture_pick, 0), sample, block);
    float z32[kGroup];
    double z[kGroup];
    if (narrow) {
      box_muller_float(word.w[0], word.w[1], &z32[0], &z32[1]);
      if (steps > 2) box_muller_float(word.w[2], word.w[3], &z32[2], &z32[3]);
    }
    if (wide) {
      box_muller(static_cast<uint64_t>(word.w[0]), static_cast<uint64_t>(word.w[1]), &z[0], &z[1]);
      if (steps > 2) box_muller(static_cast<uint64_t>(word.w[2]), static_cast<uint64_t>(word.w[3]), &z[2], &z[3]);
    }
#pragma unroll
    for (int c = 0; c < kConfigs; ++c) {
      if (config + c >= x.configs) continue;
      const Group& g = x.table[(config + c) * x.groups + k];
      if (g.form == Form::idle) continue;
      bool picked[kGroup] = {};
      if (x.alternative) {
#pragma unroll
        for (int s = 0; s < kGroup; ++s) {
          picked[s] = picks.w[s] < g.pick_high[s];
          if (picks.w[s] == g.pick_high[s]) {  // once in 2^32 draws
            if (!have_low) low = draw_words(x.seed, stream_word(Purpose::mixture_pick, 1), sample, block);
            have_low = true;
            picked[s] = low.w[s] < g.pick_low[s];
          }
        }
      }
      if (g.form == Form::quick) {
        float p = 0.0f;
#pragma unroll
        for (int s = 0; s < kGroup; ++s) {
          if (s >= steps) break;
          const float u =
              mixture_excess_float(madd(z32[s], g.slope32[s], picked[s] ? g.lifted32[s] : g.offset32[s]), g.q32[s]);
          p = s == 0 ? u : mixture_times(p, u);
        }
        if (g.first && g.last) {
          total[c] += static_cast<double>(log1p_float(p));
          continue;
        }
        const double wide_p = static_cast<double>(p);
        product[c] = g.first ? wide_p : mixture_times(product[c], wide_p);
        if (g.last) total[c] += log1p_safe(product[c]);
        continue;
      }
      if (g.form == Form::careful) {
        for (int s = 0; s < steps; ++s) {
          if (g.q[s] != 0.0) total[c] += careful_term(g, s, z[s], picked[s]);
        }
        continue;
      }
#pragma unroll
      for (int s = 0; s < kGroup; ++s) {
        if (s >= steps) break;
        const double y = madd(z[s], g.slope[s], picked[s] ? g.lifted[s] : g.offset[s]);
        const bool start = s == 0 && g.first;
        if (g.form == Form::linear) {
          total[c] += y;
        } else if (g.form == Form::sparse) {
          const double u = mixture_excess(y, g.q[s]);
          product[c] = start ? u : mixture_times(product[c], u);
        } else {
          const double f = mixture_factor(y, g.q[s]);
          product[c] = start ? f : product[c] * f;
        }
      }
      if (g.last && g.form == Form::sparse) total[c] += log1p_safe(product[c]);
      if (g.last && g.form == Form::dense) total[c] += log_positive(product[c]);
    }
  }
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

template <int kConfigs>
__global__ void __launch_bounds__(kThreads) tail_kernel(Samples x, TailSums t) {
  LEAKCORE_DYNAMIC_SHARED(uint64_t, cells);  // [kConfigs][thresholds][kCell]
  const int64_t config = static_cast<int64_t>(blockIdx.y) * kConfigs;
  const int64_t per_config = t.count * kCell;
  if (t.shared) {
    for (int64_t i = threadIdx.x; i < kConfigs * per_config; i += blockDim.x) cells[i] = 0;
  }
  __syncthreads();
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < x.count; i += step) {
    double total[kConfigs];
    log_ratios<kConfigs>(x, x.first + static_cast<uint64_t>(i), config, total);
    for (int c = 0; c < kConfigs; ++c) {
      if (config + c < x.configs) tally(t, total[c], config + c, cells + c * per_config);
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

template <int kConfigs, class T>
cudaError_t launch_log_ratio(const MixtureLogRatioArgs& args, const Samples& x) {
  const dim3 grid(blocks_for(x.count, kMaxBlocks), static_cast<unsigned>((x.configs + kConfigs - 1) / kConfigs));
  return LEAKCORE_LAUNCH((log_ratio_kernel<kConfigs, T>), grid, kThreads, 0, args.device.stream, x,
                         static_cast<T*>(args.out), args.config_stride);
}

template <int kConfigs>
cudaError_t launch_tail(const MixtureTailArgs& args, const Samples& x, TailSums t) {
  const int64_t bytes = kConfigs * t.count * kCell * static_cast<int64_t>(sizeof(uint64_t));
  t.shared = bytes <= static_cast<int64_t>(kPlainSharedBytes);
  const dim3 grid(blocks_for(x.count, kTailBlocks), static_cast<unsigned>((x.configs + kConfigs - 1) / kConfigs));
  return LEAKCORE_LAUNCH(tail_kernel<kConfigs>, grid, kThreads, t.shared ? bytes : 0, args.device.stream, x, t);
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
  error = args.configs == 1 ? launch_tail<1>(args, x, t) : launch_tail<4>(args, x, t);
  if (error != cudaSuccess) return cuda_status(error, kKernel);
  error = LEAKCORE_LAUNCH(carry_kernel, static_cast<unsigned>((cells * kTailSums + kThreads - 1) / kThreads), kThreads,
                          0, args.device.stream, args.sums, cells * kTailSums);
  return cuda_status(error, kKernel);
}

}  // namespace leakcore
