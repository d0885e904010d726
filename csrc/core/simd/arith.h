// The few operations from which elementary.h, philox.h and normal.h are written once for every lane type: a number
// (here: host, CUDA, and CUDA emulated on the host) and, in the files compiled per instruction tier, a vector of them
// (core/vec.h).
//
// madd(a, b, c) is a·b + c with one rounding wherever the hardware has it: AVX2, AVX-512, arm64, CUDA. Those agree bit
// for bit; baseline x86-64 rounds twice, and what follows from that is bounded in tests/tolerances.py. The compiler
// itself fuses nothing (-ffp-contract=off, -fmad=false): every fused operation is written here.
#pragma once

#ifndef __CUDACC__
#include <cmath>
#endif

#include "core/simd/hd.h"

namespace leakcore {

#if defined(__CUDACC__) || defined(__FMA__) || defined(__aarch64__) || \
    (defined(LEAKCORE_EMULATION) && !defined(LEAKCORE_TIER))
#define LEAKCORE_FUSED 1
#else
#define LEAKCORE_FUSED 0
#endif

LEAKCORE_HD uint64_t bits_of(double x) {
  uint64_t b;
  memcpy(&b, &x, sizeof b);
  return b;
}
LEAKCORE_HD uint32_t bits_of(float x) {
  uint32_t b;
  memcpy(&b, &x, sizeof b);
  return b;
}
LEAKCORE_HD double real_of(uint64_t b) {
  double x;
  memcpy(&x, &b, sizeof x);
  return x;
}
LEAKCORE_HD float real_of(uint32_t b) {
  float x;
  memcpy(&x, &b, sizeof x);
  return x;
}

#if LEAKCORE_FUSED && defined(__CUDACC__)
LEAKCORE_HD double madd(double a, double b, double c) {
  return fma(a, b, c);
}
LEAKCORE_HD float madd(float a, float b, float c) {
  return fmaf(a, b, c);
}
#elif LEAKCORE_FUSED
LEAKCORE_HD double madd(double a, double b, double c) {
  return __builtin_fma(a, b, c);
}
LEAKCORE_HD float madd(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
#else
LEAKCORE_HD double madd(double a, double b, double c) {
  return a * b + c;
}
LEAKCORE_HD float madd(float a, float b, float c) {
  return a * b + c;
}
#endif

#ifdef __CUDACC__
LEAKCORE_HD double root(double x) {
  return sqrt(x);
}
LEAKCORE_HD float root(float x) {
  return sqrtf(x);
}
#else
LEAKCORE_HD double root(double x) {
  return std::sqrt(x);
}
LEAKCORE_HD float root(float x) {
  return std::sqrt(x);
}
#endif

// Of a float in [2^-101, 2^127]: the instructions of sqrtf there (nvcc 13, sm_75 to sm_90), so the same bits, without
// its branch for all other numbers.
#ifdef __CUDA_ARCH__
LEAKCORE_HD float root_of_normal(float x) {
  float r;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  const float g = __fmul_rn(x, r), h = __fmul_rn(r, 0.5f);
  return fmaf(fmaf(-g, g, x), h, g);
}
#endif

template <class T>
LEAKCORE_HD T select(bool condition, T yes, T no) {
  return condition ? yes : no;
}

// The 64-bit product of the low 32 bits of a, whatever the rest of a holds, with m.
LEAKCORE_HD uint64_t multiply32(uint64_t a, uint32_t m) {
  return (a & 0xffffffffu) * m;
}

// All ones if the top bit is set, else 0.
LEAKCORE_HD uint32_t sign_mask(uint32_t x) {
  return static_cast<uint32_t>(static_cast<int32_t>(x) >> 31);
}

// A signed 32-bit integer as the nearest float.
LEAKCORE_HD float nearest_float(uint32_t x) {
  return static_cast<float>(static_cast<int32_t>(x));
}

}  // namespace leakcore

#ifdef LEAKCORE_TIER
#include "core/simd/pack.h"
#endif
