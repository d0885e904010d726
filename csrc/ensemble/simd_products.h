// Products of small matrices for ensemble_simd.cpp alone: in an anonymous namespace, and no library template is called,
// so that no inline function built for one tier can be linked into another.
//
// Nearly all time goes into three products of the first layer's size, each a loop over register tiles that does more
// multiply-adds than loads: rows by outputs with the outputs in lanes (wide layers), or with the inputs in lanes
// (narrow ones), and outputs by inputs summed over rows. Rows are read where they lie, through pointers: batches need
// not be copied together.
#pragma once

#include "core/simd/elementary.h"
#include "core/simd/vec.h"
#include "ensemble/ensemble_simd.h"

namespace leakcore {
namespace {

template <class T>
struct Lanes;
template <>
struct Lanes<float> {
  typedef Floats V;
  static constexpr int count = kFloats;
  LEAKCORE_HD static V all(float c) { return floats(c); }
};
template <>
struct Lanes<double> {
  typedef Doubles V;
  static constexpr int count = kDoubles;
  LEAKCORE_HD static V all(double c) { return doubles(c); }
};

// With 32 registers 24 accumulators, with 16 of them 12.
constexpr int kTileRows = kVectorBytes == 64 ? 12 : 6;
constexpr int kPanel = kVectorBytes == 64 ? 4 : 2;

// out[r][c] = bias[c] + Σ_k x[r][k]·w[k][c] for R rows and V vectors of columns.
template <class T, int R, int V>
inline void wide_tile(const T* const* x, int64_t depth, const T* w, int64_t ldw, const T* bias, T* out, int64_t ldo) {
  typedef typename Lanes<T>::V Vec;
  constexpr int L = Lanes<T>::count;
  const T* row[R];
  Vec acc[R][V];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    row[r] = x[r];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) acc[r][v] = bias ? load<Vec>(bias + v * L) : Vec{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    Vec b[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) b[v] = load<Vec>(w + k * ldw + v * L);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const Vec a = Lanes<T>::all(row[r][k]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) acc[r][v] = madd(a, b[v], acc[r][v]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) store(out + r * ldo + v * L, acc[r][v]);
  }
}

template <class T, int V>
inline void wide_columns(const T* const* x, int64_t rows, int64_t depth, const T* w, int64_t ldw, const T* bias, T* out,
                         int64_t ldo) {
  int64_t r = 0;
  for (; r + kTileRows <= rows; r += kTileRows) {
    wide_tile<T, kTileRows, V>(x + r, depth, w, ldw, bias, out + r * ldo, ldo);
  }
  for (; r + 4 <= rows; r += 4) wide_tile<T, 4, V>(x + r, depth, w, ldw, bias, out + r * ldo, ldo);
  for (; r < rows; ++r) wide_tile<T, 1, V>(x + r, depth, w, ldw, bias, out + r * ldo, ldo);
}

// out = bias + x·w, x (rows, depth), w (depth, columns); columns a multiple of kRowPad, hence of the lanes.
template <class T>
inline void multiply_wide(const T* const* x, int64_t rows, int64_t depth, const T* w, int64_t columns, const T* bias,
                          T* out) {
  constexpr int L = Lanes<T>::count;
  int64_t c = 0;
  for (; c + 2 * L <= columns; c += 2 * L) {
    wide_columns<T, 2>(x, rows, depth, w + c, columns, bias ? bias + c : nullptr, out + c, columns);
  }
  for (; c < columns; c += L) {
    wide_columns<T, 1>(x, rows, depth, w + c, columns, bias ? bias + c : nullptr, out + c, columns);
  }
}

// Sums over a row are taken in 64 bytes of lanes on every tier, whose vectors are parts of that: a lane adds the same
// elements whatever the vectors' width, so the tiers differ by the rounding of fused products alone.
constexpr int kParts = 64 / kVectorBytes;

// The lanes folded in halves, on every tier; the instruction sequence of AVX-512 is that, without a detour through
// memory.
template <class T>
inline T lane_sum(const typename Lanes<T>::V* parts) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    return _mm512_reduce_add_ps(parts[0]);
  } else {
    return _mm512_reduce_add_pd(parts[0]);
  }
#else
  typedef typename Lanes<T>::V Vec;
  constexpr int L = Lanes<T>::count;
  Vec part[kParts];
#pragma GCC unroll 4
  for (int p = 0; p < kParts; ++p) part[p] = parts[p];
#pragma GCC unroll 2
  for (int half = kParts / 2; half > 0; half /= 2) {
#pragma GCC unroll 2
    for (int p = 0; p < half; ++p) part[p] += part[p + half];
  }
  LEAKCORE_ALIGNED T lane[L];
  store(lane, part[0]);
  for (int half = L / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  }
  return lane[0];
#endif
}

// out[r][o] = bias[o] + ⟨x[r], w[o]⟩ for R rows and O outputs; rows and weights are zero-padded to `depth`, a multiple
// of kRowPad.
template <class T, int R, int O>
inline void narrow_tile(const T* const* x, int64_t depth, const T* w, int64_t ldw, const T* bias, T* out, int64_t ldo) {
  typedef typename Lanes<T>::V Vec;
  constexpr int L = Lanes<T>::count;
  Vec acc[R][O][kParts];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int o = 0; o < O; ++o) {
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) acc[r][o][p] = Vec{};
    }
  }
  for (int64_t k = 0; k < depth; k += kParts * L) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      Vec b[O];
#pragma GCC unroll 4
      for (int o = 0; o < O; ++o) b[o] = load<Vec>(w + o * ldw + k + p * L);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec a = load<Vec>(x[r] + k + p * L);
#pragma GCC unroll 4
        for (int o = 0; o < O; ++o) acc[r][o][p] = madd(a, b[o], acc[r][o][p]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int o = 0; o < O; ++o) out[r * ldo + o] = bias[o] + lane_sum<T>(acc[r][o]);
  }
}

// At most eight accumulators, which fit the registers of every tier together with what is multiplied.
template <class T, int O>
inline void narrow_outputs(const T* const* x, int64_t rows, int64_t depth, const T* w, int64_t ldw, const T* bias,
                           T* out, int64_t ldo) {
  constexpr int R = O * kParts >= 8 ? 1 : 8 / (O * kParts);
  int64_t r = 0;
  for (; r + R <= rows; r += R) narrow_tile<T, R, O>(x + r, depth, w, ldw, bias, out + r * ldo, ldo);
  for (; r < rows; ++r) narrow_tile<T, 1, O>(x + r, depth, w, ldw, bias, out + r * ldo, ldo);
}

template <class T>
inline void multiply_narrow(const T* const* x, int64_t rows, int64_t depth, const T* w, int64_t ldw, int64_t outputs,
                            const T* bias, T* out, int64_t ldo) {
  int64_t o = 0;
  if constexpr (kParts == 1) {
    for (; o + 4 <= outputs; o += 4) narrow_outputs<T, 4>(x, rows, depth, w + o * ldw, ldw, bias + o, out + o, ldo);
  }
  for (; o + 2 <= outputs; o += 2) narrow_outputs<T, 2>(x, rows, depth, w + o * ldw, ldw, bias + o, out + o, ldo);
  for (; o < outputs; ++o) narrow_outputs<T, 1>(x, rows, depth, w + o * ldw, ldw, bias + o, out + o, ldo);
}

// sum[o][k] += Σ_r delta[r][o]·x[r][k] for O outputs and V vectors of inputs.
template <class T, int O, int V>
inline void sum_tile(const T* const* x, int64_t rows, int64_t k, const T* delta, int64_t ldd, T* sum, int64_t lds) {
  typedef typename Lanes<T>::V Vec;
  constexpr int L = Lanes<T>::count;
  Vec acc[O][V];
#pragma GCC unroll 4
  for (int o = 0; o < O; ++o) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) acc[o][v] = load<Vec>(sum + o * lds + v * L);
  }
  for (int64_t r = 0; r < rows; ++r) {
    Vec a[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) a[v] = load<Vec>(x[r] + k + v * L);
#pragma GCC unroll 4
    for (int o = 0; o < O; ++o) {
      const Vec d = Lanes<T>::all(delta[r * ldd + o]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) acc[o][v] = madd(d, a[v], acc[o][v]);
    }
  }
#pragma GCC unroll 4
  for (int o = 0; o < O; ++o) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) store(sum + o * lds + v * L, acc[o][v]);
  }
}

template <class T, int V>
inline void sum_panel(const T* const* x, int64_t rows, int64_t k, const T* delta, int64_t ldd, int64_t outputs, T* sum,
                      int64_t lds) {
  int64_t o = 0;
  for (; o + 4 <= outputs; o += 4) sum_tile<T, 4, V>(x, rows, k, delta + o, ldd, sum + o * lds + k, lds);
  for (; o + 2 <= outputs; o += 2) sum_tile<T, 2, V>(x, rows, k, delta + o, ldd, sum + o * lds + k, lds);
  for (; o < outputs; ++o) sum_tile<T, 1, V>(x, rows, k, delta + o, ldd, sum + o * lds + k, lds);
}

// sum (outputs, inputs) += deltaᵀ·x; inputs padded.
template <class T>
inline void add_products(const T* const* x, int64_t rows, const T* delta, int64_t ldd, int64_t outputs, T* sum,
                         int64_t inputs) {
  constexpr int L = Lanes<T>::count;
  int64_t k = 0;
  if (outputs == 1) {
    for (; k + 2 * kPanel * L <= inputs; k += 2 * kPanel * L) {
      sum_tile<T, 1, 2 * kPanel>(x, rows, k, delta, ldd, sum + k, inputs);
    }
  }
  for (; k + kPanel * L <= inputs; k += kPanel * L) sum_panel<T, kPanel>(x, rows, k, delta, ldd, outputs, sum, inputs);
  for (; k < inputs; k += L) sum_panel<T, 1>(x, rows, k, delta, ldd, outputs, sum, inputs);
}

template <class T>
inline T sum_of_squares(const T* x, int64_t count) {
  typedef typename Lanes<T>::V Vec;
  constexpr int L = Lanes<T>::count;
  Vec acc[kParts] = {};
  for (int64_t i = 0; i < count; i += kParts * L) {
#pragma GCC unroll 4
    for (int p = 0; p < kParts; ++p) {
      const Vec a = load<Vec>(x + i + p * L);
      acc[p] = madd(a, a, acc[p]);
    }
  }
  return lane_sum<T>(acc);
}

}  // namespace
}  // namespace leakcore
