// Compiled once per instruction tier (setup.py): what the headers beside it hold, and the table of it all.
#include "pinv/pinv_simd.h"

#include "pinv/simd_factor.h"
#include "pinv/simd_gram.h"

namespace leakcore {
namespace {

void apply(const double* m, int64_t num_rows, int64_t ld, const double* s, double* work, double* out, double* middle) {
  double squares = 0.0;
  for (int64_t k = 0; k < num_rows; ++k) {
    Doubles sum[V] = {};
    for (int64_t i = 0; i <= k; i += kStripe) {
      for (int v = 0; v < V; ++v) sum[v] = fused(load(m + k * ld + i + v * W), load(s + i + v * W), sum[v]);
    }
    work[k] = fold(sum);
    squares = fused(work[k], work[k], squares);
  }
  for (int64_t i = 0; i < num_rows; i += kStripe) {
    Doubles sum[V] = {};
    for (int64_t k = i; k < num_rows; ++k) {
      for (int v = 0; v < V; ++v) sum[v] = fused(load(m + k * ld + i + v * W), all(work[k]), sum[v]);
    }
    memcpy(out + i, sum, sizeof sum);
  }
  *middle = squares;
}

// U registers of columns from number i of the residual, whose squares go to their lanes of the sums.
template <int U>
inline void residual_columns(const double* const* rows, int64_t num_rows, int64_t i, const double* b, const double* e,
                             double* rest, double (*squares)[kStripe]) {
  Doubles x[U], t[U] = {};
  for (int u = 0; u < U; ++u) x[u] = load(b + i + u * W);
  for (int64_t r = 0; r < num_rows; ++r) {
    const Doubles factor = all(e[r]), weight = magnitude(factor);
    for (int u = 0; u < U; ++u) {
      const Doubles c = load(rows[r] + i + u * W);
      x[u] = less(factor, c, x[u]);
      t[u] = fused(weight, magnitude(c), t[u]);
    }
  }
  for (int u = 0; u < U; ++u) {
    store(rest + i + u * W, x[u]);
    const int64_t lane = (i + u * W) % kStripe;
    store(squares[0] + lane, fused(x[u], x[u], load(squares[0] + lane)));
    store(squares[1] + lane, fused(t[u], t[u], load(squares[1] + lane)));
  }
}

void residual(const double* const* rows, int64_t num_rows, int64_t count, const double* b, const double* e,
              double* rest, double* rest_squares, double* terms_squares) {
  constexpr int U = 64 / W > 8 ? 4 : 64 / W;  // registers of columns at a time
  double squares[2][kStripe] = {};
  int64_t i = 0;
  for (; i + U * W <= count; i += U * W) residual_columns<U>(rows, num_rows, i, b, e, rest, squares);
  for (; i + W <= count; i += W) residual_columns<1>(rows, num_rows, i, b, e, rest, squares);
  for (; i < count; ++i) {
    double x = b[i], t = 0.0;
    for (int64_t r = 0; r < num_rows; ++r) {
      x = fused(-e[r], rows[r][i], x);
      t = fused(__builtin_fabs(e[r]), __builtin_fabs(rows[r][i]), t);
    }
    rest[i] = x;
    squares[0][i % kStripe] = fused(x, x, squares[0][i % kStripe]);
    squares[1][i % kStripe] = fused(t, t, squares[1][i % kStripe]);
  }
  for (int which = 0; which < 2; ++which) {
    Doubles lanes[V];
    memcpy(lanes, squares[which], sizeof lanes);
    *(which ? terms_squares : rest_squares) = fold(lanes);
  }
}

constexpr PinvKernels kKernels = {pack, gram, factor, apply, residual, project};

}  // namespace

#define LEAKCORE_JOIN(a, b) a##b
#define LEAKCORE_TABLE(tier) LEAKCORE_JOIN(pinv_kernels_, tier)
const PinvKernels& LEAKCORE_TABLE(LEAKCORE_TIER)() {
  return kKernels;
}

}  // namespace leakcore
