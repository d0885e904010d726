// What the kernels of clip_and_noise share: the job, columns by number, and how sums of columns are finished.
#pragma once

#include "clip/clip.h"
#include "core/products/rows.cuh"
#include "core/rng/normal.h"

namespace leakcore {
namespace {

constexpr int kThreads = 256;
constexpr double kMasked = -1.0;
constexpr int64_t kSegment = 4096;

// A parameter, the segments and packs before its own, and where its columns stand in the joint gradient.
struct Param {
  Rows grads, sum, noise;
  int64_t first_segment, first_pack, joint;
  int32_t aligned;
};

struct Job {
  const Param* params;
  int32_t num_params;
  int64_t runs, rows, segments, columns, splits, split_rows;
  double* squares;  // [runs][rows][segments]
  double* factors;  // [runs][rows]: kMasked where the row does not count
  double* partial;  // [runs][splits][columns]
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

__device__ double one_of(const double* z, int k) {
  return k == 0 ? z[0] : k == 1 ? z[1] : k == 2 ? z[2] : z[3];
}

// The sums of up to N neighbouring columns of a parameter: noise added, rounded and stored.
template <int N>
struct Columns {
  double x[N];
};

// Not inlined: it is long, and runs once where the loops before it run for every row. Its job is the kernel's own
// argument, a __grid_constant__: of a plain one every thread would first write a copy to its stack.
template <int N>
__device__ __noinline__ void finish_columns(const Job& job, const Param& param, int64_t run, int64_t column,
                                            int64_t end, Columns<N> acc) {
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

}  // namespace
}  // namespace leakcore
