// Vectors of doubles of one instruction tier, for solve_labels_simd.cpp alone: in an anonymous namespace, and no
// library template is used, so that no inline function built for one tier can be linked into another.
#pragma once

#include <cstring>

#include "core/simd/lanes.h"
#include "solve_labels/solve_labels_simd.h"

namespace leakcore {
namespace {

constexpr int W = kDoubles;
// Left to the compiler's judgement, tiles of sums would go through memory from one function to the next.
#define LEAKCORE_INLINE [[gnu::always_inline]] inline

constexpr int V = kStripe / W;  // registers per stripe
// A tile of kLanes stripes times kColumns samples keeps its sums in registers and enough of them to hide the latency.
constexpr int kLanes = W == 8 ? 3 : 1;
constexpr int kColumns = W == 8 ? 8 : W == 4 ? 4 : 2;

// c − a·b.
inline Doubles less(Doubles a, Doubles b, Doubles c) {
#if defined(__AVX512F__)
  return _mm512_fnmadd_pd(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fnmadd_pd(a, b, c);
#else
  return madd(-a, b, c);
#endif
}

// x in a register: what is used twice GCC would load twice.
inline Doubles loaded(Doubles x) {
#if defined(__SSE2__)
  asm("" : "+v"(x));
#endif
  return x;
}

inline Doubles magnitude(Doubles x) {
  return real_of(bits_of(x) & 0x7fffffffffffffffull);
}

template <int L>
inline Doubles spread(Doubles x) {
#if defined(__AVX512F__)
  return shuffled<L, L, L, L, L, L, L, L>(x, x);
#elif defined(__AVX2__)
  return shuffled<L, L, L, L>(x, x);
#else
  return shuffled<L, L>(x, x);
#endif
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// The 4 × 4 tile transposed.
LEAKCORE_INLINE void exchange(Doubles* x) {
  for (int i = 0; i < 4; i += 2) {
    const Doubles a = x[i], b = x[i + 1];
    x[i] = shuffled<0, 4, 2, 6>(a, b);
    x[i + 1] = shuffled<1, 5, 3, 7>(a, b);
  }
  for (int i = 0; i < 2; ++i) {
    const Doubles a = x[i], b = x[i + 2];
    x[i] = shuffled<0, 1, 4, 5>(a, b);
    x[i + 2] = shuffled<2, 3, 6, 7>(a, b);
  }
}
#endif

// What a generic body may use as a constant.
template <auto Value>
struct Constant {
  static constexpr auto value = Value;
};

// body(Constant<n>{}) for an n of Most at most; nothing for 0.
template <int Most, class Body>
LEAKCORE_INLINE void with_constant(int64_t n, Body&& body) {
  if constexpr (Most > 0) {
    if (n == Most) return body(Constant<Most>{});
    with_constant<Most - 1>(n, body);
  }
}

// sums[c][s] ± = Σ_k a_s[k·a_step + lanes]·b[k·b_step + c], in order of k; stripe s of a begins at a + s·a_next.
template <int S, int C, bool Minus = false>
LEAKCORE_INLINE void multiply(const double* a, int64_t a_step, int64_t a_next, const double* b, int64_t b_step,
                              int64_t depth, Doubles (*sums)[S * V]) {
  Doubles acc[C][S * V];
  for (int c = 0; c < C; ++c) {
    for (int v = 0; v < S * V; ++v) acc[c][v] = sums[c][v];
  }
  for (int64_t k = 0; k < depth; ++k, a += a_step, b += b_step) {
    Doubles x[S * V];
    for (int s = 0; s < S; ++s) {
      for (int v = 0; v < V; ++v) x[s * V + v] = doubles_at(a + s * a_next + v * W);
    }
    for (int c = 0; c < C; ++c) {
      const Doubles y = doubles(b[c]);
      for (int v = 0; v < S * V; ++v) acc[c][v] = Minus ? less(x[v], y, acc[c][v]) : madd(x[v], y, acc[c][v]);
    }
  }
  for (int c = 0; c < C; ++c) {
    for (int v = 0; v < S * V; ++v) sums[c][v] = acc[c][v];
  }
}

}  // namespace
}  // namespace leakcore
