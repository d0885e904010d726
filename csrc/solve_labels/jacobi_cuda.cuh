// The route for every problem that normal equations may not solve: a one-sided Jacobi singular value decomposition
// (Hestenes 1958; Demmel and Veselić 1992), a block per problem. A·V = U·S with orthogonal columns: rank, null space,
// leverages and solution follow, whatever the shape and rank of C.
#pragma once

#include "solve_labels/block.cuh"

namespace leakcore {

constexpr int kMostSweeps = 60;

// In global memory. Columns of a and v are contiguous: column r of a is sample r's.
struct JacobiSpace {
  double* a;        // [n][d]
  double* v;        // [n][n]
  double* vectors;  // kJacobiVectors of n
  double* b;        // [d]
  double* rest;     // [d]
  double* partial;  // [kSolveLabelsWarps], shared
  int* rotated;     // shared
};

constexpr int kJacobiVectors = 6;

__device__ inline double warp_dot(const double* x, const double* y, int64_t count) {
  double sum = 0.0;
  for (int64_t i = threadIdx.x % kWarp; i < count; i += kWarp) sum = fma(x[i], y[i], sum);
  return warp_sum(sum);
}

__device__ inline void warp_rotate(double* x, double* y, int64_t count, double cosine, double sine) {
  for (int64_t i = threadIdx.x % kWarp; i < count; i += kWarp) {
    const double p = x[i], q = y[i];
    x[i] = cosine * p - sine * q;
    y[i] = sine * p + cosine * q;
  }
}

// Columns whose length is rounding compared with the whole matrix are null: they are left as they are.
__device__ inline void orthogonalise(const JacobiSpace& at, int64_t n, int64_t d, double norm) {
  const int warp = threadIdx.x / kWarp;
  const int64_t players = n + n % 2;
  const double null = 4.0 * kUnitRoundoff * norm, tolerance = kUnitRoundoff * (8.0 + sqrt(static_cast<double>(d)));
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    __syncthreads();
    if (threadIdx.x == 0) *at.rotated = 0;
    __syncthreads();
    for (int64_t round = 0; round < players - 1; ++round) {
      // A round-robin tournament: every pair meets once, and a round's pairs are disjoint.
      for (int64_t k = warp; k < players / 2; k += kSolveLabelsWarps) {
        int64_t p = k == 0 ? players - 1 : (round + k) % (players - 1);
        int64_t q = k == 0 ? round : (round + players - 1 - k) % (players - 1);
        if (p > q) {
          const int64_t other = p;
          p = q;
          q = other;
        }
        if (q >= n) continue;  // a bye
        double *x = at.a + p * d, *y = at.a + q * d;
        const double alpha = warp_dot(x, x, d), beta = warp_dot(y, y, d), gamma = warp_dot(x, y, d);
        const double shorter = sqrt(fmin(alpha, beta));
        if (!(shorter > null) || fabs(gamma) <= tolerance * sqrt(alpha) * sqrt(beta)) continue;
        const double zeta = (beta - alpha) / (2.0 * gamma);
        const double tangent = (zeta < 0.0 ? -1.0 : 1.0) / (fabs(zeta) + sqrt(1.0 + zeta * zeta));
        const double cosine = 1.0 / sqrt(1.0 + tangent * tangent), sine = cosine * tangent;
        warp_rotate(x, y, d, cosine, sine);
        warp_rotate(at.v + p * n, at.v + q * n, n, cosine, sine);
        if (threadIdx.x % kWarp == 0) *at.rotated = 1;
      }
      __syncthreads();
    }
    if (*at.rotated == 0) return;
  }
}

// Every output of the problem: nothing of it can be known.
__device__ inline void write_bad(const SolveLabelsArgs& args, int64_t problem, int64_t rank) {
  const int64_t n = args.num_samples;
  for (int64_t i = threadIdx.x; i < n * args.num_outputs; i += kSolveLabelsThreads) {
    args.residual[problem * n * args.num_outputs + i] = NAN;
    args.error[problem * n * args.num_outputs + i] = INFINITY;
  }
  for (int64_t r = threadIdx.x; r < n; r += kSolveLabelsThreads) {
    args.leverage[problem * n + r] = NAN;
    args.identifiable[problem * n + r] = 0;
  }
  if (threadIdx.x == 0) args.rank[problem] = rank;
}

__device__ inline void solve_jacobi(const SolveLabelsArgs& args, int64_t problem, const JacobiSpace& at) {
  const int64_t n = args.num_samples, d = args.jacobian.numel, outputs = args.num_outputs;
  const double count = static_cast<double>(n), length = static_cast<double>(d);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  double *column_norm = at.vectors, *inverse = column_norm + n, *squares = inverse + n, *lost = squares + n,
         *e = lost + n, *weights = e + n;

  double largest = 0.0, bad = 0.0, bad_gradient = 0.0;
  for (int64_t i = threadIdx.x; i < n * d; i += kSolveLabelsThreads) {
    at.a[i] = jacobian_entry(args.jacobian, problem, i / d, i % d);
    if (!(fabs(at.a[i]) < INFINITY)) bad = 1.0;
    largest = fmax(largest, fabs(at.a[i]));
  }
  for (int64_t i = threadIdx.x; i < outputs * d; i += kSolveLabelsThreads) {
    if (!(fabs(jacobian_entry(args.gradient, problem, i / d, i % d)) < INFINITY)) bad_gradient = 1.0;
  }
  largest = block_max(largest, at.partial);
  bad = block_sum(bad, at.partial);
  bad_gradient = block_sum(bad_gradient, at.partial);
  if (bad != 0.0 || bad_gradient != 0.0) {
    write_bad(args, problem, bad != 0.0 ? kRankOfBadJacobian : kRankOfBadGradient);
    return;
  }
  // By a power of two, so exactly: squares of entries neither overflow nor vanish.
  int exponent = 0;
  if (largest > 0.0) static_cast<void>(frexp(largest, &exponent));
  for (int64_t i = threadIdx.x; i < n * d; i += kSolveLabelsThreads) at.a[i] = ldexp(at.a[i], -exponent);
  for (int64_t i = threadIdx.x; i < n * n; i += kSolveLabelsThreads) at.v[i] = i / n == i % n ? 1.0 : 0.0;
  __syncthreads();
  double total = 0.0;
  for (int64_t r = warp; r < n; r += kSolveLabelsWarps) {
    const double square = warp_dot(at.a + r * d, at.a + r * d, d);
    if (lane == 0) column_norm[r] = sqrt(square);
    if (lane == 0) total += square;
  }
  const double norm = sqrt(block_sum(total, at.partial));
  orthogonalise(at, n, d, norm);
  __syncthreads();

  double longest = 0.0;
  for (int64_t r = warp; r < n; r += kSolveLabelsWarps) {
    const double value = sqrt(warp_dot(at.a + r * d, at.a + r * d, d));
    if (lane == 0) inverse[r] = value;
    longest = fmax(longest, value);
  }
  const double cut = args.rcond * block_max(longest, at.partial);
  double rank = 0.0, inverse_squares = 0.0;
  for (int64_t k = threadIdx.x; k < n; k += kSolveLabelsThreads) {
    const double value = inverse[k];
    const bool counts = value > cut && value > 0.0;
    inverse[k] = counts ? 1.0 / value : 0.0;
    if (!counts) continue;
    rank += 1.0;
    inverse_squares += inverse[k] * inverse[k];
  }
  rank = block_sum(rank, at.partial);
  const double condition = sqrt(block_sum(inverse_squares, at.partial)) * norm;
  for (int64_t r = threadIdx.x; r < n; r += kSolveLabelsThreads) {
    double inside = 0.0, outside = 0.0;
    for (int64_t k = 0; k < n; ++k) {
      const double part = at.v[k * n + r];
      const double scaled = part * inverse[k];
      inside = fma(scaled, scaled, inside);
      if (inverse[k] == 0.0) outside = fma(part, part, outside);
    }
    squares[r] = inside;
    lost[r] = sqrt(outside);
    args.leverage[problem * n + r] = ldexp(inside, -2 * exponent);
    args.identifiable[problem * n + r] = lost[r] <= null_limit(args.rcond, condition) && column_norm[r] > 0.0;
  }
  if (threadIdx.x == 0) args.rank[problem] = static_cast<int64_t>(rank);

  const double scale = ldexp(1.0, -exponent);
  for (int64_t o = 0; o < outputs; ++o) {
    for (int64_t i = threadIdx.x; i < d; i += kSolveLabelsThreads) {
      at.b[i] = ldexp(jacobian_entry(args.gradient, problem, o, i), -exponent) * count;
    }
    __syncthreads();
    // The second pass corrects the first by what is left: rotations leave columns orthogonal to some units only.
    double weight = 0.0, outside = 0.0, spread = 0.0;
    for (int pass = 0; pass < 2; ++pass) {
      const double* const right = pass == 0 ? at.b : at.rest;
      for (int64_t k = warp; k < n; k += kSolveLabelsWarps) {
        const double part = warp_dot(at.a + k * d, right, d);
        if (lane == 0) weights[k] = part * inverse[k] * inverse[k];
      }
      __syncthreads();
      weight = 0.0;
      for (int64_t r = threadIdx.x; r < n; r += kSolveLabelsThreads) {
        double sum = 0.0;
        for (int64_t k = 0; k < n; ++k) sum = fma(at.v[k * n + r], weights[k], sum);
        e[r] = pass == 0 ? sum : e[r] + sum;
        weight = fma(column_norm[r], fabs(e[r]), weight);
      }
      weight = block_sum(weight, at.partial);
      residual_of(args.jacobian, problem, n, d, scale, at.b, e, at.rest, at.partial, &outside, &spread);
    }
    const double bound = residual_error(count, length, args.unit, condition, sqrt(spread), weight, sqrt(outside)) +
                         ldexp(args.lost, -exponent);
    for (int64_t r = threadIdx.x; r < n; r += kSolveLabelsThreads) {
      const int64_t to = (problem * n + r) * outputs + o;
      args.residual[to] = e[r];
      const double error = sqrt(squares[r]) * bound + lost[r] * sqrt(count) + args.unit * fabs(e[r]);
      args.error[to] = args.identifiable[problem * n + r] ? shown_error(e[r], error, args.largest) : INFINITY;
    }
    __syncthreads();
  }
}

}  // namespace leakcore
