// Rows that fit in a block's registers are read once: their norm first, then their clipped columns into the block's
// sums, while the next row is on its way. A block takes the rows of one split in order.
//
// Not timed on a device yet. A thread holds P packs of 16 bytes (32 in float64) twice and their sums in double: all of
// its 128 registers in float32 at P = 4, hence one block of 512 threads to a multiprocessor, which has 32 KiB in
// flight. Partial sums, of at most 128 splits a run, stay in the second-level cache.
#pragma once

#include "clip/job.cuh"

namespace leakcore {
namespace {

constexpr int kOnceThreads = 512;
constexpr int kOnceWarps = kOnceThreads / kWarp;
constexpr size_t kOnceShared = 3 * kOnceWarps * sizeof(double);
constexpr int64_t kLeastOncePacks = 128;  // of fewer columns a block of this size would be idle
constexpr int64_t kLeastOnceRows = 16;    // of a split, whose sums cost as much as four of them in float32
constexpr int64_t kMostOnceSplits = 128;

// Packs that one thread may hold: float64 takes twice the registers, 16 bits as many again for their sums.
template <class E>
LEAKCORE_HD constexpr int most_packs() {
  return sizeof(typename E::Raw) == 4 ? 4 : 2;
}

// A pack of neighbouring columns of a parameter; beyond the last pack, of none.
struct Place {
  const Param* param;
  int64_t column, end;
};

template <class E>
__device__ Place place_of(const Param* params, int32_t num_params, int64_t pack) {
  int32_t low = 0, high = num_params - 1;
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (params[middle].first_pack <= pack) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return {params + low, (pack - params[low].first_pack) * E::kPack, params[low].grads.numel};
}

// Not inlined: where columns do not lie aligned and in line, it is seldom the arithmetic that counts.
template <class E>
__device__ __noinline__ Packet<E> load_elsewhere(const Param* params, int32_t num_params, int64_t pack, int64_t run,
                                                 int64_t row) {
  const Place place = place_of<E>(params, num_params, pack);
  return load_packet<E>(place.param->grads, false, row_offset(place.param->grads, run, row), place.column, place.end);
}

// Where a thread finds its pack in the first row of a run: null where there is none, or only by load_elsewhere.
template <class E>
struct Source {
  const typename E::Raw* first;
  int64_t step;
  bool elsewhere;
};

template <class E>
__device__ Source<E> source_of(const Job& job, int64_t pack, int64_t run) {
  const Place place = place_of<E>(job.params, job.num_params, pack);
  if (place.column >= place.end) return {nullptr, 0, false};
  const Rows& rows = place.param->grads;
  if (place.param->aligned == 0 || place.column + E::kPack > place.end) return {nullptr, 0, true};
  return {static_cast<const typename E::Raw*>(rows.data) + row_offset(rows, run, 0) + place.column, rows.row_stride,
          false};
}

// The same sum in every thread, its shape fixed; `sums` is the block's own until everybody's next barrier but one.
__device__ inline double block_sum(double x, double* sums) {
  x = warp_sum(x);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = x;
  __syncthreads();
  double total = 0.0;
#pragma unroll
  for (int k = 0; k < kOnceWarps; ++k) total += sums[k];
  return total;
}

template <class E, int P>
__device__ double own_squares(const Packet<E>* packs, double scale) {
  double acc[P] = {};
#pragma unroll
  for (int p = 0; p < P; ++p) {
#pragma unroll
    for (int k = 0; k < E::kPack; ++k) {
      const double x = scale * packs[p].value(k);
      acc[p] = madd(x, x, acc[p]);
    }
  }
  double sum = acc[0];
#pragma unroll
  for (int p = 1; p < P; ++p) sum += acc[p];
  return sum;
}

template <class E, int P>
__device__ void load_row(const Job& job, const Source<E>* sources, int64_t run, int64_t row, Packet<E>* packs) {
#pragma unroll
  for (int p = 0; p < P; ++p) {
    const Source<E>& from = sources[p];
    if (from.first != nullptr) {
      packs[p] = load_aligned<E>(from.first + row * from.step);
    } else if (from.elsewhere) {
      packs[p] = load_elsewhere<E>(job.params, job.num_params, p * kOnceThreads + threadIdx.x, run, row);
    }
  }
}

// partial[run][split], and the norms of all rows.
template <class E, int P>
__global__ void __launch_bounds__(kOnceThreads) rows_once(const __grid_constant__ Job job) {
  LEAKCORE_DYNAMIC_SHARED(double, sums);
  for (int64_t item = blockIdx.x; item < job.runs * job.splits; item += gridDim.x) {
    const int64_t run = item / job.splits, begin = item % job.splits * job.split_rows;
    const int64_t end = begin + job.split_rows < job.rows ? begin + job.split_rows : job.rows;
    Source<E> sources[P];
    Packet<E> now[P], next[P] = {};
    double acc[P][E::kPack] = {};
#pragma unroll
    for (int p = 0; p < P; ++p) sources[p] = source_of<E>(job, p * kOnceThreads + threadIdx.x, run);
    load_row<E, P>(job, sources, run, begin, next);
    for (int64_t row = begin; row < end; ++row) {
#pragma unroll
      for (int p = 0; p < P; ++p) now[p] = next[p];
      if (row + 1 < end) load_row<E, P>(job, sources, run, row + 1, next);
      double sum = block_sum(own_squares<E, P>(now, 1.0), sums + row % 2 * kOnceWarps);
      const double scale = norm_scale_of<E>(sum);
      if (scale != 1.0) sum = block_sum(own_squares<E, P>(now, scale), sums + 2 * kOnceWarps);
      const double norm = root(sum) / scale;
      if (threadIdx.x == 0) job.norms[run * job.rows + row] = norm;
      if (job.mask != nullptr && job.mask[run * job.mask_run_stride + row * job.mask_row_stride] == 0) continue;
      const double factor = device_clip_factor(job.max_grad_norm, norm);
#pragma unroll
      for (int p = 0; p < P; ++p) {
#pragma unroll
        for (int k = 0; k < E::kPack; ++k) acc[p][k] = madd(now[p].value(k), factor, acc[p][k]);
      }
    }
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const Place place = place_of<E>(job.params, job.num_params, p * kOnceThreads + threadIdx.x);
      double* out = job.partial + item * job.columns + place.param->joint;
#pragma unroll
      for (int k = 0; k < E::kPack; ++k) {
        if (place.column + k < place.end) out[place.column + k] = acc[p][k];
      }
    }
    __syncthreads();  // the next item's first row may use the sums of this one's last
  }
}

}  // namespace
}  // namespace leakcore
