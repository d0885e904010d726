// Cholesky factor, inverse and leverages of a Gram matrix, for pinv_simd.cpp alone.
#pragma once

#include "pinv/simd_lanes.h"

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

// Roots would lengthen the chain from pivot to pivot: they are taken together, afterwards.
template <int C, int Count>
LEAKCORE_INLINE void eliminate(Doubles (*rows)[V], Corner* corner) {
  if constexpr (C < Count) {
    const Doubles pivot = spread<C % W>(rows[C][C / W]);
    corner->scale[C] = pivot[0];
    const Doubles reciprocal = doubles(1.0) / pivot;
    Doubles factor[V];
    for (int v = 0; v < V; ++v) factor[v] = rows[C][v] * reciprocal;
    memcpy(corner->unit[C], factor, sizeof corner->unit[C]);
    eliminate_rows<C, C + 1, Count>(rows, factor);
    eliminate<C + 1, Count>(rows, corner);
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
inline void advance_factor(double* g, int64_t ld, int64_t k, int64_t i, const Corner& corner) {
  Doubles rows[kStripe][S * V];
  for (int c = 0; c < kStripe; ++c) {
    for (int v = 0; v < S * V; ++v) rows[c][v] = doubles_at(g + (k + c) * ld + i + v * W);
  }
  advance<S, kStripe>(g + i, g + k, ld, k, corner, rows);
  for (int c = 0; c < kStripe; ++c) {
    for (int v = 0; v < S * V; ++v) store(g + (k + c) * ld + i + v * W, rows[c][v]);
  }
}

// A table, where writing it anew would cost a tenth of all.
constexpr double kOne[kStripe][kStripe] = {{1, 0, 0, 0, 0, 0, 0, 0}, {0, 1, 0, 0, 0, 0, 0, 0}, {0, 0, 1, 0, 0, 0, 0, 0},
                                           {0, 0, 0, 1, 0, 0, 0, 0}, {0, 0, 0, 0, 1, 0, 0, 0}, {0, 0, 0, 0, 0, 1, 0, 0},
                                           {0, 0, 0, 0, 0, 0, 1, 0}, {0, 0, 0, 0, 0, 0, 0, 1}};

// Of the inverse's rows k … the columns i …, their squares added to the leverages.
template <int S, int Count>
inline void advance_inverse(const double* g, int64_t ld, int64_t k, int64_t i, const Corner& corner, double* m,
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

template <int Count>
inline bool factor_rows(double* g, int64_t num_rows, int64_t ld, int64_t k, double small, double* m, double* leverage) {
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
  Corner corner;
  eliminate<0, Count>(rows, &corner);
  bool fine = true;
  for (int c = 0; c < Count; ++c) fine &= c >= here || corner.scale[c] > small * diagonal[c];
  if (!fine) return false;
  for (int c = 0; c < Count; ++c) corner.scale[c] = 1.0 / __builtin_sqrt(corner.scale[c]);
  if constexpr (Count == kStripe) {
    const int64_t end = (num_rows + kStripe - 1) / kStripe * kStripe;
    int64_t i = k + kStripe;
    for (; i + kLanes * kStripe <= end; i += kLanes * kStripe) advance_factor<kLanes>(g, ld, k, i, corner);
    for (; kLanes > 2 && i + 2 * kStripe <= end; i += 2 * kStripe) advance_factor<2>(g, ld, k, i, corner);
    for (; i < num_rows; i += kStripe) advance_factor<1>(g, ld, k, i, corner);
  }
  // Pairs from the right, so that no more than one stripe's zeros are multiplied.
  constexpr int Pair = kLanes < 2 ? 1 : 2;
  int64_t i = k + kStripe;
  for (; i >= Pair * kStripe; i -= Pair * kStripe) {
    advance_inverse<Pair, Count>(g, ld, k, i - Pair * kStripe, corner, m, leverage);
  }
  if (i > 0) advance_inverse<1, Count>(g, ld, k, 0, corner, m, leverage);
  return true;
}

bool factor(double* g, int64_t num_rows, int64_t ld, double small, double* m, double* leverage) {
  for (int64_t k = 0; k < num_rows; k += kStripe) {
    const int64_t here = num_rows - k;
    const bool fine = here > 4   ? factor_rows<8>(g, num_rows, ld, k, small, m, leverage)
                      : here > 2 ? factor_rows<4>(g, num_rows, ld, k, small, m, leverage)
                                 : factor_rows<2>(g, num_rows, ld, k, small, m, leverage);
    if (!fine) return false;
  }
  return true;
}

}  // namespace
}  // namespace leakcore
