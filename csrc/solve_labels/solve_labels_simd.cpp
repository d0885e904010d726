// Compiled once per instruction tier (setup.py): the loops of the headers in this folder, and their table.
#include "solve_labels/solve_labels_simd.h"

#include "solve_labels/simd_factor.h"
#include "solve_labels/simd_gram.h"

namespace leakcore {
namespace {

// out = mᵀ·work for S stripes of columns from i on, each from its first row on the diagonal.
template <int S>
LEAKCORE_INLINE void apply_transposed(const double* m, int64_t num_rows, int64_t ld, int64_t i, const double* work,
                                      double* out) {
  Doubles sum[S * V];
#pragma GCC unroll 16
  for (int v = 0; v < S * V; ++v) sum[v] = Doubles{};
  int64_t k = i;
  for (int s = 0; s < S; ++s) {
    const int64_t end = s + 1 < S ? i + (s + 1) * kStripe : num_rows;
    for (; k < end; ++k) {
      const double* const row = m + k * ld + i;
      for (int v = 0; v < (s + 1) * V; ++v) sum[v] = madd(doubles_at(row + v * W), doubles(work[k]), sum[v]);
    }
  }
  memcpy(out + i, sum, sizeof sum);
}

void apply(const double* m, int64_t num_rows, int64_t ld, const double* s, double* work, double* out, double* middle) {
  double squares = 0.0;
  for (int64_t k = 0; k < num_rows; k += kStripe) {
    Doubles sum[kStripe][V] = {};
    for (int64_t i = 0; i <= k; i += kStripe) {
      for (int c = 0; c < kStripe; ++c) {
        const double* const row = m + (k + c) * ld + i;
        for (int v = 0; v < V; ++v) sum[c][v] = madd(doubles_at(row + v * W), doubles_at(s + i + v * W), sum[c][v]);
      }
    }
    fold_all<kStripe>(sum, work + k);
    for (int64_t c = k; c < k + kStripe && c < num_rows; ++c) squares = madd(work[c], work[c], squares);
  }
  // Stripes side by side: the additions to one wait for each other.
  constexpr int kSide = W == 2 ? 2 : 8;
  int64_t i = 0;
  for (; i + kSide * kStripe < num_rows; i += kSide * kStripe) {
    apply_transposed<kSide>(m, num_rows, ld, i, work, out);
  }
  with_constant<kSide>((num_rows - i - 1) / kStripe + 1,
                       [&](auto some) { apply_transposed<some.value>(m, num_rows, ld, i, work, out); });
  *middle = squares;
}

void widen_row(const float* row, int64_t count, double* to) {
  int64_t i = 0;
  for (; i + W <= count; i += W) store(to + i, doubles_at(row + i));
  for (; i < count; ++i) to[i] = static_cast<double>(row[i]);
}

double scale(const double* x, int64_t count, double by, double* to) {
  double largest = 0.0, left = 0.0;
  const auto note = [](auto y, auto* most, auto* rest) {
    const auto magnitude = y < 0.0 ? -y : y;
    *most = magnitude > *most ? magnitude : *most;
    *rest += y * 0.0;  // NaN from what is not finite
  };
  Doubles most[2] = {}, rest[2] = {};
  int64_t i = 0;
  for (; i + 2 * W <= count; i += 2 * W) {
    for (int u = 0; u < 2; ++u) {
      const Doubles y = doubles_at(x + i + u * W) * by;
      store(to + i + u * W, y);
      note(y, most + u, rest + u);
    }
  }
  for (; i < count; ++i) {
    to[i] = x[i] * by;
    note(to[i], &largest, &left);
  }
  for (int k = 0; k < 2 * W; ++k) {
    const double y = most[k / W][k % W];
    if (y > largest) largest = y;
    left += rest[k / W][k % W];
  }
  return largest + left;
}

constexpr SolveLabelsKernels kKernels = {{gram<double>, residual<double>, project<double>},
                                         {gram<float>, residual<float>, project<float>},
                                         gram_widening,
                                         factor,
                                         widen_row,
                                         scale,
                                         apply};

}  // namespace

#define LEAKCORE_JOIN(a, b) a##b
#define LEAKCORE_TABLE(tier) LEAKCORE_JOIN(solve_labels_kernels_, tier)
const SolveLabelsKernels& LEAKCORE_TABLE(LEAKCORE_TIER)() {
  return kKernels;
}

}  // namespace leakcore
