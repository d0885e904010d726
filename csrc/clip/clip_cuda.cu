// clip_and_noise on CUDA. The gradients are read twice: a warp per row and segment of columns for the norms, then a
// thread per pack of columns, which adds its rows in order, as the CPU does. Where there are fewer columns than the
// device has threads, rows are cut into splits whose partial sums are added in order. Every cut follows from the sizes.
#include <vector>

#include "clip/clip.h"
#include "core/normal.h"
#include "core/rows.cuh"
#include "core/streams.h"

namespace leakcore {
namespace {

constexpr int64_t kSegment = 4096;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kUnrolled = 4;
constexpr int64_t kLeastSplit = 32;
constexpr int64_t kWantedThreads = 1 << 17;
constexpr double kMasked = -1.0;

// A parameter, the segments before its own, and where its columns stand in the joint gradient.
struct Param {
  Rows grads, sum, noise;
  int64_t first_segment, joint;
  int32_t aligned;
};

struct Job {
  const Param* params;
  int32_t num_params;
  int64_t runs, rows, segments, columns, splits, split_rows;
  double* squares;  // [runs][rows][segments]
  double* factors;  // [runs][rows]: kMasked where the row does not count
  double* partial;  // [runs][splits][columns], with more than one split
  double* norms;    // [runs][rows]
  const uint8_t* mask;
  int64_t mask_run_stride, mask_row_stride;
  double max_grad_norm, noise_scale;
  bool noise_given;
  uint64_t seed, first_run;
  uint32_t stream;
};

// The columns [first, first + count) of a parameter that a segment number means.
struct Segment {
  const Param* param;
  int64_t first, count;
};

__device__ Segment segment_of(const Job& job, int64_t number) {
  int32_t low = 0, high = job.num_params - 1;
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (job.params[middle].first_segment <= number) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const Param* param = job.params + low;
  const int64_t first = (number - param->first_segment) * kSegment, left = param->grads.numel - first;
  return {param, first, left < kSegment ? left : kSegment};
}

// Σ x² of a segment of a row, or Σ (scale·x)², the same in every lane.
template <class E, bool Scaled>
__device__ double segment_squares(const Segment& s, int64_t run, int64_t row, double scale) {
  const Rows& rows = s.param->grads;
  const int64_t offset = row_offset(rows, run, row), end = s.first + s.count;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  constexpr int kStep = kWarp * E::kPack;
  double acc[4] = {};
  for (int64_t column = s.first + lane * E::kPack; column < end; column += kUnrolled * kStep) {
    Packet<E> packs[kUnrolled];
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      packs[u] = load_packet<E>(rows, s.param->aligned != 0, offset, column + u * kStep, end);
    }
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
#pragma unroll
      for (int k = 0; k < E::kPack; ++k) {
        const double x = Scaled ? scale * packs[u].value(k) : packs[u].value(k);
        acc[k % 4] = madd(x, x, acc[k % 4]);
      }
    }
  }
  return warp_sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

template <class E>
__global__ void all_squares(Job job) {
  const int64_t items = job.runs * job.rows * job.segments;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; item < items; item += step) {
    const int64_t row = item / job.segments % job.rows, run = item / job.segments / job.rows;
    const double sum = segment_squares<E, false>(segment_of(job, item % job.segments), run, row, 1.0);
    if (threadIdx.x % kWarp == 0) job.squares[item] = sum;
  }
}

// Norms and clip factors, a warp per row.
template <class E>
__global__ void finish_norms(Job job) {
  const int64_t items = job.runs * job.rows;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; item < items; item += step) {
    const int64_t run = item / job.rows, row = item % job.rows;
    double sum = 0.0;
    for (int64_t s = lane; s < job.segments; s += kWarp) sum += job.squares[item * job.segments + s];
    sum = warp_sum(sum);
    const double scale = norm_scale(sum);
    if (scale != 1.0) {
      sum = 0.0;
      for (int64_t s = 0; s < job.segments; ++s) sum += segment_squares<E, true>(segment_of(job, s), run, row, scale);
    }
    if (lane == 0) {
      const double norm = root(sum) / scale;
      const bool kept = job.mask == nullptr || job.mask[run * job.mask_run_stride + row * job.mask_row_stride] != 0;
      job.norms[item] = norm;
      job.factors[item] = kept ? device_clip_factor(job.max_grad_norm, norm) : kMasked;
    }
  }
}

__device__ double one_of(const double* z, int k) {
  return k == 0 ? z[0] : k == 1 ? z[1] : k == 2 ? z[2] : z[3];
}

// The sums of up to N neighbouring columns of a parameter: noise added, rounded and stored.
template <int N>
struct Columns {
  double x[N];
};

// Not inlined, and arguments by value: it is long, and runs once where the loops before it run for every row.
template <int N>
__device__ __noinline__ void finish_columns(Job job, Param param, int64_t run, int64_t column, int64_t end,
                                            Columns<N> acc) {
  int64_t drawn = -1;
  double z[4] = {};
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if (column + k >= end) return;
    double sum = acc.x[k];
    if (job.noise_scale > 0.0 && job.noise_given) {
      const int64_t offset = row_offset(param.noise, run, 0) + column_offset(param.noise, column + k);
      sum += job.noise_scale * load_element(param.noise, offset);
    } else if (job.noise_scale > 0.0) {
      const int64_t draw = param.joint + column + k;
      if (draw / 4 != drawn) {
        drawn = draw / 4;
        const Words w =
            draw_words(job.seed, job.stream, job.first_run + static_cast<uint64_t>(run), static_cast<uint32_t>(drawn));
        box_muller(static_cast<uint64_t>(w.w[0]), static_cast<uint64_t>(w.w[1]), &z[0], &z[1]);
        box_muller(static_cast<uint64_t>(w.w[2]), static_cast<uint64_t>(w.w[3]), &z[2], &z[3]);
      }
      sum += job.noise_scale * one_of(z, static_cast<int>(draw % 4));
    }
    store_element(param.sum, row_offset(param.sum, run, 0) + column_offset(param.sum, column + k), sum);
  }
}

// A thread's pack of columns over the rows of one split, in order. Rows that do not count are not read.
template <class E>
__global__ void sum_rows(Job job) {
  constexpr int kBlock = kThreads * E::kPack;
  constexpr int64_t kBlocks = (kSegment + kBlock - 1) / kBlock;
  const int64_t items = job.runs * job.splits * job.segments * kBlocks;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const Segment s = segment_of(job, item / kBlocks % job.segments);
    const int64_t split = item / (kBlocks * job.segments) % job.splits;
    const int64_t run = item / (kBlocks * job.segments * job.splits);
    const int64_t column = s.first + item % kBlocks * kBlock + static_cast<int64_t>(threadIdx.x) * E::kPack;
    const int64_t end = s.first + s.count;
    if (column >= end) continue;
    const Rows& rows = s.param->grads;
    const double* factors = job.factors + run * job.rows;
    const int64_t last = (split + 1) * job.split_rows < job.rows ? (split + 1) * job.split_rows : job.rows;
    double acc[E::kPack] = {};
    for (int64_t row = split * job.split_rows; row < last; row += kUnrolled) {
      double factor[kUnrolled];
      Packet<E> packs[kUnrolled];
#pragma unroll
      for (int u = 0; u < kUnrolled; ++u) factor[u] = row + u < last ? factors[row + u] : kMasked;
#pragma unroll
      for (int u = 0; u < kUnrolled; ++u) {
        if (factor[u] != kMasked) {
          packs[u] = load_packet<E>(rows, s.param->aligned != 0, row_offset(rows, run, row + u), column, end);
        }
      }
#pragma unroll
      for (int u = 0; u < kUnrolled; ++u) {
        if (factor[u] != kMasked) {
#pragma unroll
          for (int k = 0; k < E::kPack; ++k) acc[k] = madd(packs[u].value(k), factor[u], acc[k]);
        }
      }
    }
    if (job.splits == 1) {
      Columns<E::kPack> done;
#pragma unroll
      for (int k = 0; k < E::kPack; ++k) done.x[k] = acc[k];
      finish_columns(job, *s.param, run, column, end, done);
      continue;
    }
    double* out = job.partial + (run * job.splits + split) * job.columns + s.param->joint;
#pragma unroll
    for (int k = 0; k < E::kPack; ++k) {
      if (column + k < end) out[column + k] = acc[k];
    }
  }
}

__global__ void add_splits(Job job) {
  constexpr int kPack = 4;
  constexpr int64_t kBlocks = kSegment / (kThreads * kPack);
  const int64_t items = job.runs * job.segments * kBlocks;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const Segment s = segment_of(job, item / kBlocks % job.segments);
    const int64_t run = item / (kBlocks * job.segments);
    const int64_t column = s.first + item % kBlocks * kThreads * kPack + static_cast<int64_t>(threadIdx.x) * kPack;
    const int64_t end = s.first + s.count;
    if (column >= end) continue;
    double acc[kPack] = {};
    const double* from = job.partial + run * job.splits * job.columns + s.param->joint + column;
    for (int64_t split = 0; split < job.splits; ++split) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        if (column + k < end) acc[k] += from[split * job.columns + k];
      }
    }
    Columns<kPack> done;
#pragma unroll
    for (int k = 0; k < kPack; ++k) done.x[k] = acc[k];
    finish_columns(job, *s.param, run, column, end, done);
  }
}

struct Layout {
  int64_t segments = 0, columns = 0, splits = 1, split_rows = 1;
  int64_t squares = 0, factors = 0, partial = 0, bytes = 0;  // offsets in the scratch, parameters first

  explicit Layout(const ClipArgs& args) {
    int64_t packs = 0;
    for (int32_t p = 0; p < args.num_params; ++p) {
      segments += (args.grads[p].numel + kSegment - 1) / kSegment;
      columns += args.grads[p].numel;
    }
    if (args.num_params > 0) packs = columns * element_size(args.grads[0].dtype) / 16;
    const int64_t threads = packs * args.num_runs > 0 ? packs * args.num_runs : 1;
    const int64_t wanted = kWantedThreads / threads, most = args.num_rows / kLeastSplit;
    splits = wanted < most ? wanted : most;
    if (splits < 1) splits = 1;
    split_rows = args.num_rows > splits ? (args.num_rows + splits - 1) / splits : 1;
    splits = args.num_rows > 0 ? (args.num_rows + split_rows - 1) / split_rows : 1;
    if (splits == 1) split_rows = args.num_rows > 0 ? args.num_rows : 1;
    const int64_t rows = args.num_runs * args.num_rows;
    squares = rounded(args.num_params * static_cast<int64_t>(sizeof(Param)));
    factors = squares + rounded(8 * rows * segments);
    partial = factors + rounded(8 * rows);
    bytes = partial + (splits > 1 ? rounded(8 * args.num_runs * splits * columns) : 0);
  }
  static int64_t rounded(int64_t size) { return (size + 255) / 256 * 256; }
};

}  // namespace

int64_t clip_and_noise_cuda_scratch(const ClipArgs& args) {
  return Layout(args).bytes;
}

Status clip_and_noise_cuda(const ClipArgs& args) {
  const char* kernel = "clip_and_noise";
  const Layout layout(args);
  if (args.num_params == 0 || args.num_runs == 0) return {};
  const DeviceGuard guard(args.device);
  if (guard.error() != cudaSuccess) return cuda_status(guard.error(), kernel);
  const cudaStream_t stream = static_cast<cudaStream_t>(args.device.stream);
  std::vector<Param> params;
  int64_t first_segment = 0, joint = 0;
  for (int32_t p = 0; p < args.num_params; ++p) {
    const Rows noise = args.noise != nullptr ? args.noise[p] : Rows{};
    params.push_back({args.grads[p], args.sum[p], noise, first_segment, joint, aligned_rows(args.grads[p]) ? 1 : 0});
    first_segment += (args.grads[p].numel + kSegment - 1) / kSegment;
    joint += args.grads[p].numel;
  }
  char* scratch = static_cast<char*>(args.scratch);
  cudaError_t error =
      cudaMemcpyAsync(scratch, params.data(), params.size() * sizeof(Param), cudaMemcpyHostToDevice, stream);
  if (error != cudaSuccess) return cuda_status(error, kernel);

  Job job{};
  job.params = reinterpret_cast<const Param*>(scratch);
  job.num_params = args.num_params;
  job.runs = args.num_runs;
  job.rows = args.num_rows;
  job.segments = layout.segments;
  job.columns = layout.columns;
  job.splits = layout.splits;
  job.split_rows = layout.split_rows;
  job.squares = reinterpret_cast<double*>(scratch + layout.squares);
  job.factors = reinterpret_cast<double*>(scratch + layout.factors);
  job.partial = reinterpret_cast<double*>(scratch + layout.partial);
  job.norms = args.norms;
  job.mask = args.mask;
  job.mask_run_stride = args.mask_run_stride;
  job.mask_row_stride = args.mask_row_stride;
  job.max_grad_norm = args.max_grad_norm;
  job.noise_scale = args.noise_scale;
  job.noise_given = args.noise != nullptr;
  job.seed = args.seed;
  job.first_run = args.first_run;
  job.stream = stream_word(Purpose::clip_noise, args.step);

  return with_element(args.grads[0].dtype, [&](auto element) -> Status {
    using E = decltype(element);
    const auto squares = &all_squares<E>;
    const auto norms = &finish_norms<E>;
    const auto sums = &sum_rows<E>;
    const int64_t rows = job.runs * job.rows;
    constexpr int64_t kBlock = kThreads * E::kPack, kBlocks = (kSegment + kBlock - 1) / kBlock;
    cudaError_t failed = cudaSuccess;
    if (rows * job.segments > 0) {
      failed = LEAKCORE_LAUNCH(squares, grid_for(rows * job.segments, kWarps), kThreads, 0, stream, job);
      if (failed != cudaSuccess) return cuda_status(failed, kernel);
    }
    if (rows > 0) {
      failed = LEAKCORE_LAUNCH(norms, grid_for(rows, kWarps), kThreads, 0, stream, job);
      if (failed != cudaSuccess) return cuda_status(failed, kernel);
    }
    if (job.segments == 0) return {};
    failed =
        LEAKCORE_LAUNCH(sums, grid_for(job.runs * job.splits * job.segments * kBlocks, 1), kThreads, 0, stream, job);
    if (failed != cudaSuccess) return cuda_status(failed, kernel);
    if (job.splits > 1) {
      constexpr int64_t kAddBlocks = kSegment / (kThreads * 4);
      failed = LEAKCORE_LAUNCH(add_splits, grid_for(job.runs * job.segments * kAddBlocks, 1), kThreads, 0, stream, job);
      if (failed != cudaSuccess) return cuda_status(failed, kernel);
    }
    return {};
  });
}

}  // namespace leakcore
