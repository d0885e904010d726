// What both CUDA routes of label solving share: sums over a block of fixed shape, and the block's own columns of a
// problem.
#pragma once

#include "core/products/rows.cuh"
#include "solve_labels/normal_equations.h"

namespace leakcore {

constexpr int kSolveLabelsThreads = 128;
constexpr int kSolveLabelsWarps = kSolveLabelsThreads / kWarp;

// What becomes of a problem whose input is not finite: its rank says which input.
constexpr int64_t kRankOfBadJacobian = -1;
constexpr int64_t kRankOfBadGradient = -2;

// The sum over all threads, in every one of them.
__device__ inline double block_sum(double x, double* partial) {
  x = warp_sum(x);
  __syncthreads();  // the sums before have been read
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;
  __syncthreads();
  double sum = 0.0;
  for (int w = 0; w < kSolveLabelsWarps; ++w) sum += partial[w];
  return sum;
}

__device__ inline double block_max(double x, double* partial) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const double other = __shfl_xor_sync(kFullWarp, x, step);
    x = other > x ? other : x;
  }
  __syncthreads();
  if (threadIdx.x % kWarp == 0) partial[threadIdx.x / kWarp] = x;
  __syncthreads();
  double largest = partial[0];
  for (int w = 1; w < kSolveLabelsWarps; ++w) largest = partial[w] > largest ? partial[w] : largest;
  return largest;
}

LEAKCORE_HD double jacobian_entry(const Rows& rows, int64_t problem, int64_t sample, int64_t column) {
  return load_element(rows, row_offset(rows, problem, sample) + column_offset(rows, column));
}

// rest = b − C·e, and the squared lengths of it and of |C|·|e|.
__device__ inline void residual_of(const Rows& jacobian, int64_t problem, int64_t n, int64_t d, double scale,
                                   const double* b, const double* e, double* rest, double* partial, double* outside,
                                   double* spread) {
  double squares = 0.0, terms = 0.0;
  for (int64_t i = threadIdx.x; i < d; i += kSolveLabelsThreads) {
    double sum = 0.0, size = 0.0;
    for (int64_t r = 0; r < n; ++r) {
      const double x = jacobian_entry(jacobian, problem, r, i) * scale;
      sum = fma(x, e[r], sum);
      size = fma(fabs(x), fabs(e[r]), size);
    }
    rest[i] = b[i] - sum;
    squares = fma(rest[i], rest[i], squares);
    terms = fma(size, size, terms);
  }
  *outside = block_sum(squares, partial);
  *spread = block_sum(terms, partial);
}

}  // namespace leakcore
