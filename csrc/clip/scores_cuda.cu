// clip_scores on CUDA, the gradients read once: a warp takes four rows of a segment of columns, so that an observation
// fetched from the cache serves all four; then a warp per row adds its segments.
#include "clip/clip.h"
#include "clip/clip_simd.h"
#include "core/products/rows.cuh"

namespace leakcore {
namespace {

constexpr int64_t kSegment = 4096;
// Warps do not cooperate; at 140 registers a thread (float32) more small blocks fit than large ones.
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kRows = 4;
constexpr int kObserved = 4;

struct Job {
  Rows grads, observed;
  bool grads_aligned, observed_aligned;
  int64_t runs, rows, num_observed, segments;
  double* squares;  // [runs][rows][segments]
  double* partial;  // [runs][rows][segments][num_observed]
  double* dots;     // [runs][num_observed][rows]
  double* norms;    // [runs][rows]
  double max_grad_norm;
};

template <int N>
struct Columns {
  double x[N];
};

// Any type and layout; not inlined, since it is long and rarely taken.
template <int N>
__device__ __noinline__ Columns<N> other_observed(const Rows& rows, int64_t offset, int64_t column, int64_t end) {
  Columns<N> out;
  for (int k = 0; k < N; ++k) {
    out.x[k] = column + k < end ? load_element(rows, offset + column_offset(rows, column + k)) : 0.0;
  }
  return out;
}

// N neighbouring columns of an observation, in a type known only at run time.
template <int N>
__device__ void load_observed(const Job& job, int64_t offset, int64_t column, int64_t end, double* out) {
  const Rows& rows = job.observed;
  if (rows.dtype == DType::f32 && job.observed_aligned && column + N <= end) {
    const float4* from = reinterpret_cast<const float4*>(static_cast<const float*>(rows.data) + offset + column);
#pragma unroll
    for (int k = 0; k < N / 4; ++k) {
      const float4 x = from[k];
      out[4 * k] = x.x;
      out[4 * k + 1] = x.y;
      out[4 * k + 2] = x.z;
      out[4 * k + 3] = x.w;
    }
    return;
  }
  const Columns<N> columns = other_observed<N>(rows, offset, column, end);
#pragma unroll
  for (int k = 0; k < N; ++k) out[k] = columns.x[k];
}

// Inner products of kRows rows from `row` with M observations from `first`, with Single in float32, kChain terms at a
// time; and, with first = 0, the squares.
template <class E, int M, bool Single>
__device__ void segment_dots(const Job& job, int64_t run, int64_t row, int64_t segment, int64_t first) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t begin = segment * kSegment;
  const int64_t end = begin + kSegment < job.grads.numel ? begin + kSegment : job.grads.numel;
  constexpr int kColumns = M > 0 ? M : 1;
  double acc[kRows][kColumns] = {};
  float chain[kRows][kColumns] = {};
  double squares[kRows] = {};
  int terms = 0;
  for (int64_t column = begin + lane * E::kPack; column < end; column += kWarp * E::kPack) {
    double x[kRows][E::kPack];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t here = row + r < job.rows ? row + r : job.rows - 1;
      const Packet<E> pack =
          load_packet<E>(job.grads, job.grads_aligned, row_offset(job.grads, run, here), column, end);
#pragma unroll
      for (int k = 0; k < E::kPack; ++k) {
        x[r][k] = pack.value(k);
        squares[r] = madd(x[r][k], x[r][k], squares[r]);
      }
    }
#pragma unroll
    for (int m = 0; m < M; ++m) {
      double o[E::kPack];
      load_observed<E::kPack>(job, row_offset(job.observed, run, first + m), column, end, o);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int k = 0; k < E::kPack; ++k) {
          if (Single) {
            chain[r][m] = madd(static_cast<float>(x[r][k]), static_cast<float>(o[k]), chain[r][m]);
          } else {
            acc[r][m] = madd(x[r][k], o[k], acc[r][m]);
          }
        }
      }
    }
    terms += E::kPack;
    if (Single && (terms >= kChain || column + kWarp * E::kPack >= end)) {
      terms = 0;
#pragma unroll
      for (int k = 0; k < kRows * M; ++k) {
        acc[k / kColumns][k % kColumns] += static_cast<double>(chain[k / kColumns][k % kColumns]);
        chain[k / kColumns][k % kColumns] = 0.0f;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t slot = (run * job.rows + row + r) * job.segments + segment;
    const double sum = warp_sum(squares[r]);
    const bool write = lane == 0 && row + r < job.rows;
    if (write && first == 0) job.squares[slot] = sum;
#pragma unroll
    for (int m = 0; m < M; ++m) {
      const double dot = warp_sum(acc[r][m]);
      if (write) job.partial[slot * job.num_observed + first + m] = dot;
    }
  }
}

// Neighbouring warps take neighbouring rows of one segment, whose observations they then share.
template <class E, bool Single>
__global__ void all_dots(const __grid_constant__ Job job) {
  const int64_t groups = (job.rows + kRows - 1) / kRows, items = job.runs * job.segments * groups;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; item < items; item += step) {
    const int64_t row = item % groups * kRows, segment = item / groups % job.segments;
    const int64_t run = item / groups / job.segments;
    int64_t m = 0;
    if (job.num_observed == 0) segment_dots<E, 0, Single>(job, run, row, segment, 0);
    for (; m + kObserved <= job.num_observed; m += kObserved)
      segment_dots<E, kObserved, Single>(job, run, row, segment, m);
    for (; m < job.num_observed; ++m) segment_dots<E, 1, Single>(job, run, row, segment, m);
  }
}

// add(pack, column, &sum) for every pack of a whole row, and the warp's sums added.
template <class E, class Add>
__device__ double row_sum(const Job& job, int64_t run, int64_t row, Add&& add) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  double sum = 0.0;
  for (int64_t c = lane * E::kPack; c < job.grads.numel; c += kWarp * E::kPack) {
    add(load_packet<E>(job.grads, job.grads_aligned, row_offset(job.grads, run, row), c, job.grads.numel), c, &sum);
  }
  return warp_sum(sum);
}

// Σ (scale·x)² of a whole row.
template <class E>
__device__ double row_squares(const Job& job, int64_t run, int64_t row, double scale) {
  return row_sum<E>(job, run, row, [&](const Packet<E>& pack, int64_t, double* sum) {
    for (int k = 0; k < E::kPack; ++k) {
      const double x = scale * pack.value(k);
      *sum = madd(x, x, *sum);
    }
  });
}

// A whole inner product in double: one that left the range of float32 on the way.
template <class E>
__device__ double row_dot(const Job& job, int64_t run, int64_t row, int64_t m) {
  return row_sum<E>(job, run, row, [&](const Packet<E>& pack, int64_t column, double* sum) {
    double o[E::kPack];
    load_observed<E::kPack>(job, row_offset(job.observed, run, m), column, job.grads.numel, o);
    for (int k = 0; k < E::kPack; ++k) *sum = madd(pack.value(k), o[k], *sum);
  });
}

template <class E, bool Single>
__global__ void finish_scores(const __grid_constant__ Job job) {
  const int64_t items = job.runs * job.rows;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; item < items; item += step) {
    const int64_t run = item / job.rows, row = item % job.rows;
    double sum = 0.0;
    for (int64_t s = lane; s < job.segments; s += kWarp) sum += job.squares[item * job.segments + s];
    sum = warp_sum(sum);
    const double scale = norm_scale_of<E>(sum);
    if (scale != 1.0) sum = row_squares<E>(job, run, row, scale);
    const double norm = root(sum) / scale;
    const double factor = device_clip_factor(job.max_grad_norm, norm);
    if (lane == 0) job.norms[item] = norm;
    for (int64_t m = 0; m < job.num_observed; ++m) {
      double dot = 0.0;
      for (int64_t s = lane; s < job.segments; s += kWarp) {
        dot += job.partial[(item * job.segments + s) * job.num_observed + m];
      }
      dot = warp_sum(dot);
      if (Single && !(dot - dot == 0.0)) dot = row_dot<E>(job, run, row, m);
      if (lane == 0) job.dots[(run * job.num_observed + m) * job.rows + row] = factor * dot;
    }
  }
}

int64_t segments_of(const ClipScoresArgs& args) {
  return (args.grads.numel + kSegment - 1) / kSegment;
}

}  // namespace

int64_t clip_scores_cuda_scratch(const ClipScoresArgs& args) {
  return 8 * args.num_runs * args.num_rows * segments_of(args) * (1 + args.num_observed);
}

Status clip_scores_cuda(const ClipScoresArgs& args) {
  const char* kernel = "clip_scores";
  const int64_t rows = args.num_runs * args.num_rows;
  if (rows == 0) return {};
  const DeviceGuard guard(args.device);
  if (const Status refused = guard.status(kernel); !refused.ok()) return refused;
  const cudaStream_t stream = static_cast<cudaStream_t>(args.device.stream);
  Job job{};
  job.grads = args.grads;
  job.observed = args.observed;
  job.grads_aligned = aligned_rows(args.grads);
  job.observed_aligned = aligned_rows(args.observed);
  job.runs = args.num_runs;
  job.rows = args.num_rows;
  job.num_observed = args.num_observed;
  job.segments = segments_of(args);
  job.squares = static_cast<double*>(args.scratch);
  job.partial = job.squares + rows * job.segments;
  job.dots = args.dots;
  job.norms = args.norms;
  job.max_grad_norm = args.max_grad_norm;
  return with_element(args.grads.dtype, [&](auto element) -> Status {
    using E = decltype(element);
    constexpr bool kNarrow = sizeof(typename E::Raw) < sizeof(double);
    const auto dots = args.float_products ? &all_dots<E, kNarrow> : &all_dots<E, false>;
    const auto finish = args.float_products ? &finish_scores<E, kNarrow> : &finish_scores<E, false>;
    const int64_t items = job.runs * job.segments * ((job.rows + kRows - 1) / kRows);
    if (items > 0) {
      const cudaError_t error = LEAKCORE_LAUNCH(dots, grid_for(items, kWarps), kThreads, 0, stream, job);
      if (error != cudaSuccess) return cuda_status(error, kernel);
    }
    const cudaError_t error = LEAKCORE_LAUNCH(finish, grid_for(rows, kWarps), kThreads, 0, stream, job);
    if (error != cudaSuccess) return cuda_status(error, kernel);
    return {};
  });
}

}  // namespace leakcore
