// Array elements of any type as vectors of doubles of the tier that this file is compiled for (core/vec.h), and those
// of at most 32 bits as vectors of floats: all widen exactly. Only *_simd.cpp may include it.
#pragma once

#include "core/simd/arith.h"
#include "core/simd/half.h"
#include "core/simd/vec.h"

namespace leakcore {

LEAKCORE_HD Doubles doubles_at(const double* p) {
  return load<Doubles>(p);
}
LEAKCORE_HD Floats floats_at(const float* p) {
  return load<Floats>(p);
}
#if defined(__AVX512F__)
// GCC 12 splits the conversion of eight lanes in two unless the instruction is named; the plain intrinsic makes it
// warn.
LEAKCORE_HD Doubles doubles_of(__m256 x) {
  return _mm512_maskz_cvtps_pd(0xff, x);
}
LEAKCORE_HD Doubles doubles_at(const float* p) {
  return doubles_of(_mm256_loadu_ps(p));
}
// The lanes whose bits are set, zeros in the others, which are not read.
LEAKCORE_HD Doubles doubles_at(const double* p, unsigned lanes) {
  return _mm512_maskz_loadu_pd(static_cast<__mmask8>(lanes), p);
}
LEAKCORE_HD Doubles doubles_at(const float* p, unsigned lanes) {
  return doubles_of(_mm256_maskz_loadu_ps(static_cast<__mmask8>(lanes), p));
}
LEAKCORE_HD void store(double* p, Doubles x, unsigned lanes) {
  _mm512_mask_storeu_pd(p, static_cast<__mmask8>(lanes), x);
}
LEAKCORE_HD Doubles doubles_at(const Brain* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return doubles_of(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)));
}
LEAKCORE_HD Doubles doubles_at(const Half* p) {
  return doubles_of(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
LEAKCORE_HD Floats floats_at(const Brain* p) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
LEAKCORE_HD Floats floats_at(const Half* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
#elif defined(__AVX2__)
LEAKCORE_HD Doubles doubles_at(const float* p) {
  return _mm256_cvtps_pd(_mm_loadu_ps(p));
}
LEAKCORE_HD Doubles doubles_at(const Brain* p) {
  const __m128i x = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(x), 16)));
}
LEAKCORE_HD Doubles doubles_at(const Half* p) {
  return _mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
LEAKCORE_HD Floats floats_at(const Brain* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
LEAKCORE_HD Floats floats_at(const Half* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
#else
LEAKCORE_HD Doubles doubles_at(const float* p) {
#if defined(__SSE2__)
  return _mm_cvtps_pd(_mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#elif defined(__aarch64__)
  return vcvt_f64_f32(vld1_f32(p));
#else
  return __builtin_convertvector(load<HalfFloats>(p), Doubles);
#endif
}
template <class T>
LEAKCORE_HD Doubles doubles_at(const T* p) {
  Doubles x;
  for (int k = 0; k < kDoubles; ++k) x[k] = widen(p[k]);
  return x;
}
#if defined(__aarch64__)
LEAKCORE_HD Floats floats_at(const Brain* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(&p->bits), 16));
}
LEAKCORE_HD Floats floats_at(const Half* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&p->bits)));
}
#else
template <class T>
LEAKCORE_HD Floats floats_at(const T* p) {
  Floats x;
  for (int k = 0; k < kFloats; ++k) x[k] = static_cast<float>(widen(p[k]));
  return x;
}
#endif
#endif

// 2·kFloats elements as floats, in the order that costs least: of Brain those at even places and those at odd ones, of
// Half the first and the second half. `join` puts lanes of such vectors into the elements' order.
LEAKCORE_HD void split(const Brain* p, Floats* a, Floats* b) {
  const Ints pairs = load<Ints>(p);
  *a = real_of(pairs << 16);
  *b = real_of(pairs & ints(0xffff0000u));
}
LEAKCORE_HD void join(const Brain*, Floats* a, Floats* b) {
  Ints even = bits_of(*a), odd = bits_of(*b);
  interleave(&even, &odd);
  *a = real_of(even);
  *b = real_of(odd);
}
LEAKCORE_HD void split(const Half* p, Floats* a, Floats* b) {
  *a = floats_at(p);
  *b = floats_at(p + kFloats);
}
LEAKCORE_HD void join(const Half*, Floats*, Floats*) {}

}  // namespace leakcore
