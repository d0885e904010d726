// The inner loops of label solving by normal equations, one table per instruction tier. Every sum runs over its terms
// in an order that is the same on all tiers, one fused multiply-add each, so AVX2, AVX-512 and arm64 give the same
// bits; the baseline rounds each product as well. Float32 counts as the doubles it stands for.
//
// Square matrices are row-major with a leading dimension that is a multiple of kStripe, zeros beyond the last sample.
#pragma once

#include <cstdint>

namespace leakcore {

constexpr int64_t kStripe = 8;

// What is fetched into the cache meanwhile, in bytes; null for nothing.
struct Next {
  const void* at;
  int64_t bytes;
};

// rows[r], r < num_rows, is sample r: `count` entries in line. C is the matrix whose columns they are.
template <class Entry>
struct SampleKernels {
  // The upper triangle of CᵀC: gram[r·ld + t] = Σ_i rows[r][i]·rows[t][i], r <= t; what is below is not touched. And
  // s = Cᵀ·x, as `project` has it.
  void (*gram)(const Entry* const* rows, int64_t num_rows, int64_t count, const double* x, double* s, double* gram,
               int64_t ld, Next next);
  // rest = b − C·e, *rest_squares = ‖rest‖², *terms_squares = ‖|C|·|e|‖².
  void (*residual)(const Entry* const* rows, int64_t num_rows, int64_t count, const double* b, const double* e,
                   double* rest, double* rest_squares, double* terms_squares);
  // s = Cᵀ·x.
  void (*project)(const Entry* const* rows, int64_t num_rows, int64_t count, const double* x, double* s);
};

struct SolveLabelsKernels {
  SampleKernels<double> f64;
  SampleKernels<float> f32;
  // f64.gram of samples that it converts to double on the way: copies[r] = rows[r], and zeros up to a multiple of
  // kStripe.
  void (*gram_widening)(const float* const* rows, int64_t num_rows, int64_t count, const double* x, double* s,
                        double* const* copies, double* gram, int64_t ld, Next next);
  // gram = RᵀR (it reads the upper triangle) and m = R⁻ᵀ, a lower triangle; the 8 × 8 tiles above it must be zero and
  // stay zero. leverage[r] = Σ_k m[k][r]². Returns false, with gram spoilt, once a pivot is at most `small` times the
  // diagonal entry it came from.
  bool (*factor)(double* gram, int64_t num_rows, int64_t ld, double small, double* m, double* leverage);
  // to[i] = row[i].
  void (*widen)(const float* row, int64_t count, double* to);
  // to[i] = x[i]·by, `to` may be x; the largest of their magnitudes, NaN where one is not finite.
  double (*scale)(const double* x, int64_t count, double by, double* to);
  // out = mᵀ·(m·s), *middle = ‖m·s‖².
  void (*apply)(const double* m, int64_t num_rows, int64_t ld, const double* s, double* work, double* out,
                double* middle);
};

const SolveLabelsKernels& solve_labels_kernels_baseline();
#if LEAKCORE_X86_TIERS
const SolveLabelsKernels& solve_labels_kernels_avx2();
const SolveLabelsKernels& solve_labels_kernels_avx512();
#endif

}  // namespace leakcore
