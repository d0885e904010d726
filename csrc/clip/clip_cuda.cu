// clip_and_noise on CUDA. Rows of a middling length are read once (single_pass.cuh), others twice: a warp per row and
// segment of columns for the norms, then a thread per pack of columns, which adds its rows in order, as the CPU does.
// Where that would leave most of a device idle, rows are cut into splits whose partial sums are added in order. Every
// cut follows from the sizes.
#include <vector>

#include "clip/job.cuh"
#include "clip/single_pass.cuh"
#include "core/rng/streams.h"

namespace leakcore {
namespace {

constexpr int kWarps = kThreads / kWarp;
constexpr int kUnrolled = 4;
constexpr int64_t kLeastSplit = 32;
constexpr int64_t kWantedThreads = 1 << 17;
constexpr int64_t kMostPartial = int64_t{64} << 20;

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
__global__ void all_squares(const __grid_constant__ Job job) {
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
__global__ void finish_norms(const __grid_constant__ Job job) {
  const int64_t items = job.runs * job.rows;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; item < items; item += step) {
    const int64_t run = item / job.rows, row = item % job.rows;
    double sum = 0.0;
    for (int64_t s = lane; s < job.segments; s += kWarp) sum += job.squares[item * job.segments + s];
    sum = warp_sum(sum);
    const double scale = norm_scale_of<E>(sum);
    if (scale != 1.0) {
      sum = 0.0;
      for (int64_t s = 0; s < job.segments; ++s) sum += segment_squares<E, true>(segment_of(job, s), run, row, scale);
    }
    if (lane == 0) {
      const double norm = root(sum) / scale;
      const bool counts = job.mask == nullptr || job.mask[run * job.mask_run_stride + row * job.mask_row_stride] != 0;
      job.norms[item] = norm;
      job.factors[item] = counts ? device_clip_factor(job.max_grad_norm, norm) : kMasked;
    }
  }
}

// A thread's pack of columns over the rows [begin, end), in order. Rows that do not count are not read.
template <class E, class Load>
__device__ __forceinline__ void sum_pack(const double* factors, int64_t begin, int64_t end, double* acc, Load&& load) {
  for (int64_t row = begin; row < end; row += kUnrolled) {
    double factor[kUnrolled];
    Packet<E> packs[kUnrolled] = {};
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) factor[u] = row + u < end ? factors[row + u] : kMasked;
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      if (factor[u] != kMasked) packs[u] = load(row + u);
    }
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) {
      if (factor[u] != kMasked) {
#pragma unroll
        for (int k = 0; k < E::kPack; ++k) acc[k] = madd(packs[u].value(k), factor[u], acc[k]);
      }
    }
  }
}

// Not inlined, so that its registers do not count where columns lie aligned and in line.
template <class E>
__device__ __noinline__ void sum_elsewhere(const Rows& rows, bool aligned, int64_t run, int64_t begin, int64_t last,
                                           int64_t column, int64_t end, const double* factors, double* out) {
  double acc[E::kPack] = {};
  sum_pack<E>(factors, begin, last, acc,
              [&](int64_t row) { return load_packet<E>(rows, aligned, row_offset(rows, run, row), column, end); });
#pragma unroll
  for (int k = 0; k < E::kPack; ++k) {
    if (column + k < end) out[k] = acc[k];
  }
}

// partial[run][split]. What is added to it, and where it goes, is another kernel's: their registers would cost this one
// the warps that it needs to keep the memory busy. kFinish: it is this one's, where the partial sums would be large.
template <class E, bool kFinish>
__global__ void __launch_bounds__(kThreads, 2) sum_rows(const __grid_constant__ Job job) {
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
    const int64_t begin = split * job.split_rows;
    const int64_t last = begin + job.split_rows < job.rows ? begin + job.split_rows : job.rows;
    Columns<E::kPack> done = {};
    double* out = kFinish ? done.x : job.partial + (run * job.splits + split) * job.columns + s.param->joint + column;
    if (s.param->aligned == 0 || column + E::kPack > end) {
      sum_elsewhere<E>(rows, s.param->aligned != 0, run, begin, last, column, end, factors, out);
      if (kFinish) finish_columns(job, *s.param, run, column, end, done);
      continue;
    }
    const typename E::Raw* from = static_cast<const typename E::Raw*>(rows.data) + row_offset(rows, run, 0) + column;
    const int64_t step = rows.row_stride;
    double acc[E::kPack] = {};
    sum_pack<E>(factors, begin, last, acc, [&](int64_t row) { return load_aligned<E>(from + row * step); });
#pragma unroll
    for (int k = 0; k < E::kPack; ++k) out[k] = acc[k];
    if (kFinish) finish_columns(job, *s.param, run, column, end, done);
  }
}

// A thread takes four columns and all splits, few as they are.
__global__ void add_few_splits(const __grid_constant__ Job job) {
  constexpr int kPack = 4;
  constexpr int64_t kBlocks = kSegment / (kThreads * kPack);
  const int64_t items = job.runs * job.segments * kBlocks;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const Segment s = segment_of(job, item / kBlocks % job.segments);
    const int64_t run = item / (kBlocks * job.segments);
    const int64_t column = s.first + item % kBlocks * kThreads * kPack + static_cast<int64_t>(threadIdx.x) * kPack;
    const int64_t end = s.first + s.count;
    if (column >= end) continue;
    Columns<kPack> done = {};
    const double* from = job.partial + run * job.splits * job.columns + s.param->joint + column;
    for (int64_t split = 0; split < job.splits; ++split) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        if (column + k < end) done.x[k] += from[split * job.columns + k];
      }
    }
    finish_columns(job, *s.param, run, column, end, done);
  }
}

// A block takes 32 columns, each warp every eighth split: many blocks, however few the columns, and coalesced loads.
__global__ void __launch_bounds__(kThreads) add_many_splits(const __grid_constant__ Job job) {
  LEAKCORE_DYNAMIC_SHARED(double, parts);  // [kWarps][kWarp]
  constexpr int64_t kBlocks = kSegment / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t items = job.runs * job.segments * kBlocks;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const Segment s = segment_of(job, item / kBlocks % job.segments);
    const int64_t run = item / (kBlocks * job.segments);
    const int64_t column = s.first + item % kBlocks * kWarp + lane, end = s.first + s.count;
    double sum = 0.0;
    if (column < end) {
      const double* from = job.partial + run * job.splits * job.columns + s.param->joint + column;
#pragma unroll 4
      for (int64_t split = warp; split < job.splits; split += kWarps) sum += from[split * job.columns];
    }
    parts[warp * kWarp + lane] = sum;
    __syncthreads();
    if (warp == 0 && column < end) {
      Columns<1> done;
      done.x[0] = parts[lane];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) done.x[0] += parts[w * kWarp + lane];
      finish_columns(job, *s.param, run, column, end, done);
    }
    __syncthreads();
  }
}

struct Layout {
  int64_t segments = 0, columns = 0, splits = 1, split_rows = 1;
  bool finish = false;                                       // columns are finished by the kernel that sums them
  int once = 0;                                              // packs a thread holds where rows are read once; 0: twice
  int64_t squares = 0, factors = 0, partial = 0, bytes = 0;  // offsets in the scratch, parameters first

  explicit Layout(const ClipArgs& args) {
    int64_t packs = 0;
    for (int32_t p = 0; p < args.num_params; ++p) {
      segments += (args.grads[p].numel + kSegment - 1) / kSegment;
      columns += args.grads[p].numel;
      packs += packs_of(args.grads[p]);
    }
    const int64_t rows = args.num_runs * args.num_rows;
    if (args.num_params > 0 && packs >= kLeastOncePacks && rows > 0) {
      const int most = with_element(args.grads[0].dtype, [](auto e) { return most_packs<decltype(e)>(); });
      for (int size = 1; once == 0 && size <= most; size *= 2) once = packs <= size * kOnceThreads ? size : 0;
    }
    const int64_t threads = packs * args.num_runs > 0 ? packs * args.num_runs : 1;
    const int64_t wanted = once > 0 ? kMostOnceSplits : kWantedThreads / threads;
    const int64_t most = args.num_rows / (once > 0 ? kLeastOnceRows : kLeastSplit);
    splits = wanted < most ? wanted : most;
    if (splits < 1) splits = 1;
    split_rows = args.num_rows > splits ? (args.num_rows + splits - 1) / splits : 1;
    splits = args.num_rows > 0 ? (args.num_rows + split_rows - 1) / split_rows : 1;
    if (splits == 1) split_rows = args.num_rows > 0 ? args.num_rows : 1;
    squares = rounded(args.num_params * static_cast<int64_t>(sizeof(Param)));
    factors = squares + (once > 0 ? 0 : rounded(8 * rows * segments));
    partial = factors + (once > 0 ? 0 : rounded(8 * rows));
    const int64_t sums = rounded(8 * args.num_runs * splits * columns);
    finish = once == 0 && splits == 1 && sums > kMostPartial;
    bytes = partial + (finish ? 0 : sums);
  }
  static int64_t rounded(int64_t size) { return (size + 255) / 256 * 256; }
  static int64_t packs_of(const Rows& rows) {
    const int64_t pack = rows.dtype == DType::f16 || rows.dtype == DType::bf16 ? 8 : 4;
    return (rows.numel + pack - 1) / pack;
  }
};

template <class E>
cudaError_t launch_once(const Job& job, int packs, cudaStream_t stream) {
  const unsigned grid = grid_for(job.runs * job.splits, 1);
  const auto one = &rows_once<E, 1>;
  const auto two = &rows_once<E, 2>;
  const auto all = &rows_once<E, most_packs<E>()>;
  if (packs == 1) return LEAKCORE_LAUNCH(one, grid, kOnceThreads, kOnceShared, stream, job);
  if (packs == 2) return LEAKCORE_LAUNCH(two, grid, kOnceThreads, kOnceShared, stream, job);
  return LEAKCORE_LAUNCH(all, grid, kOnceThreads, kOnceShared, stream, job);
}

}  // namespace

int64_t clip_and_noise_cuda_scratch(const ClipArgs& args) {
  return Layout(args).bytes;
}

Status clip_and_noise_cuda(const ClipArgs& args) {
  const char* kernel = "clip_and_noise";
  const Layout layout(args);
  if (args.num_params == 0 || args.num_runs == 0) return {};
  const DeviceGuard guard(args.device);
  if (const Status refused = guard.status(kernel); !refused.ok()) return refused;
  const cudaStream_t stream = static_cast<cudaStream_t>(args.device.stream);
  std::vector<Param> params;
  int64_t first_segment = 0, first_pack = 0, joint = 0;
  for (int32_t p = 0; p < args.num_params; ++p) {
    const Rows noise = args.noise != nullptr ? args.noise[p] : Rows{};
    params.push_back(
        {args.grads[p], args.sum[p], noise, first_segment, first_pack, joint, aligned_rows(args.grads[p]) ? 1 : 0});
    first_segment += (args.grads[p].numel + kSegment - 1) / kSegment;
    first_pack += Layout::packs_of(args.grads[p]);
    joint += args.grads[p].numel;
  }
  char* scratch = static_cast<char*>(args.scratch);
  const cudaError_t error = send_table(scratch, params.data(), params.size() * sizeof(Param), stream);
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
    const auto sums = layout.finish ? &sum_rows<E, true> : &sum_rows<E, false>;
    const int64_t rows = job.runs * job.rows;
    constexpr int64_t kBlock = kThreads * E::kPack, kBlocks = (kSegment + kBlock - 1) / kBlock;
    cudaError_t failed = cudaSuccess;
    if (layout.once > 0) {
      failed = launch_once<E>(job, layout.once, stream);
      if (failed != cudaSuccess) return cuda_status(failed, kernel);
    }
    if (layout.once == 0 && rows * job.segments > 0) {
      failed = LEAKCORE_LAUNCH(squares, grid_for(rows * job.segments, kWarps), kThreads, 0, stream, job);
      if (failed != cudaSuccess) return cuda_status(failed, kernel);
    }
    if (layout.once == 0 && rows > 0) {
      failed = LEAKCORE_LAUNCH(norms, grid_for(rows, kWarps), kThreads, 0, stream, job);
      if (failed != cudaSuccess) return cuda_status(failed, kernel);
    }
    if (job.segments == 0) return {};
    if (layout.once == 0) {
      failed =
          LEAKCORE_LAUNCH(sums, grid_for(job.runs * job.splits * job.segments * kBlocks, 1), kThreads, 0, stream, job);
      if (failed != cudaSuccess) return cuda_status(failed, kernel);
    }
    if (layout.finish) return {};
    const bool few = job.splits <= kWarps;
    const int64_t blocks = job.runs * job.segments * (kSegment / (few ? kThreads * 4 : kWarp));
    failed =
        few ? LEAKCORE_LAUNCH(add_few_splits, grid_for(blocks, 1), kThreads, 0, stream, job)
            : LEAKCORE_LAUNCH(add_many_splits, grid_for(blocks, 1), kThreads, kThreads * sizeof(double), stream, job);
    if (failed != cudaSuccess) return cuda_status(failed, kernel);
    return {};
  });
}

}  // namespace leakcore
