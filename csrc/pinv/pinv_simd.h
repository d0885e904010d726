// The inner loops of label solving by normal equations, one table per instruction tier. Samples lie in stripes of
// kStripe: stripe s holds, for every column i of the Jacobian, the entries of samples 8s … 8s+7 side by side, zeros
// beyond the last sample. Every sum runs over its terms in the order written here, one fused multiply-add each, so the
// AVX2, AVX-512 and arm64 tiers give the same bits; the baseline rounds each product as well.
//
// Square matrices are row-major with a leading dimension that is a multiple of kStripe, zeros beyond the last sample.
#pragma once

#include <cstdint>

namespace leakcore {

constexpr int64_t kStripe = 8;

struct PinvKernels {
  // rows[r][0 … count), r < num_rows → stripes; entry (r, i) goes to stripes[(r/8)·stripe_step + 8i + r%8].
  void (*pack)(const double* const* rows, int64_t num_rows, int64_t count, double* stripes, int64_t stripe_step);
  // The upper triangle of CᵀC: gram[r·ld + t] = Σ_i C[i][r]·C[i][t], r <= t, whole 8 × 8 tiles of it. Meanwhile
  // `next_bytes` at `next` (null: none) are fetched into the cache.
  void (*gram)(const double* stripes, int64_t stripe_step, int64_t num_rows, int64_t count, double* gram, int64_t ld,
               const void* next, int64_t next_bytes);
  // gram = RᵀR and m = R⁻ᵀ, lower triangle, whose tiles above it must be zero and stay so; leverage[r] = Σ_k m[k][r]².
  // False, with gram spoilt, once a pivot is at most `small` times the diagonal entry it came from.
  bool (*factor)(double* gram, int64_t num_rows, int64_t ld, double small, double* m, double* leverage);
  // out = mᵀ·(m·s), *middle = ‖m·s‖².
  void (*apply)(const double* m, int64_t num_rows, int64_t ld, const double* s, double* work, double* out,
                double* middle);
  // rest = b − C·e, *rest_squares = ‖rest‖², *terms_squares = ‖|C|·|e|‖².
  void (*residual)(const double* const* rows, int64_t num_rows, int64_t count, const double* b, const double* e,
                   double* rest, double* rest_squares, double* terms_squares);
  // s = Cᵀ·x.
  void (*project)(const double* stripes, int64_t stripe_step, int64_t num_rows, int64_t count, const double* x,
                  double* s);
};

const PinvKernels& pinv_kernels_baseline();
#if LEAKCORE_X86_TIERS
const PinvKernels& pinv_kernels_avx2();
const PinvKernels& pinv_kernels_avx512();
#endif

}  // namespace leakcore
