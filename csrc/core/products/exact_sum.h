// An exact sum of non-negative doubles: a fixed-point number wide enough for all of them (Kulisch 1971), in units of
// 2^-1074, the smallest double. Integer addition has no order, so any split into threads, chunks or shards adds up to
// the same bits.
#pragma once

#include "core/simd/arith.h"

namespace leakcore {

// 32 bits per digit, held in 64: 2^32 additions fit before the carries must be moved on.
constexpr int kSumDigits = 68;

// value·2^place units.
LEAKCORE_HD void exact_add_at(uint64_t* digits, uint64_t value, uint32_t place) {
  const uint32_t shift = place & 31;
  uint64_t* d = digits + (place >> 5);
  const uint64_t upper = value >> (32 - shift);
  d[0] += (value << shift) & 0xffffffffu;
  d[1] += upper & 0xffffffffu;
  d[2] += upper >> 32;
}

// value = mantissa·2^place units.
LEAKCORE_HD uint64_t exact_parts(double value, uint32_t* place) {
  const uint64_t b = bits_of(value);
  const uint32_t exponent = static_cast<uint32_t>(b >> 52);
  const uint64_t fraction = b & 0x000fffffffffffffull;
  *place = exponent ? exponent - 1 : 0;
  return exponent ? fraction | 0x0010000000000000ull : fraction;
}

LEAKCORE_HD void exact_add(uint64_t* digits, double value) {
  uint32_t place;
  const uint64_t mantissa = exact_parts(value, &place);
  exact_add_at(digits, mantissa, place);
}

LEAKCORE_HD void exact_carry(uint64_t* digits) {
  uint64_t carry = 0;
  for (int i = 0; i < kSumDigits; ++i) {
    carry += digits[i];
    digits[i] = carry & 0xffffffffu;
    carry >>= 32;
  }
}

}  // namespace leakcore
