// Sums over the columns of a Jacobian, for pinv_simd.cpp alone: its Gram matrix and its products with a vector. Columns
// go into kStripe partial sums, so that a pair of samples costs its products and nothing is laid out anew.
#pragma once

#include "pinv/simd_lanes.h"

namespace leakcore {
namespace {

constexpr int kTile = W == 8 ? 5 : 3;  // kTile² pairs of samples have their sums in registers
constexpr int64_t kPanel = 512;        // columns at a time: the rows of a tile stay in the nearest cache

// What will be read later, fetched evenly while the registers are busy: in steps of less than a line, since a burst of
// lines would hold up the loads of the present.
struct Ahead {
  const char* at;
  int64_t step;

  void fetch() {
    __builtin_prefetch(at, 0, 2);
    at += step;
  }
};

// out[p] = fold of the lanes of sum p, without a way through memory.
#if defined(__AVX512F__)
// From eight sums of eight lanes each stage makes half as many vectors.
LEAKCORE_INLINE Doubles fold_halves(Doubles x, Doubles y) {
  return shuffled<0, 1, 2, 3, 8, 9, 10, 11>(x, y) + shuffled<4, 5, 6, 7, 12, 13, 14, 15>(x, y);
}
LEAKCORE_INLINE Doubles fold_quarters(Doubles x, Doubles y) {
  return shuffled<0, 1, 4, 5, 8, 9, 12, 13>(x, y) + shuffled<2, 3, 6, 7, 10, 11, 14, 15>(x, y);
}
LEAKCORE_INLINE Doubles fold_pairs(Doubles x, Doubles y) {
  return shuffled<0, 8, 2, 10, 4, 12, 6, 14>(x, y) + shuffled<1, 9, 3, 11, 5, 13, 7, 15>(x, y);
}

template <int P>
LEAKCORE_INLINE void fold_all(const Doubles (*acc)[V], double* out) {
  constexpr int kEights = P / 8 * 8;
#pragma GCC unroll 4
  for (int p = 0; p < kEights; p += 8) {
    const Doubles even =
        fold_quarters(fold_halves(acc[p][0], acc[p + 2][0]), fold_halves(acc[p + 4][0], acc[p + 6][0]));
    const Doubles odd =
        fold_quarters(fold_halves(acc[p + 1][0], acc[p + 3][0]), fold_halves(acc[p + 5][0], acc[p + 7][0]));
    store(out + p, fold_pairs(even, odd));
  }
#pragma GCC unroll 4
  for (int p = kEights; p < P; p += 2) {
    const Doubles halves = fold_halves(acc[p][0], acc[p + 1 < P ? p + 1 : p][0]);
    const Doubles quarters = fold_quarters(halves, halves), sums = fold_pairs(quarters, quarters);
    out[p] = sums[0];
    if (p + 1 < P) out[p + 1] = sums[2];
  }
}
#elif defined(__AVX2__)
template <int P>
LEAKCORE_INLINE void fold_all(const Doubles (*acc)[V], double* out) {
#pragma GCC unroll 8
  for (int p = 0; p < P; p += 4) {
    Doubles x[4];
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) {
      const int q = p + k < P ? p + k : P - 1;
      x[k] = acc[q][0] + acc[q][1];
    }
    exchange(x);
    const Doubles sums = (x[0] + x[2]) + (x[1] + x[3]);
    memcpy(out + p, &sums, sizeof(double) * (P - p < 4 ? P - p : 4));
  }
}
#else
template <int P>
LEAKCORE_INLINE void fold_all(const Doubles (*acc)[V], double* out) {
#pragma GCC unroll 32
  for (int p = 0; p < P; ++p) {
    const Doubles sum = (acc[p][0] + acc[p][2]) + (acc[p][1] + acc[p][3]);
    out[p] = sum[0] + sum[1];
  }
}
#endif

// The last columns of some rows, fewer than a stripe, and zeros.
template <int A, class X>
LEAKCORE_INLINE void copy_tails(const X* const* rows, int64_t whole, int64_t count, X (*tails)[kStripe]) {
  memset(tails, 0, sizeof(X) * A * kStripe);
  for (int r = 0; r < A; ++r) {
    for (int64_t i = whole; i < count; ++i) tails[r][i - whole] = rows[r][i];
  }
}

// A vector and where its products with the samples go.
struct Beside {
  const double* x = nullptr;
  double* s = nullptr;
};

// out[r·ld + t] (+)= Σ_i a[r][i]·b[t][i] over `count` columns; on the diagonal, where b is a, for r <= t alone, and
// beside it s[r] (+)= Σ_i a[r][i]·x[i].
template <int A, int B, bool Diagonal, class X, class Y>
LEAKCORE_INLINE void dot_tile(const X* const* a, const Y* const* b, int64_t first, int64_t count, bool add, double* out,
                              int64_t ld, Ahead* ahead, Beside beside = {}) {
  constexpr int kOfPairs = Diagonal ? A * (A + 1) / 2 : A * B, kPairs = kOfPairs + (Diagonal ? A : 0);
  const X* x_at[A];
  const Y* y_at[B];
  for (int r = 0; r < A; ++r) x_at[r] = a[r] + first;
  for (int t = 0; t < B; ++t) y_at[t] = b[t] + first;
  const int64_t whole = count / kStripe * kStripe;
  const double* const z_at = Diagonal ? beside.x + first : nullptr;
  X x_tail[A][kStripe];
  Y y_tail[B][kStripe];
  double z_tail[1][kStripe];
  if (whole < count) {
    copy_tails<A>(x_at, whole, count, x_tail);
    copy_tails<B>(y_at, whole, count, y_tail);
    if (Diagonal) copy_tails<1>(&z_at, whole, count, z_tail);
  }
  Doubles lanes[kPairs][V];
  double sums[kPairs];
  Ahead here = *ahead;
  for (int h = 0; h < V; ++h) {
    Doubles acc[kPairs] = {};
    const auto multiply_add = [&](auto&& x_of, auto&& y_of, const double* z) {
      Doubles y[B];
      for (int t = 0; t < B; ++t) y[t] = doubles_at(y_of(t));
      for (int r = 0, p = 0; r < A; ++r) {
        const Doubles x = Diagonal ? y[r] : doubles_at(x_of(r));
        for (int t = Diagonal ? r : 0; t < B; ++t, ++p) acc[p] = madd(x, y[t], acc[p]);
        if (Diagonal) acc[kOfPairs + r] = madd(x, doubles_at(z), acc[kOfPairs + r]);
      }
    };
    for (int64_t i = h * W; i < whole; i += kStripe) {
      here.fetch();
      multiply_add([&](int r) { return x_at[r] + i; }, [&](int t) { return y_at[t] + i; },
                   Diagonal ? z_at + i : nullptr);
    }
    if (whole < count) {
      multiply_add([&](int r) { return x_tail[r] + h * W; }, [&](int t) { return y_tail[t] + h * W; },
                   z_tail[0] + h * W);
    }
#pragma GCC unroll 32
    for (int p = 0; p < kPairs; ++p) lanes[p][h] = acc[p];
  }
  *ahead = here;
  fold_all<kPairs>(lanes, sums);
  for (int r = 0, p = 0; r < A; ++r) {
    for (int t = Diagonal ? r : 0; t < B; ++t, ++p) {
      double* const to = out + r * ld + t;
      *to = add ? *to + sums[p] : sums[p];
    }
    if (Diagonal) beside.s[r] = add ? beside.s[r] + sums[kOfPairs + r] : sums[kOfPairs + r];
  }
}

// `B` samples from t against all before them and themselves.
template <int B, class X>
void gram_columns(const X* const* rows, int64_t t, int64_t first, int64_t count, double* out, int64_t ld, Ahead* ahead,
                  Beside beside) {
  const bool add = first > 0;
  int64_t r = 0;
  for (; r + kTile <= t; r += kTile) {
    dot_tile<kTile, B, false>(rows + r, rows + t, first, count, add, out + r * ld + t, ld, ahead);
  }
  dot_tile<B, B, true>(rows + t, rows + t, first, count, add, out + t * ld + t, ld, ahead, {beside.x, beside.s + t});
}

template <int B, class X>
void gram_rest(const X* const* rows, int64_t num_rows, int64_t t, int64_t first, int64_t count, double* out, int64_t ld,
               Ahead* ahead, Beside beside) {
  if (num_rows - t == B) return gram_columns<B>(rows, t, first, count, out, ld, ahead, beside);
  if constexpr (B > 1) gram_rest<B - 1>(rows, num_rows, t, first, count, out, ld, ahead, beside);
}

// body(first, here) for panel after panel.
template <class Body>
LEAKCORE_INLINE void for_panels(int64_t count, Body&& body) {
  for (int64_t first = 0; first < count; first += kPanel) body(first, count - first < kPanel ? count - first : kPanel);
}

template <class X>
void gram(const X* const* rows, int64_t num_rows, int64_t count, const double* x, double* s, double* out, int64_t ld,
          const void* next, int64_t next_bytes) {
  const int64_t blocks = num_rows / kTile, steps = blocks * (blocks + 1) / 2 * (count / kStripe) * V + 1;
  Ahead ahead = {reinterpret_cast<const char*>(rows), 0};
  if (next != nullptr) ahead = {static_cast<const char*>(next), (next_bytes - 1) / steps + 1};
  const Beside beside = {x, s};
  for_panels(count, [&](int64_t first, int64_t here) {
    int64_t t = 0;
    for (; t + kTile <= num_rows; t += kTile) gram_columns<kTile>(rows, t, first, here, out, ld, &ahead, beside);
    gram_rest<kTile - 1>(rows, num_rows, t, first, here, out, ld, &ahead, beside);
  });
}

template <class X>
void project(const X* const* rows, int64_t num_rows, int64_t count, const double* x, double* s) {
  constexpr int kMany = 8;
  Ahead ahead = {reinterpret_cast<const char*>(rows), 0};
  for_panels(count, [&](int64_t first, int64_t here) {
    const bool add = first > 0;
    int64_t r = 0;
    for (; r + kMany <= num_rows; r += kMany) {
      dot_tile<kMany, 1, false>(rows + r, &x, first, here, add, s + r, 1, &ahead);
    }
    for (; r + 2 <= num_rows; r += 2) dot_tile<2, 1, false>(rows + r, &x, first, here, add, s + r, 1, &ahead);
    for (; r < num_rows; ++r) dot_tile<1, 1, false>(rows + r, &x, first, here, add, s + r, 1, &ahead);
  });
}

// U registers of columns from number i of the residual, whose squares go to their lanes of the sums.
template <int U, class X>
LEAKCORE_INLINE void residual_columns(const X* const* rows, int64_t num_rows, int64_t i, const double* b,
                                      const double* e, double* rest, double (*squares)[kStripe]) {
  Doubles x[U], t[U] = {};
  for (int u = 0; u < U; ++u) x[u] = doubles_at(b + i + u * W);
  for (int64_t r = 0; r < num_rows; ++r) {
    const Doubles factor = doubles(e[r]), weight = magnitude(factor);
    for (int u = 0; u < U; ++u) {
      const Doubles c = loaded(doubles_at(rows[r] + i + u * W));
      x[u] = less(factor, c, x[u]);
      t[u] = madd(weight, magnitude(c), t[u]);
    }
  }
  for (int u = 0; u < U; ++u) {
    store(rest + i + u * W, x[u]);
    const int64_t lane = (i + u * W) % kStripe;
    store(squares[0] + lane, madd(x[u], x[u], doubles_at(squares[0] + lane)));
    store(squares[1] + lane, madd(t[u], t[u], doubles_at(squares[1] + lane)));
  }
}

template <class X>
void residual(const X* const* rows, int64_t num_rows, int64_t count, const double* b, const double* e, double* rest,
              double* rest_squares, double* terms_squares) {
  constexpr int U = W == 8 ? 8 : 4;  // registers of columns at a time
  double squares[2][kStripe] = {};
  int64_t i = 0;
  for (; i + U * W <= count; i += U * W) residual_columns<U>(rows, num_rows, i, b, e, rest, squares);
  for (; i + W <= count; i += W) residual_columns<1>(rows, num_rows, i, b, e, rest, squares);
  for (; i < count; ++i) {
    double x = b[i], t = 0.0;
    for (int64_t r = 0; r < num_rows; ++r) {
      const double c = static_cast<double>(rows[r][i]);
      x = madd(-e[r], c, x);
      t = madd(__builtin_fabs(e[r]), __builtin_fabs(c), t);
    }
    rest[i] = x;
    squares[0][i % kStripe] = madd(x, x, squares[0][i % kStripe]);
    squares[1][i % kStripe] = madd(t, t, squares[1][i % kStripe]);
  }
  *rest_squares = fold(squares[0]);
  *terms_squares = fold(squares[1]);
}

}  // namespace
}  // namespace leakcore
