// exp, log and the sine and cosine of a turn, branch-free, from additions, multiplications and shifts only: the
// compiler vectorises loops over them on every instruction set, host and device share them, and their bits do not
// change with the C library. Measured against 200-bit arithmetic (tests/kernels/test_elementary.py): at most 2 units in
// the last place.
//
// Coefficients of log, sin and cos: FreeBSD msun (Sun Microsystems 1993, freely granted); exp: Taylor to r^13 on
// |r| <= ln2/2, remainder 4e-18.
#pragma once

#include "core/hd.h"

namespace leakcore {

constexpr double kLn2High = 6.93147180369123816490e-01;  // 33 leading bits: k·kLn2High is exact for |k| < 2^20
constexpr double kLn2Low = 1.90821492927058770002e-10;

// e^x = scale·(1 + rest), scale a power of two, |rest| < 0.42; for |x| <= kExpSafe.
constexpr double kExpSafe = 700.0;

LEAKCORE_HD void split_exp(double x, double* scale, double* rest) {
  const double magic = 6755399441055744.0;  // 1.5·2^52: adding it rounds to an integer, held in the low bits
  const double shifted = x * 1.44269504088896338700e+00 + magic;
  const double k = shifted - magic;
  const double r = (x - k * kLn2High) - k * kLn2Low;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  *rest = r + r * r * p;
  *scale = double_of((bits_of(shifted) << 52) + 0x3ff0000000000000ull);
}

LEAKCORE_HD double exp_safe(double x) {
  double scale, rest;
  split_exp(x, &scale, &rest);
  return scale + scale * rest;
}

// Keeps its relative accuracy at 0, unlike exp(x) - 1: a step of the mixture at large sigma is all rest.
LEAKCORE_HD double expm1_safe(double x) {
  double scale, rest;
  split_exp(x, &scale, &rest);
  return (scale - 1.0) + scale * rest;
}

// Natural logarithm of a positive normal number.
LEAKCORE_HD double log_positive(double x) {
  const uint64_t moved = bits_of(x) + 0x00095f6200000000ull;  // so that the mantissa lands in [sqrt(1/2), sqrt(2))
  const double k = exact_double(moved >> 52) - 1023.0;
  const double m = double_of((moved & 0x000fffffffffffffull) + 0x3fe6a09e00000000ull);
  const double f = m - 1.0;
  const double half_square = 0.5 * f * f;
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double w = z * z;
  const double even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  const double odd =
      z * (6.666666666666735130e-01 +
           w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  return s * (half_square + (even + odd)) + k * kLn2Low - half_square + f + k * kLn2High;
}

// log(1 + x) for x > -1 with 1 + x not subnormal.
LEAKCORE_HD double log1p_safe(double x) {
  const double u = 1.0 + x;
  const double lost = x < 1.0 ? x - (u - 1.0) : 1.0 - (u - x);  // what rounding u dropped, exactly
  return log_positive(u) + lost / u;
}

// Cosine and sine of 2π(turn + 1/2)/2^32. The quadrant is split off in integers, so there is no reduction error.
LEAKCORE_HD void cos_sin_turn(uint32_t turn, double* cosine, double* sine) {
  const uint32_t quadrant = (turn + 0x20000000u) >> 30;
  const uint32_t offset = turn - (quadrant << 30) + 0x20000000u;  // in [0, 2^30): the signed offset plus 2^29
  const double v = (exact_double(offset) - 536870911.5) * 1.46291807926715968105e-09;  // 2π/2^32
  const double z = v * v;
  const double w = z * z;
  const double sin_tail = 8.33333333332248946124e-03 +
                          z * (-1.98412698298579493134e-04 + z * 2.75573137070700676789e-06) +
                          z * w * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10);
  const double s = v + z * v * (-1.66666666666666324348e-01 + z * sin_tail);
  const double cos_tail =
      z * (4.16666666666666019037e-02 + z * (-1.38888888888741095749e-03 + z * 2.48015872894767294178e-05)) +
      w * w * (-2.75573143513906633035e-07 + z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11));
  const double half = 0.5 * z;
  const double one = 1.0 - half;
  const double c = one + (((1.0 - one) - half) + z * cos_tail);
  const uint64_t odd = 0ull - static_cast<uint64_t>(quadrant & 1u);
  const uint64_t cb = bits_of(c), sb = bits_of(s);
  const uint64_t swap = (cb ^ sb) & odd;
  *cosine = double_of((cb ^ swap) ^ (static_cast<uint64_t>((quadrant + 1u) & 2u) << 62));
  *sine = double_of((sb ^ swap) ^ (static_cast<uint64_t>(quadrant & 2u) << 62));
}

}  // namespace leakcore
