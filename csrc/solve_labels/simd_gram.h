// Sums over the columns of a Jacobian, for solve_labels_simd.cpp alone: its Gram matrix and its products with a vector.
// Columns go into kStripe partial sums, so that a pair of samples costs its products and nothing is laid out again.
#pragma once

#include "solve_labels/simd_lanes.h"

namespace leakcore {
namespace {

constexpr int kTile = W == 8 ? 5 : 3;  // kTile² pairs of samples have their sums in registers
constexpr int64_t kPanel = 512;        // columns at a time: the rows of a tile stay in the nearest cache

// Pairs of samples of two groups, or of one, or of one whose samples are copied on the way.
enum class Tile { pairs, own, copied };

// Prefetches evenly, in steps of less than a line: a burst would hold up other loads.
struct Ahead {
  const char* at;
  int64_t step;

  void fetch() {
    __builtin_prefetch(at, 0, 2);
    at += step;
  }
};

// out[p] = fold of the lanes of sum p: lanes four apart are added, then two, then one, so a rotation of lanes changes
// nothing.
#if defined(__AVX512F__)
// Each stage makes half as many vectors. One operand is a blend, since shuffles have one port on some cores.
LEAKCORE_INLINE Doubles fold_halves(Doubles x, Doubles y) {
  return _mm512_mask_blend_pd(0xf0, x, y) + shuffled<4, 5, 6, 7, 8, 9, 10, 11>(x, y);
}
LEAKCORE_INLINE Doubles fold_quarters(Doubles x, Doubles y) {
  return _mm512_mask_blend_pd(0xcc, x, y) + shuffled<2, 3, 8, 9, 6, 7, 12, 13>(x, y);
}
LEAKCORE_INLINE Doubles fold_pairs(Doubles x, Doubles y) {
  return _mm512_mask_blend_pd(0xaa, x, y) + shuffled<1, 8, 3, 10, 5, 12, 7, 14>(x, y);
}

template <int P>
LEAKCORE_INLINE void fold_all(const Doubles (*acc)[V], double* out) {
  constexpr int kEights = P / 8 * 8, kRest = P % 8;
#pragma GCC unroll 4
  for (int p = 0; p < kEights + (kRest > 4 ? 8 : 0); p += 8) {
    const auto at = [&](int k) { return acc[p + k < P ? p + k : P - 1][0]; };
    const Doubles even = fold_quarters(fold_halves(at(0), at(4)), fold_halves(at(2), at(6)));
    const Doubles odd = fold_quarters(fold_halves(at(1), at(5)), fold_halves(at(3), at(7)));
    const Doubles sums = fold_pairs(even, odd);
    if (p < kEights) {
      store(out + p, sums);
    } else {
      store(out + p, sums, (1u << kRest) - 1);
    }
  }
  if constexpr (kRest > 0 && kRest <= 4) {
    const auto at = [&](int k) { return acc[kEights + (k < kRest ? k : kRest - 1)][0]; };
    const Doubles even = fold_halves(at(0), at(2)), odd = kRest > 1 ? fold_halves(at(1), at(3)) : even;
    const Doubles both = fold_quarters(even, odd), sums = fold_pairs(both, both);
    for (int k = 0; k < kRest; ++k) out[kEights + k] = sums[k / 2 * 4 + k % 2 * 2];
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

// Where on a cache line the rows begin, in lanes, if they all agree (else 0): columns are then taken from the start of
// that line, since loads across two lines cost double. Which lane a column goes to changes no sum.
template <class X>
inline int phase_of([[maybe_unused]] const X* const* rows, [[maybe_unused]] int64_t num_rows,
                    [[maybe_unused]] const double* x) {
#if defined(__AVX512F__)
  const auto lane = [](auto* p) { return reinterpret_cast<uintptr_t>(p) / sizeof *p % kStripe; };
  const uintptr_t phase = lane(x);
  bool agree = true;
  for (int64_t r = 0; r < num_rows; ++r) agree &= lane(rows[r]) == phase;
  return agree ? static_cast<int>(phase) : 0;
#else
  return 0;
#endif
}

#if defined(__AVX512F__)
// Of a register's columns from number i on those that there are, of `count`.
LEAKCORE_INLINE unsigned lanes_within(int64_t i, int64_t count) {
  return 0xffu << (i < 0 ? -i : 0) & 0xffu >> (count - i < W ? W - (count - i) : 0);
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

// What tiles on the diagonal do as well: a vector, where its products with the samples go, and where the samples
// themselves go as doubles, if they are copied, with zeros up to the end of a stripe.
struct Diagonals {
  const double* x = nullptr;
  double* s = nullptr;
  double* const* copies = nullptr;
};

// acc[p] = the lanes of Σ_i a[r][i]·b[t][i] in register h of a stripe, pair after pair; on the diagonal, where b is a,
// for r <= t alone, followed by the lanes of Σ_i a[r][i]·z[i]. Converted rows go to copies[t][i].
template <int A, int B, Tile T, class X, class Y>
LEAKCORE_INLINE void dot_lanes(const X* const* a, const Y* const* b, const double* z, double* const* copies,
                               int64_t count, int phase, int h, Doubles* acc, Ahead* ahead) {
  constexpr bool Diagonal = T != Tile::pairs;
  constexpr int kOfPairs = Diagonal ? A * (A + 1) / 2 : A * B;
  int64_t i = h * W - phase;
  const auto multiply_add = [&](auto&& x_of, auto&& y_of, auto&& z_of) {
    Doubles y[B];
    for (int t = 0; t < B; ++t) y[t] = y_of(t);
    for (int t = 0; T == Tile::copied && t < B; ++t) store(copies[t] + i, y[t]);
    for (int r = 0, p = 0; r < A; ++r) {
      const Doubles x = Diagonal ? y[r] : x_of(r);
      for (int t = Diagonal ? r : 0; t < B; ++t, ++p) acc[p] = madd(x, y[t], acc[p]);
      if (Diagonal) acc[kOfPairs + r] = madd(x, z_of(), acc[kOfPairs + r]);
    }
  };
  const auto whole = [&] {
    multiply_add([&](int r) { return doubles_at(a[r] + i); }, [&](int t) { return doubles_at(b[t] + i); },
                 [&] { return doubles_at(z + i); });
  };
#if defined(__AVX512F__)
  const auto part = [&] {
    const unsigned lanes = lanes_within(i, count);
    multiply_add([&](int r) { return doubles_at(a[r] + i, lanes); }, [&](int t) { return doubles_at(b[t] + i, lanes); },
                 [&] { return doubles_at(z + i, lanes); });
  };
  if (phase > 0) {
    part();
    i += kStripe;
  }
  const int64_t last = count - kStripe;
  for (; i <= last; i += kStripe) {
    ahead->fetch();
    whole();
  }
  if (i < count) part();
#else
  const int64_t end = count / kStripe * kStripe;
  for (; i < end; i += kStripe) {
    ahead->fetch();
    whole();
  }
  if (end == count) return;
  X x_tail[A][kStripe];
  Y y_tail[B][kStripe];
  double z_tail[1][kStripe];
  copy_tails<A>(a, end, count, x_tail);
  copy_tails<B>(b, end, count, y_tail);
  if (Diagonal) copy_tails<1>(&z, end, count, z_tail);
  multiply_add([&](int r) { return doubles_at(x_tail[r] + h * W); },
               [&](int t) { return doubles_at(y_tail[t] + h * W); }, [&] { return doubles_at(z_tail[0] + h * W); });
#endif
}

// out[r·ld + t] (+)= Σ_i a[r][i]·b[t][i] over `count` columns; on the diagonal, where b is a, for r <= t alone, and
// with it s[r] (+)= Σ_i a[r][i]·x[i].
template <int A, int B, Tile T, class X, class Y>
LEAKCORE_INLINE void dot_tile(const X* const* a, const Y* const* b, int64_t first, int64_t count, int phase, bool add,
                              double* out, int64_t ld, Ahead* ahead, const Diagonals& diagonal = {}) {
  constexpr bool Diagonal = T != Tile::pairs;
  constexpr int kOfPairs = Diagonal ? A * (A + 1) / 2 : A * B, kPairs = kOfPairs + (Diagonal ? A : 0);
  const X* x_at[A];
  const Y* y_at[B];
  for (int r = 0; r < A; ++r) x_at[r] = a[r] + first;
  for (int t = 0; t < B; ++t) y_at[t] = b[t] + first;
  const double* const z_at = Diagonal ? diagonal.x + first : nullptr;
  double* copies[B];
  for (int t = 0; T == Tile::copied && t < B; ++t) copies[t] = diagonal.copies[t] + first;
  Doubles lanes[kPairs][V];
  double sums[kPairs];
  Ahead here = *ahead;
  for (int h = 0; h < V; ++h) {
    Doubles acc[kPairs];
#pragma GCC unroll 32
    for (int p = 0; p < kPairs; ++p) acc[p] = Doubles{};
    dot_lanes<A, B, T>(x_at, y_at, z_at, copies, count, phase, h, acc, &here);
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
    if (Diagonal) diagonal.s[r] = add ? diagonal.s[r] + sums[kOfPairs + r] : sums[kOfPairs + r];
  }
}

// `B` samples from t, which are read `from`, against themselves and all before them.
template <int B, class X, class From>
void gram_columns(const X* const* rows, const From* const* from, int64_t t, int64_t first, int64_t count, int phase,
                  double* out, int64_t ld, Ahead* ahead, const Diagonals& diagonal) {
  constexpr bool kCopied = sizeof(From) < sizeof(X);
  const bool add = first > 0;
  const auto own = [&](auto kind) {
    dot_tile<B, B, kind.value>(from + t, from + t, first, count, phase, add, out + t * ld + t, ld, ahead,
                               {diagonal.x, diagonal.s + t, kCopied ? diagonal.copies + t : nullptr});
  };
  if constexpr (kCopied) own(Constant<Tile::copied>{});
  for (int64_t r = 0; r + kTile <= t; r += kTile) {
    dot_tile<kTile, B, Tile::pairs>(rows + r, rows + t, first, count, phase, add, out + r * ld + t, ld, ahead);
  }
  if constexpr (!kCopied) own(Constant<Tile::own>{});
}

// body(first, here) for panel after panel.
template <class Body>
LEAKCORE_INLINE void for_panels(int64_t count, Body&& body) {
  for (int64_t first = 0; first < count; first += kPanel) body(first, count - first < kPanel ? count - first : kPanel);
}

template <class X, class From>
void gram_of(const X* const* rows, const From* const* from, int64_t num_rows, int64_t count, const Diagonals& diagonal,
             double* out, int64_t ld, Next next) {
  const int64_t blocks = num_rows / kTile, steps = blocks * (blocks + 1) / 2 * (count / kStripe) * V + 1;
  Ahead ahead = {reinterpret_cast<const char*>(rows), 0};
  if (next.at != nullptr) ahead = {static_cast<const char*>(next.at), (next.bytes - 1) / steps + 1};
  const int phase = phase_of(rows, num_rows, diagonal.x);
  for_panels(count, [&](int64_t first, int64_t here) {
    int64_t t = 0;
    const auto columns = [&](auto some) {
      gram_columns<some.value>(rows, from, t, first, here, phase, out, ld, &ahead, diagonal);
    };
    for (; t + kTile <= num_rows; t += kTile) columns(Constant<kTile>{});
    with_constant<kTile - 1>(num_rows - t, columns);
  });
}

template <class X>
void gram(const X* const* rows, int64_t num_rows, int64_t count, const double* x, double* s, double* out, int64_t ld,
          Next next) {
  gram_of(rows, rows, num_rows, count, {x, s}, out, ld, next);
}

void gram_widening(const float* const* rows, int64_t num_rows, int64_t count, const double* x, double* s,
                   double* const* copies, double* out, int64_t ld, Next next) {
  gram_of<double>(copies, rows, num_rows, count, {x, s, copies}, out, ld, next);
}

template <class X>
void project(const X* const* rows, int64_t num_rows, int64_t count, const double* x, double* s) {
  constexpr int kMany = 8;
  const int phase = phase_of(rows, num_rows, x);
  Ahead ahead = {reinterpret_cast<const char*>(rows), 0};
  for_panels(count, [&](int64_t first, int64_t here) {
    const bool add = first > 0;
    int64_t r = 0;
    for (; r + kMany <= num_rows; r += kMany) {
      dot_tile<kMany, 1, Tile::pairs>(rows + r, &x, first, here, phase, add, s + r, 1, &ahead);
    }
    for (; r + 2 <= num_rows; r += 2) {
      dot_tile<2, 1, Tile::pairs>(rows + r, &x, first, here, phase, add, s + r, 1, &ahead);
    }
    for (; r < num_rows; ++r) dot_tile<1, 1, Tile::pairs>(rows + r, &x, first, here, phase, add, s + r, 1, &ahead);
  });
}

// U registers of columns from number i of the residual, whose squares go to their lanes of the sums; those that are not
// there, before the first and after the last of `count`, are left alone.
template <int U, class X>
LEAKCORE_INLINE void residual_columns(const X* const* rows, int64_t num_rows, int64_t i, [[maybe_unused]] int64_t count,
                                      const double* b, const double* e, double* rest, double (*squares)[kStripe]) {
#if defined(__AVX512F__)
  const unsigned first = lanes_within(i, count), last = lanes_within(i + (U - 1) * W, count);
  const auto lanes = [&](int u) { return u == 0 ? first : u == U - 1 ? last : 0xffu; };
  const auto at = [&](auto* p, int u) { return doubles_at(p + i + u * W, lanes(u)); };
#else
  const auto at = [&](auto* p, int u) { return doubles_at(p + i + u * W); };
#endif
  Doubles x[U], t[U] = {};
#pragma GCC unroll 16
  for (int u = 0; u < U; ++u) x[u] = at(b, u);
  for (int64_t r = 0; r < num_rows; ++r) {
    const Doubles factor = doubles(e[r]), weight = magnitude(factor);
#pragma GCC unroll 16
    for (int u = 0; u < U; ++u) {
      const Doubles c = loaded(at(rows[r], u));
      x[u] = less(factor, c, x[u]);
      t[u] = madd(weight, magnitude(c), t[u]);
    }
  }
#pragma GCC unroll 16
  for (int u = 0; u < U; ++u) {
#if defined(__AVX512F__)
    store(rest + i + u * W, x[u], lanes(u));
#else
    store(rest + i + u * W, x[u]);
#endif
    const int64_t lane = V == 1 ? 0 : (i + u * W) % kStripe;
    store(squares[0] + lane, madd(x[u], x[u], doubles_at(squares[0] + lane)));
    store(squares[1] + lane, madd(t[u], t[u], doubles_at(squares[1] + lane)));
  }
}

template <class X>
void residual(const X* const* rows, int64_t num_rows, int64_t count, const double* b, const double* e, double* rest,
              double* rest_squares, double* terms_squares) {
  double squares[2][kStripe] = {};
#if defined(__AVX512F__)
  constexpr int U = 8, kMost = U + 2;  // registers of columns at a time: one or two alone would wait for themselves
  const int phase = phase_of(rows, num_rows, b);
  int64_t i = -phase;
  for (; i + kMost * W < count; i += U * W) residual_columns<U>(rows, num_rows, i, count, b, e, rest, squares);
  if (i < count) {
    with_constant<kMost>((count - i - 1) / W + 1, [&](auto some) {
      residual_columns<some.value>(rows, num_rows, i, count, b, e, rest, squares);
    });
  }
#else
  constexpr int U = 4;
  int64_t i = 0;
  for (; i + U * W <= count; i += U * W) residual_columns<U>(rows, num_rows, i, count, b, e, rest, squares);
  for (; i + W <= count; i += W) residual_columns<1>(rows, num_rows, i, count, b, e, rest, squares);
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
#endif
  double sums[2];
  Doubles lanes[2][V];
  memcpy(lanes, squares, sizeof lanes);
  fold_all<2>(lanes, sums);
  *rest_squares = sums[0];
  *terms_squares = sums[1];
}

}  // namespace
}  // namespace leakcore
