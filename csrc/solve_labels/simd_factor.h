// Cholesky factor, inverse and leverages of a Gram matrix, for solve_labels_simd.cpp alone.
#pragma once

#include "solve_labels/simd_lanes.h"

namespace leakcore {
namespace {

// The block on the diagonal as D·U, U with ones on its diagonal: U row by row, and the roots of 1/D.
struct Corner {
  double unit[kStripe][kStripe];
  double scale[kStripe];
};

template <int C, int Row, int Count>
LEAKCORE_INLINE void eliminate_rows(Doubles (*rows)[V], const Doubles* factor) {
  if constexpr (Row < Count) {
    const Doubles along = spread<Row % W>(factor[Row / W]);
    for (int v = 0; v < V; ++v) rows[Row][v] = less(along, rows[C][v], rows[Row][v]);
    eliminate_rows<C, Row + 1, Count>(rows, factor);
  }
}

// After every division `meanwhile`. Roots would lengthen the chain from pivot to pivot: they are taken together,
// afterwards.
template <int C, int Count, class Meanwhile>
LEAKCORE_INLINE void eliminate(Doubles (*rows)[V], Corner* corner, Meanwhile&& meanwhile) {
  if constexpr (C < Count) {
    const Doubles pivot = spread<C % W>(rows[C][C / W]);
    corner->scale[C] = pivot[0];
    const Doubles reciprocal = doubles(1.0) / pivot;
    Doubles factor[V];
    for (int v = 0; v < V; ++v) factor[v] = rows[C][v] * reciprocal;
    memcpy(corner->unit[C], factor, sizeof corner->unit[C]);
    meanwhile();
    eliminate_rows<C, C + 1, Count>(rows, factor);
    eliminate<C + 1, Count>(rows, corner, meanwhile);
  }
}

// rows[c] −= Σ_{k < depth} b[k·ld + c]·a[k·ld + lanes], then R⁻ᵀ of the corner times them.
template <int S, int Count>
LEAKCORE_INLINE void advance(const double* a, const double* b, int64_t ld, int64_t depth, const Corner& corner,
                             Doubles (*rows)[S * V]) {
  constexpr int Step = Count < kColumns ? Count : kColumns;
  for (int c = 0; c < Count; c += Step) multiply<S, Step, true>(a, ld, kStripe, b + c, ld, depth, rows + c);
  // As loops they would go through memory, row by row.
#pragma GCC unroll 8
  for (int c = 0; c < Count; ++c) {
#pragma GCC unroll 8
    for (int t = c + 1; t < Count; ++t) {
      const Doubles factor = doubles(corner.unit[c][t]);
      for (int v = 0; v < S * V; ++v) rows[t][v] = less(factor, rows[c][v], rows[t][v]);
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < Count; ++c) {
    const Doubles scale = doubles(corner.scale[c]);
    for (int v = 0; v < S * V; ++v) rows[c][v] *= scale;
  }
}

// Of the factor's rows k … k+7 the columns i …, in place in g.
template <int S>
LEAKCORE_INLINE void advance_factor(double* g, int64_t ld, int64_t k, int64_t i, const Corner& corner) {
  Doubles rows[kStripe][S * V];
  for (int c = 0; c < kStripe; ++c) {
    for (int v = 0; v < S * V; ++v) rows[c][v] = doubles_at(g + (k + c) * ld + i + v * W);
  }
  advance<S, kStripe>(g + i, g + k, ld, k, corner, rows);
  for (int c = 0; c < kStripe; ++c) {
    for (int v = 0; v < S * V; ++v) store(g + (k + c) * ld + i + v * W, rows[c][v]);
  }
}

// A table instead of writing it again.
constexpr double kOne[kStripe][kStripe] = {{1, 0, 0, 0, 0, 0, 0, 0}, {0, 1, 0, 0, 0, 0, 0, 0}, {0, 0, 1, 0, 0, 0, 0, 0},
                                           {0, 0, 0, 1, 0, 0, 0, 0}, {0, 0, 0, 0, 1, 0, 0, 0}, {0, 0, 0, 0, 0, 1, 0, 0},
                                           {0, 0, 0, 0, 0, 0, 1, 0}, {0, 0, 0, 0, 0, 0, 0, 1}};

// Of the inverse's rows k … the columns i …, their squares added to the leverages.
template <int S, int Count>
LEAKCORE_INLINE void advance_inverse(const double* g, int64_t ld, int64_t k, int64_t i, const Corner& corner, double* m,
                                     double* leverage) {
  Doubles rows[Count][S * V];
  const bool diagonal = i + S * kStripe > k;
#pragma GCC unroll 8
  for (int c = 0; c < Count; ++c) {
    for (int v = 0; v < S * V; ++v) {
      rows[c][v] = diagonal && v >= (S - 1) * V ? doubles_at(kOne[c] + (v - (S - 1) * V) * W) : Doubles{};
    }
  }
  advance<S, Count>(m + i * ld + i, g + i * ld + k, ld, k - i, corner, rows);
  for (int v = 0; v < S * V; ++v) {
    Doubles squares = diagonal && v >= (S - 1) * V ? Doubles{} : doubles_at(leverage + i + v * W);
    for (int c = 0; c < Count; ++c) {
      squares = madd(rows[c][v], rows[c][v], squares);
      store(m + (k + c) * ld + i + v * W, rows[c][v]);
    }
    store(leverage + i + v * W, squares);
  }
}

// The corner at k, from the rows above it.
template <int Count, class Meanwhile>
LEAKCORE_INLINE bool factor_corner(double* g, int64_t num_rows, int64_t ld, int64_t k, double small, Corner* corner,
                                   Meanwhile&& meanwhile) {
  const int64_t here = num_rows - k < kStripe ? num_rows - k : kStripe;
  double* const block = g + k * ld + k;
  double diagonal[kStripe];
  Doubles rows[kStripe][V];
  for (int c = 0; c < Count; ++c) {
    diagonal[c] = block[c * ld + c];
    if (c >= here) block[c * ld + c] = 1.0;
    for (int v = 0; v < V; ++v) rows[c][v] = doubles_at(block + c * ld + v * W);
  }
  constexpr int Step = Count < kColumns ? Count : kColumns;
  for (int c = 0; c < Count; c += Step) multiply<1, Step, true>(g + k, ld, 0, g + k + c, ld, k, rows + c);
  eliminate<0, Count>(rows, corner, meanwhile);
  bool fine = true;
  for (int c = 0; c < Count; ++c) fine &= c >= here || corner->scale[c] > small * diagonal[c];
  for (int c = 0; c < Count; ++c) corner->scale[c] = 1.0 / __builtin_sqrt(corner->scale[c]);
  return fine;
}

// The inverse's rows from k on, columns before i, with their share of the leverages.
template <int Count>
inline void invert_rows(const double* g, int64_t ld, int64_t k, int64_t i, const Corner& corner, double* m,
                        double* leverage) {
  // Pairs from the right, so that no more than one stripe's zeros are multiplied.
  constexpr int Pair = kLanes < 2 ? 1 : 2;
  for (; i >= Pair * kStripe; i -= Pair * kStripe) {
    advance_inverse<Pair, Count>(g, ld, k, i - Pair * kStripe, corner, m, leverage);
  }
  if (i > 0) advance_inverse<1, Count>(g, ld, k, 0, corner, m, leverage);
}

// The rest of the factor's rows k … k+7 and of the inverse's, and the corner that follows them, with `Count` rows. A
// corner is one chain of dependent steps, which what is left of the rows before it fills: a stripe after each step.
template <int Count>
inline bool factor_rows(double* g, int64_t num_rows, int64_t ld, int64_t k, double small, const Corner& corner,
                        Corner* next, double* m, double* leverage) {
  const int64_t after = k + kStripe, end = (num_rows + kStripe - 1) / kStripe * kStripe;
  int64_t i = after + kStripe, back = after;  // of the factor columns from i on are left, of the inverse those before
  advance_factor<1>(g, ld, k, after, corner);
  const auto stripe = [&]() __attribute__((always_inline)) {
    if constexpr (W < 8) return;  // elsewhere registers are too few
    if (i < end) {
      advance_factor<1>(g, ld, k, i, corner);
      i += kStripe;
    } else if (back > 0) {
      back -= kStripe;
      advance_inverse<1, kStripe>(g, ld, k, back, corner, m, leverage);
    }
  };
  if (!factor_corner<Count>(g, num_rows, ld, after, small, next, stripe)) return false;
  for (; i + kLanes * kStripe <= end; i += kLanes * kStripe) advance_factor<kLanes>(g, ld, k, i, corner);
  for (; kLanes > 2 && i + 2 * kStripe <= end; i += 2 * kStripe) advance_factor<2>(g, ld, k, i, corner);
  for (; i < end; i += kStripe) advance_factor<1>(g, ld, k, i, corner);
  invert_rows<kStripe>(g, ld, k, back, corner, m, leverage);
  return true;
}

// body of as many rows, as a constant, as there are in a stripe of `here`, with no more of its zeros than need be.
template <class Body>
LEAKCORE_INLINE auto with_count(int64_t here, Body&& body) {
  return here > 4 ? body(Constant<8>{}) : here > 2 ? body(Constant<4>{}) : body(Constant<2>{});
}

bool factor(double* g, int64_t num_rows, int64_t ld, double small, double* m, double* leverage) {
  Corner corners[2], *corner = corners, *next = corners + 1;
  const bool fine = with_count(
      num_rows, [&](auto count) { return factor_corner<count.value>(g, num_rows, ld, 0, small, corner, [] {}); });
  if (!fine) return false;
  int64_t k = 0;
  for (; k + kStripe < num_rows; k += kStripe) {
    const bool more = with_count(num_rows - k - kStripe, [&](auto count) {
      return factor_rows<count.value>(g, num_rows, ld, k, small, *corner, next, m, leverage);
    });
    if (!more) return false;
    Corner* const last = corner;
    corner = next;
    next = last;
  }
  with_count(num_rows - k, [&](auto count) { invert_rows<count.value>(g, ld, k, k + kStripe, *corner, m, leverage); });
  return true;
}

}  // namespace
}  // namespace leakcore
