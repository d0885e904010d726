// The 16-bit element types as bits: both widen to float exactly, so to double as well.
#pragma once

#include "core/simd/hd.h"

namespace leakcore {

LEAKCORE_HD float float_of_brain(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float f;
  memcpy(&f, &wide, sizeof f);
  return f;
}

LEAKCORE_HD float float_of_half(uint16_t bits) {
#if defined(__CUDA_ARCH__)
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
  return f;
#else
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 5.9604644775390625e-08f;  // 2^-24
  const uint32_t wide =
      sign | (magnitude >= 0x7c00u ? 0x7f800000u | (magnitude & 0x3ffu) << 13 : (magnitude << 13) + (112u << 23));
  float f;
  memcpy(&f, &wide, sizeof f);
  return magnitude >= 0x0400u ? f : sign ? -subnormal : subnormal;
#endif
}

// Elements of an array.
struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

LEAKCORE_HD double widen(double x) {
  return x;
}
LEAKCORE_HD double widen(float x) {
  return x;
}
LEAKCORE_HD double widen(Brain x) {
  return float_of_brain(x.bits);
}
LEAKCORE_HD double widen(Half x) {
  return float_of_half(x.bits);
}

}  // namespace leakcore
