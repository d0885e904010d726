// Corrected normal equations on CUDA, a block per problem: the steps of normal_equations_cpu.cpp. The triangle lies
// packed by rows, in shared memory where it fits.
#pragma once

#include "solve_labels/block.cuh"

namespace leakcore {

constexpr int kGramTile = 4;      // samples by samples per thread
constexpr int kGramColumns = 16;  // columns of C in shared memory at a time

LEAKCORE_HD int64_t triangle(int64_t rows) {
  return rows * (rows + 1) / 2;
}

// Where a block keeps its numbers. stage: null where C is read from memory as it is.
struct NormalSpace {
  double* g;        // [triangle(n)]
  double* stage;    // [kGramColumns][padded n]
  double* vectors;  // kNormalVectors of n
  double* b;        // [d]
  double* rest;     // [d]
  double* partial;  // [kSolveLabelsWarps], shared
};

constexpr int kNormalVectors = 6;

// g = lower triangle of CᵀC: tiles of 4 × 4 pairs of samples, in order of columns.
__device__ inline void gram(const Rows& c, int64_t problem, int64_t n, int64_t d, const NormalSpace& at) {
  const int64_t groups = (n + kGramTile - 1) / kGramTile, padded = groups * kGramTile, tiles = triangle(groups);
  for (int64_t start = 0; start < tiles; start += kSolveLabelsThreads) {
    const int64_t tile = start + threadIdx.x;
    int64_t high = 0, low = 0;
    if (tile < tiles) {
      while (triangle(high + 1) <= tile) ++high;
      low = tile - triangle(high);
    }
    double sum[kGramTile][kGramTile] = {};
    for (int64_t first = 0; first < d; first += kGramColumns) {
      const int64_t here = d - first < kGramColumns ? d - first : kGramColumns;
      if (at.stage != nullptr) {
        __syncthreads();
        for (int64_t i = threadIdx.x; i < padded * kGramColumns; i += kSolveLabelsThreads) {
          const int64_t column = i % kGramColumns, sample = i / kGramColumns;
          const bool inside = column < here && sample < n;
          at.stage[column * padded + sample] = inside ? jacobian_entry(c, problem, sample, first + column) : 0.0;
        }
        __syncthreads();
      }
      if (tile >= tiles) continue;
      for (int64_t column = 0; column < here; ++column) {
        double x[kGramTile], y[kGramTile];
        for (int k = 0; k < kGramTile; ++k) {
          const int64_t p = high * kGramTile + k, q = low * kGramTile + k;
          if (at.stage != nullptr) {
            x[k] = at.stage[column * padded + p];
            y[k] = at.stage[column * padded + q];
          } else {
            x[k] = p < n ? jacobian_entry(c, problem, p, first + column) : 0.0;
            y[k] = q < n ? jacobian_entry(c, problem, q, first + column) : 0.0;
          }
        }
        for (int k = 0; k < kGramTile; ++k) {
          for (int l = 0; l < kGramTile; ++l) sum[k][l] = fma(x[k], y[l], sum[k][l]);
        }
      }
    }
    if (tile >= tiles) continue;
    for (int k = 0; k < kGramTile; ++k) {
      for (int l = 0; l < kGramTile; ++l) {
        const int64_t p = high * kGramTile + k, q = low * kGramTile + l;
        if (p < n && q <= p) at.g[triangle(p) + q] = sum[k][l];
      }
    }
  }
  __syncthreads();
}

// g becomes its Cholesky factor L; false where a pivot is too small a share of its square.
__device__ inline bool cholesky(double* g, int64_t n, const double* squares) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int64_t j = 0; j < n; ++j) {
    const double pivot = g[triangle(j) + j];
    if (!(pivot > kSmallPivot * squares[j])) return false;  // the same number in every thread
    const double root_of_pivot = sqrt(pivot);
    __syncthreads();
    for (int64_t i = j + threadIdx.x; i < n; i += kSolveLabelsThreads) {
      g[triangle(i) + j] = i == j ? root_of_pivot : g[triangle(i) + j] / root_of_pivot;
    }
    __syncthreads();
    for (int64_t i = j + 1 + warp; i < n; i += kSolveLabelsWarps) {
      const double factor = g[triangle(i) + j];
      for (int64_t k = j + 1 + lane; k <= i; k += kWarp) {
        g[triangle(i) + k] = fma(-factor, g[triangle(k) + j], g[triangle(i) + k]);
      }
    }
    __syncthreads();
  }
  return true;
}

// L becomes its inverse M, row by row; `row` keeps the row of L that is being replaced.
__device__ inline void invert(double* g, int64_t n, double* row) {
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = threadIdx.x; j <= i; j += kSolveLabelsThreads) row[j] = g[triangle(i) + j];
    __syncthreads();
    const double reciprocal = 1.0 / row[i];
    for (int64_t j = threadIdx.x; j <= i; j += kSolveLabelsThreads) {
      double sum = 0.0;
      for (int64_t k = j; k < i; ++k) sum = fma(row[k], g[triangle(k) + j], sum);
      g[triangle(i) + j] = j == i ? reciprocal : -sum * reciprocal;
    }
    __syncthreads();
  }
}

// out = Cᵀ·x, a warp per sample.
__device__ inline void project(const Rows& c, int64_t problem, int64_t n, int64_t d, const double* x, double* out) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int64_t r = warp; r < n; r += kSolveLabelsWarps) {
    double sum = 0.0;
    for (int64_t i = lane; i < d; i += kWarp) sum = fma(jacobian_entry(c, problem, r, i), x[i], sum);
    sum = warp_sum(sum);
    if (lane == 0) out[r] = sum;
  }
  __syncthreads();
}

// out = Mᵀ·M·s, and ‖M·s‖.
__device__ inline double apply(const double* m, int64_t n, const double* s, double* work, double* out,
                               double* partial) {
  double squares = 0.0;
  for (int64_t i = threadIdx.x; i < n; i += kSolveLabelsThreads) {
    double sum = 0.0;
    for (int64_t j = 0; j <= i; ++j) sum = fma(m[triangle(i) + j], s[j], sum);
    work[i] = sum;
    squares = fma(sum, sum, squares);
  }
  const double length = sqrt(block_sum(squares, partial));
  for (int64_t j = threadIdx.x; j < n; j += kSolveLabelsThreads) {
    double sum = 0.0;
    for (int64_t i = j; i < n; ++i) sum = fma(m[triangle(i) + j], work[i], sum);
    out[j] = sum;
  }
  __syncthreads();
  return length;
}

// False, with nothing that counts written, where the other route must solve: the same answer in every thread.
__device__ inline bool solve_normal(const SolveLabelsArgs& args, int64_t problem, const NormalSpace& at) {
  const int64_t n = args.num_samples, d = args.jacobian.numel, outputs = args.num_outputs;
  const double count = static_cast<double>(n), length = static_cast<double>(d);
  double *squares = at.vectors, *leverage = squares + n, *s = leverage + n, *work = s + n, *e = work + n, *step = e + n;
  gram(args.jacobian, problem, n, d, at);
  double total = 0.0, outside_range = 0.0;
  for (int64_t r = threadIdx.x; r < n; r += kSolveLabelsThreads) {
    squares[r] = at.g[triangle(r) + r];
    if (!(squares[r] >= 1.0 / kSquareRange && squares[r] <= kSquareRange)) outside_range = 1.0;
    total += squares[r];
  }
  total = block_sum(total, at.partial);
  if (block_sum(outside_range, at.partial) != 0.0) return false;
  if (!cholesky(at.g, n, squares)) return false;
  invert(at.g, n, work);
  double inverse = 0.0, inflation = 0.0;
  for (int64_t r = threadIdx.x; r < n; r += kSolveLabelsThreads) {
    double sum = 0.0;
    for (int64_t i = r; i < n; ++i) sum = fma(at.g[triangle(i) + r], at.g[triangle(i) + r], sum);
    leverage[r] = sum;
    inverse += sum;
    inflation = fma(squares[r], sum, inflation);
  }
  inverse = block_sum(inverse, at.partial);
  inflation = block_sum(inflation, at.partial);
  if (!normal_accepted(count, length, inflation, total * inverse, args.rcond)) return false;

  for (int64_t o = 0; o < outputs; ++o) {
    double largest = 0.0, bad = 0.0;
    for (int64_t i = threadIdx.x; i < d; i += kSolveLabelsThreads) {
      at.b[i] = count * jacobian_entry(args.gradient, problem, o, i);
      largest = fmax(largest, fabs(at.b[i]));
      if (!(fabs(at.b[i]) <= kSquareRange)) bad = 1.0;
    }
    largest = block_max(largest, at.partial);
    if (block_sum(bad, at.partial) != 0.0 || (largest > 0.0 && largest < 1.0 / kSquareRange)) return false;
    project(args.jacobian, problem, n, d, at.b, s);
    double last = apply(at.g, n, s, work, e, at.partial), outside = 0.0, spread = 0.0;
    for (int correction = 0; correction < kMostCorrections; ++correction) {
      residual_of(args.jacobian, problem, n, d, 1.0, at.b, e, at.rest, at.partial, &outside, &spread);
      project(args.jacobian, problem, n, d, at.rest, s);
      last = apply(at.g, n, s, work, step, at.partial);
      for (int64_t r = threadIdx.x; r < n; r += kSolveLabelsThreads) e[r] += step[r];
      __syncthreads();
      outside = sqrt(outside);
      spread = sqrt(spread);
      if (!correct_again(count, length, inflation, spread, outside, last)) break;
    }
    const double scale =
        normal_error(count, length, inflation, input_error(count, args.unit), spread, outside, last) + args.lost;
    for (int64_t r = threadIdx.x; r < n; r += kSolveLabelsThreads) {
      const int64_t to = (problem * n + r) * outputs + o;
      args.residual[to] = e[r];
      args.error[to] = shown_error(e[r], sqrt(leverage[r]) * scale + args.unit * fabs(e[r]), args.largest);
    }
    __syncthreads();
  }
  for (int64_t r = threadIdx.x; r < n; r += kSolveLabelsThreads) {
    args.leverage[problem * n + r] = leverage[r];
    args.identifiable[problem * n + r] = 1;
  }
  if (threadIdx.x == 0) args.rank[problem] = n;
  return true;
}

}  // namespace leakcore
