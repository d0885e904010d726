// Vectors of the instruction tier that this file is compiled for, with the operations of core/arith.h. GCC's vector
// extensions do the rest: one register per vector, the same expressions as for a number. Only *_simd.cpp may include
// it; everything is always inlined, so nothing built for one tier can be linked into another.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/simd/hd.h"

#if defined(__SSE2__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC's own headers read a register without setting it, on purpose
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace leakcore {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kDoubles = kVectorBytes / 8;
constexpr int kFloats = kVectorBytes / 4;

// Arrays that vectors are loaded from: a load across two cache lines costs twice.
#define LEAKCORE_ALIGNED alignas(64)

typedef double Doubles __attribute__((vector_size(kVectorBytes)));
typedef uint64_t Longs __attribute__((vector_size(kVectorBytes)));
typedef int64_t LongMask __attribute__((vector_size(kVectorBytes)));
typedef float Floats __attribute__((vector_size(kVectorBytes)));
typedef uint32_t Ints __attribute__((vector_size(kVectorBytes)));
typedef int32_t IntMask __attribute__((vector_size(kVectorBytes)));
typedef uint32_t HalfInts __attribute__((vector_size(kVectorBytes / 2)));
typedef float HalfFloats __attribute__((vector_size(kVectorBytes / 2)));

template <class V, class T>
LEAKCORE_HD V load(const T* p) {
  V x;
  memcpy(&x, p, sizeof x);
  return x;
}
template <class V, class T>
LEAKCORE_HD void store(T* p, V x) {
  memcpy(p, &x, sizeof x);
}

// c − 0 is c for every c, its sign included.
LEAKCORE_HD Doubles doubles(double c) {
  return c - Doubles{};
}
LEAKCORE_HD Floats floats(float c) {
  return c - Floats{};
}
LEAKCORE_HD Longs longs(uint64_t c) {
  return c - Longs{};
}
LEAKCORE_HD Ints ints(uint32_t c) {
  return c - Ints{};
}

LEAKCORE_HD Longs bits_of(Doubles x) {
  return reinterpret_cast<Longs>(x);
}
LEAKCORE_HD Ints bits_of(Floats x) {
  return reinterpret_cast<Ints>(x);
}
LEAKCORE_HD Doubles real_of(Longs x) {
  return reinterpret_cast<Doubles>(x);
}
LEAKCORE_HD Floats real_of(Ints x) {
  return reinterpret_cast<Floats>(x);
}

#if defined(__AVX512F__)
LEAKCORE_HD Doubles madd(Doubles a, Doubles b, Doubles c) {
  return _mm512_fmadd_pd(a, b, c);
}
LEAKCORE_HD Floats madd(Floats a, Floats b, Floats c) {
  return _mm512_fmadd_ps(a, b, c);
}
LEAKCORE_HD Doubles root(Doubles x) {
  return _mm512_sqrt_pd(x);
}
LEAKCORE_HD Floats root(Floats x) {
  return _mm512_sqrt_ps(x);
}
LEAKCORE_HD Longs multiply32(Longs a, uint32_t m) {
  return reinterpret_cast<Longs>(_mm512_mul_epu32(reinterpret_cast<__m512i>(a), _mm512_set1_epi64(m)));
}
// The upper (lower) halves of a's lanes into the lower halves, b's into the upper ones.
LEAKCORE_HD Longs merge_upper(Longs a, Longs b) {
  return reinterpret_cast<Longs>(
      _mm512_mask_shuffle_epi32(reinterpret_cast<__m512i>(b), 0x5555, reinterpret_cast<__m512i>(a), _MM_PERM_DDBB));
}
LEAKCORE_HD Longs merge_lower(Longs a, Longs b) {
  return reinterpret_cast<Longs>(
      _mm512_mask_shuffle_epi32(reinterpret_cast<__m512i>(a), 0xAAAA, reinterpret_cast<__m512i>(b), _MM_PERM_CCAA));
}
#elif defined(__AVX2__)
LEAKCORE_HD Doubles madd(Doubles a, Doubles b, Doubles c) {
  return _mm256_fmadd_pd(a, b, c);
}
LEAKCORE_HD Floats madd(Floats a, Floats b, Floats c) {
  return _mm256_fmadd_ps(a, b, c);
}
LEAKCORE_HD Doubles root(Doubles x) {
  return _mm256_sqrt_pd(x);
}
LEAKCORE_HD Floats root(Floats x) {
  return _mm256_sqrt_ps(x);
}
LEAKCORE_HD Longs multiply32(Longs a, uint32_t m) {
  return reinterpret_cast<Longs>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), _mm256_set1_epi64x(m)));
}
LEAKCORE_HD Longs merge_upper(Longs a, Longs b) {
  return reinterpret_cast<Longs>(
      _mm256_blend_epi32(_mm256_srli_epi64(reinterpret_cast<__m256i>(a), 32), reinterpret_cast<__m256i>(b), 0xAA));
}
LEAKCORE_HD Longs merge_lower(Longs a, Longs b) {
  return reinterpret_cast<Longs>(
      _mm256_blend_epi32(reinterpret_cast<__m256i>(a), _mm256_slli_epi64(reinterpret_cast<__m256i>(b), 32), 0xAA));
}
#elif defined(__aarch64__)
LEAKCORE_HD Doubles madd(Doubles a, Doubles b, Doubles c) {
  return vfmaq_f64(c, a, b);
}
LEAKCORE_HD Floats madd(Floats a, Floats b, Floats c) {
  return vfmaq_f32(c, a, b);
}
LEAKCORE_HD Doubles root(Doubles x) {
  return vsqrtq_f64(x);
}
LEAKCORE_HD Floats root(Floats x) {
  return vsqrtq_f32(x);
}
LEAKCORE_HD Longs multiply32(Longs a, uint32_t m) {
  return reinterpret_cast<Longs>(vmull_n_u32(vmovn_u64(reinterpret_cast<uint64x2_t>(a)), m));
}
#else
LEAKCORE_HD Doubles madd(Doubles a, Doubles b, Doubles c) {
  return a * b + c;
}
LEAKCORE_HD Floats madd(Floats a, Floats b, Floats c) {
  return a * b + c;
}
#if defined(__SSE2__)
LEAKCORE_HD Doubles root(Doubles x) {
  return _mm_sqrt_pd(x);
}
LEAKCORE_HD Floats root(Floats x) {
  return _mm_sqrt_ps(x);
}
LEAKCORE_HD Longs multiply32(Longs a, uint32_t m) {
  return reinterpret_cast<Longs>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), _mm_set1_epi64x(m)));
}
#else
LEAKCORE_HD Doubles root(Doubles x) {
  for (int i = 0; i < kDoubles; ++i) x[i] = __builtin_sqrt(x[i]);
  return x;
}
LEAKCORE_HD Floats root(Floats x) {
  for (int i = 0; i < kFloats; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
}
LEAKCORE_HD Longs multiply32(Longs a, uint32_t m) {
  return (a & 0xffffffffu) * m;
}
#endif
#endif
#if !defined(__AVX2__)
LEAKCORE_HD Longs merge_upper(Longs a, Longs b) {
  return a >> 32 | (b & 0xffffffff00000000ull);
}
LEAKCORE_HD Longs merge_lower(Longs a, Longs b) {
  return (a & 0xffffffffull) | b << 32;
}
#endif

LEAKCORE_HD Doubles madd(Doubles a, Doubles b, double c) {
  return madd(a, b, doubles(c));
}
LEAKCORE_HD Doubles madd(Doubles a, double b, Doubles c) {
  return madd(a, doubles(b), c);
}
LEAKCORE_HD Doubles madd(Doubles a, double b, double c) {
  return madd(a, doubles(b), doubles(c));
}
LEAKCORE_HD Floats madd(Floats a, Floats b, float c) {
  return madd(a, b, floats(c));
}
LEAKCORE_HD Floats madd(Floats a, float b, Floats c) {
  return madd(a, floats(b), c);
}
LEAKCORE_HD Floats madd(Floats a, float b, float c) {
  return madd(a, floats(b), floats(c));
}

// Lanes by number, b's after a's. GCC has Clang's function for it from version 12 on.
#if defined(__clang__) || __GNUC__ >= 12
#define LEAKCORE_SHUFFLED(mask) __builtin_shufflevector(a, b, Lanes...)
#else
#define LEAKCORE_SHUFFLED(mask) __builtin_shuffle(a, b, mask{Lanes...})
#endif
template <int... Lanes>
LEAKCORE_HD Doubles shuffled(Doubles a, Doubles b) {
  return LEAKCORE_SHUFFLED(LongMask);
}
template <int... Lanes>
LEAKCORE_HD Ints shuffled(Ints a, Ints b) {
  return LEAKCORE_SHUFFLED(IntMask);
}

LEAKCORE_HD Doubles select(LongMask condition, Doubles yes, Doubles no) {
  return condition ? yes : no;
}
LEAKCORE_HD Floats select(IntMask condition, Floats yes, Floats no) {
  return condition ? yes : no;
}

LEAKCORE_HD Ints sign_mask(Ints x) {
  return reinterpret_cast<Ints>(reinterpret_cast<IntMask>(x) >> 31);
}
LEAKCORE_HD Floats nearest_float(Ints x) {
  return __builtin_convertvector(reinterpret_cast<IntMask>(x), Floats);
}

// 32-bit words, one to a 64-bit lane.
LEAKCORE_HD Longs widen(const uint32_t* p) {
#if defined(__aarch64__)
  return reinterpret_cast<Longs>(vmovl_u32(vld1_u32(p)));
#else
  return __builtin_convertvector(load<HalfInts>(p), Longs);
#endif
}
LEAKCORE_HD void widen(Floats x, Doubles* low, Doubles* high) {
#if defined(__AVX512F__)
  *low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
  *high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
#elif defined(__AVX2__)
  *low = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
  *high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
#elif defined(__SSE2__)
  *low = _mm_cvtps_pd(x);
  *high = _mm_cvtps_pd(_mm_movehl_ps(x, x));
#elif defined(__aarch64__)
  *low = vcvt_f64_f32(vget_low_f32(x));
  *high = vcvt_high_f64_f32(x);
#else
  HalfFloats halves[2];
  memcpy(halves, &x, sizeof halves);
  *low = __builtin_convertvector(halves[0], Doubles);
  *high = __builtin_convertvector(halves[1], Doubles);
#endif
}

// a0 b0 a1 b1 …
LEAKCORE_HD void store_interleaved(double* out, Doubles a, Doubles b) {
#if defined(__AVX512F__)
  const __m512i low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), high = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
  _mm512_storeu_pd(out, _mm512_permutex2var_pd(a, low, b));
  _mm512_storeu_pd(out + 8, _mm512_permutex2var_pd(a, high, b));
#elif defined(__AVX2__)
  const __m256d low = _mm256_unpacklo_pd(a, b), high = _mm256_unpackhi_pd(a, b);
  _mm256_storeu_pd(out, _mm256_permute2f128_pd(low, high, 0x20));
  _mm256_storeu_pd(out + 4, _mm256_permute2f128_pd(low, high, 0x31));
#else
  store(out, shuffled<0, 2>(a, b));
  store(out + 2, shuffled<1, 3>(a, b));
#endif
}

// a0 b0 a1 b1 … in the order of their lanes, first in a, then in b.
LEAKCORE_HD void interleave(Ints* a, Ints* b) {
#if defined(__AVX512F__)
  const __m512i x = reinterpret_cast<__m512i>(*a), y = reinterpret_cast<__m512i>(*b);
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  *a = reinterpret_cast<Ints>(_mm512_permutex2var_epi32(x, low, y));
  *b = reinterpret_cast<Ints>(_mm512_permutex2var_epi32(x, high, y));
#elif defined(__AVX2__)
  const __m256i x = reinterpret_cast<__m256i>(*a), y = reinterpret_cast<__m256i>(*b);
  const __m256i low = _mm256_unpacklo_epi32(x, y), high = _mm256_unpackhi_epi32(x, y);
  *a = reinterpret_cast<Ints>(_mm256_permute2x128_si256(low, high, 0x20));
  *b = reinterpret_cast<Ints>(_mm256_permute2x128_si256(low, high, 0x31));
#else
  const Ints x = *a, y = *b;
  *a = shuffled<0, 4, 1, 5>(x, y);
  *b = shuffled<2, 6, 3, 7>(x, y);
#endif
}

LEAKCORE_HD void store_interleaved(void* out, Ints a, Ints b) {
  interleave(&a, &b);
  store(static_cast<char*>(out), a);
  store(static_cast<char*>(out) + kVectorBytes, b);
}

LEAKCORE_HD bool any(LongMask m) {
#if defined(__AVX512F__)
  return _mm512_test_epi64_mask(reinterpret_cast<__m512i>(m), reinterpret_cast<__m512i>(m)) != 0;
#elif defined(__AVX2__)
  return !_mm256_testz_si256(reinterpret_cast<__m256i>(m), reinterpret_cast<__m256i>(m));
#else
  int64_t out = 0;
  for (int i = 0; i < kDoubles; ++i) out |= m[i];
  return out != 0;
#endif
}

// Eight numbers of 64 bits, one of them per lane by the three low bits of an index.
#if defined(__AVX512F__)
typedef Longs Eight;
LEAKCORE_HD Eight eight(const uint64_t* x) {
  return load<Longs>(x);
}
LEAKCORE_HD Longs look_up(Eight table, Longs index) {
  return reinterpret_cast<Longs>(
      _mm512_permutexvar_epi64(reinterpret_cast<__m512i>(index), reinterpret_cast<__m512i>(table)));
}
#elif defined(__AVX2__)
struct Eight {
  __m256i low, high;  // halves
};
LEAKCORE_HD Eight eight(const uint64_t* x) {
  uint32_t low[8], high[8];
  for (int j = 0; j < 8; ++j) {
    low[j] = static_cast<uint32_t>(x[j]);
    high[j] = static_cast<uint32_t>(x[j] >> 32);
  }
  return {load<__m256i>(low), load<__m256i>(high)};
}
LEAKCORE_HD Longs look_up(Eight table, Longs index) {
  const __m256i low = _mm256_permutevar8x32_epi32(table.low, reinterpret_cast<__m256i>(index));
  const __m256i high = _mm256_permutevar8x32_epi32(table.high, reinterpret_cast<__m256i>(index << 32));
  return reinterpret_cast<Longs>(_mm256_blend_epi32(low, high, 0xAA));
}
#else
struct Eight {
  uint64_t x[8];
};
LEAKCORE_HD Eight eight(const uint64_t* x) {
  Eight table;
  memcpy(table.x, x, sizeof table.x);
  return table;
}
LEAKCORE_HD Longs look_up(const Eight& table, Longs index) {
  Longs r;
  for (int i = 0; i < kDoubles; ++i) r[i] = table.x[index[i] & 7];
  return r;
}
#endif

}  // namespace leakcore
