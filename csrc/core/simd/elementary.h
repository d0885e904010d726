// exp, log and the sine and cosine of a turn, branch-free, from additions, multiplications and shifts only: one source
// for numbers and vectors, host and device, and bits that do not change with the C library. Measured against 200-bit
// arithmetic (tests/kernels/tiers/test_elementary.py): at most 2.5 units in the last place where multiply-add is
// fused, 3.5 where it is not.
//
// Polynomials by Remez' exchange in 60 digits, relative error of the approximated factor next to each; log's by the
// series of 2·atanh(s), s = (m − 1)/(m + 1).
#pragma once

#include "core/simd/arith.h"
#include "core/simd/eighths.h"

namespace leakcore {

constexpr double kLn2High = 6.93147180369123816490e-01;  // 33 leading bits: k·kLn2High is exact for |k| < 2^20
constexpr double kLn2Low = 1.90821492927058770002e-10;
constexpr double kLn2 = 6.93147180559945286227e-01;
constexpr double kLog2e = 1.44269504088896338700e+00;

// An integer x < 2^52 plus `plus` (an integer, or 1/2) as a double, without the branch of a general conversion.
template <class L>
LEAKCORE_HD auto exact_double(L x, double plus = 0.0) {
  return real_of(x | static_cast<uint64_t>(0x4330000000000000ull)) - (4503599627370496.0 - plus);
}

// (2^f − 1) for |f| <= 1/2; 1.8e-17.
template <class D>
LEAKCORE_HD D exp2_rest(D f) {
  D p = madd(f, 4.445535957894752e-10, 7.072561780982395e-09);
  p = madd(p, f, 1.0178121306870953e-07);
  p = madd(p, f, 1.3215442723827463e-06);
  p = madd(p, f, 1.5252733701198425e-05);
  p = madd(p, f, 0.00015403530441481346);
  p = madd(p, f, 0.0013333558146531646);
  p = madd(p, f, 0.009618129107607065);
  p = madd(p, f, 0.055504108664821236);
  p = madd(p, f, 0.24022650695910097);
  p = madd(p, f, 0.6931471805599453);
  return p * f;
}

// Likewise in float32; 1.1e-8.
template <class F>
LEAKCORE_HD F exp2_rest_float(F f) {
  F p = madd(f, 0.00015403512225020677f, 0.001339075854048133f);
  p = madd(p, f, 0.009618237614631653f);
  p = madd(p, f, 0.05550357326865196f);
  p = madd(p, f, 0.24022649228572845f);
  p = madd(p, f, 0.6931471824645996f);
  return p * f;
}

// (2^f − 1) for |f| <= 1/16; 1.2e-16.
template <class D>
LEAKCORE_HD D exp2_rest_small(D f) {
  D p = madd(f, 1.5252733800634203e-05, 0.0001540443379135076);
  p = madd(p, f, 0.0013333558173606798);
  p = madd(p, f, 0.009618129089984669);
  p = madd(p, f, 0.055504108664816275);
  p = madd(p, f, 0.24022650695910933);
  p = madd(p, f, 0.6931471805599453);
  return p * f;
}

// q·2^y = weight·(1 + rest), weight = q·2^(n/8), |rest| < 0.05; for |y| <= 1010 and a normal weight (or q = 0 = y). S:
// Scale, WideScale.
template <class D, class S>
LEAKCORE_HD void split_exp2(D y, const S& q, D* weight, D* rest) {
  constexpr double kRound = 844424930131968.0;  // 1.5·2^49: adding it rounds to an eighth, n held in the low bits
  const D shifted = y + kRound;
  *rest = exp2_rest_small(y - (shifted - kRound));
  *weight = real_of(scaled(q, bits_of(shifted)));
}

// q·(2^y − 1), exact in the limit of small y; beyond 1/16, where the two terms cancel, to an ulp of q.
template <class D, class S>
LEAKCORE_HD D scaled_exp2m1(D y, const S& q) {
  D weight, rest;
  split_exp2(y, q, &weight, &rest);
  return madd(weight, rest, weight - q.q);
}

// q·2^y = weight·(1 + rest), weight a power of two times q, |rest| < 0.42; for |y| <= 100 and a normal weight (or q = 0
// = y). The power goes into q's exponent by an integer addition.
template <class F>
LEAKCORE_HD void split_exp2_float(F y, float q, F* weight, F* rest) {
  constexpr float kRound = 12582912.0f;  // 1.5·2^23
  const F shifted = y + kRound;
  *rest = exp2_rest_float(y - (shifted - kRound));
  *weight = real_of((bits_of(shifted) << 23) + bits_of(q));
}

// e^x = scale·(1 + rest), for |x| <= kExpSafe.
constexpr double kExpSafe = 700.0;

template <class D>
LEAKCORE_HD void split_exp(D x, D* scale, D* rest) {
  constexpr double kRound = 6755399441055744.0 + 1023.0;  // as above; the bits then hold the biased exponent
  const D shifted = madd(x, kLog2e, kRound);
  const D k = shifted - kRound;
  const D r = madd(k, -kLn2Low, madd(k, -kLn2High, x));
  *rest = exp2_rest(r * kLog2e);
  *scale = real_of(bits_of(shifted) << 52);
}

template <class D>
LEAKCORE_HD D exp_safe(D x) {
  D scale, rest;
  split_exp(x, &scale, &rest);
  return madd(scale, rest, scale);
}

// Keeps its relative accuracy at 0, unlike exp(x) - 1.
template <class D>
LEAKCORE_HD D expm1_safe(D x) {
  D scale, rest;
  split_exp(x, &scale, &rest);
  return madd(scale, rest, scale - 1.0);
}

// e^x for every x, capped at the largest double; relative accuracy 1e-14 while the result is normal.
LEAKCORE_HD double exp_wide(double x) {
  const double half = exp_safe(0.5 * (x < -1400.0 ? -1400.0 : x > 1400.0 ? 1400.0 : x));
  const double e = half * half;
  return e > 1.7976931348623157e308 ? 1.7976931348623157e308 : e;
}

// x = 2^k·m, m in [sqrt(1/2), sqrt(2)), for a positive normal x; k comes out plus `plus`.
template <class D>
LEAKCORE_HD void split_log(D x, double plus, D* k, D* m) {
  const auto moved = bits_of(x) + static_cast<uint64_t>(0x00095f6200000000ull);
  *k = exact_double(moved >> 52, plus - 1023.0);
  *m = real_of((moved & static_cast<uint64_t>(0x000fffffffffffffull)) + static_cast<uint64_t>(0x3fe6a09e00000000ull));
}

// log(1 + f), f in [sqrt(1/2) − 1, sqrt(2) − 1]; 1.3e-18.
template <class D>
LEAKCORE_HD D log1p_near(D f) {
  const D s = f / (-2.0 - f);
  const D z = s * s;
  D p = madd(z, -0.1479927189928232, -0.1531373625357185);
  p = madd(p, z, -0.18183575884378453);
  p = madd(p, z, -0.22222198365527898);
  p = madd(p, z, -0.2857142874425844);
  p = madd(p, z, -0.39999999999407004);
  p = madd(p, z, -0.6666666666666735);
  return madd(s, madd(p, z, f), f);  // 2·s is f − s·f: what rounding s costs is scaled down by f
}

// k·log 2 + log(1 + f) for f as above.
template <class D>
LEAKCORE_HD D join_log(D k, D f) {
  return madd(k, kLn2, log1p_near(f));
}

// Natural logarithm of a positive normal number.
template <class D>
LEAKCORE_HD D log_positive(D x) {
  D k, m;
  split_log(x, 0.0, &k, &m);
  return join_log(k, m - 1.0);
}

// log(1 + x) for x > -1 with 1 + x normal. Where log1p_near takes x, the two are equal: nothing is split off, and what
// rounding u dropped comes back whole.
template <class D>
LEAKCORE_HD D log1p_safe(D x) {
  const D u = 1.0 + x;
  const D lost =
      x - (u - 1.0);  // what rounding u dropped: u − 1 is exact below 2^53, and beyond that negligible next to u
  D k, m;
  split_log(u, 0.0, &k, &m);
  const D shrink = real_of(bits_of(m) - bits_of(u) + static_cast<uint64_t>(0x3ff0000000000000ull));  // 2^-k
  return join_log(k, madd(lost, shrink, m - 1.0));
}

// Likewise in float32; 3.2e-8.
template <class F>
LEAKCORE_HD F log1p_near_float(F f) {
  F p = madd(f, 0.08700449019670486f, -0.1426750272512436f);
  p = madd(p, f, 0.14914770424365997f);
  p = madd(p, f, -0.1657758355140686f);
  p = madd(p, f, 0.19963063299655914f);
  p = madd(p, f, -0.2500133812427521f);
  p = madd(p, f, 0.3333390951156616f);
  return madd(f * f, madd(p, f, -0.5f), f);
}

constexpr float kLn2Unit = 8.262958294867817e-08f;  // 2^-23·log 2

// log(1 + x) for x > -1 with 1 + x normal, in float32; 1.5e-7 relative.
template <class F>
LEAKCORE_HD F log1p_float(F x) {
  const F u = 1.0f + x;
  const F lost = x - (u - 1.0f);
  const auto octave = (bits_of(u) - 0x3f3504f3u) & 0xff800000u;
  const F m = real_of(bits_of(u) - octave);
  return madd(nearest_float(octave), kLn2Unit, log1p_near_float(madd(lost, real_of(0x3f800000u - octave), m - 1.0f)));
}

// −2·log(u), u = (word + 1/2)·2^-32; 1e-16.
template <class L>
LEAKCORE_HD auto minus_two_log_unit(L word) {
  auto k = exact_double(word, 0.5), m = k;
  split_log(k, -32.0, &k, &m);
  const auto s = (m - 1.0) / (m + 1.0);
  const auto z = s * s;
  auto p = madd(z, -2 * 0.1682306360435443, -2 * 0.18123384250288999);
  p = madd(p, z, -2 * 0.22223379278365535);
  p = madd(p, z, -2 * 0.28571417029420687);
  p = madd(p, z, -2 * 0.4000000005284552);
  p = madd(p, z, -2 * 0.6666666666658617);
  p = madd(p, z, -4.0);
  return madd(k, -2 * 0.6931471805599453, s * p);
}

// −log(1 + f) in float32, f in [−1/2, 0]; 3.1e-8.
template <class F>
LEAKCORE_HD F minus_log1p_below_float(F f) {
  F p = madd(f, -1.299930453300476f, -1.4026594161987305f);
  p = madd(p, f, -1.0086369514465332f);
  p = madd(p, f, -0.09236999601125717f);
  p = madd(p, f, -0.24178460240364075f);
  p = madd(p, f, 0.2466503083705902f);
  p = madd(p, f, -0.3334341049194336f);
  return madd(f * f, madd(p, f, 0.5f), -f);
}

// −log(u) in float32, u = 2^k·(1 + f) with f in [−1/2, 0]: 2e-7 relative. Above 1/2 f is u − 1, which is known exactly
// next to 1. Without comparisons, which take a multiplier's place on some cores.
template <class I>
LEAKCORE_HD auto minus_log_unit_float(I word) {
  const auto x = madd(nearest_float(word), 0x1p-32f, 0x1p-33f);  // u, or above 1/2 u − 1
  const I below = sign_mask(word) ^ 0xffffffffu;
  const I octave = (bits_of(x) - 0x3f000000u) & (below & 0xff800000u);  // k·2^23
  const auto f = real_of(bits_of(x) - octave) - real_of(below & 0x3f800000u);
  return madd(nearest_float(octave), -kLn2Unit, minus_log1p_below_float(f));
}

// Cosine and sine of 2π(turn + 1/2)/2^32, turn the upper half of a 64-bit lane, whatever its lower half holds. The
// quadrant is split off in integers, so there is no reduction error. 5e-17.
template <class L, class D>
LEAKCORE_HD void cos_sin_turn(L turn, D* cosine, D* sine) {
  const L t = turn + static_cast<uint64_t>(0x2000000000000000ull);
  // In quarters, from -1/2 to 1/2: the 30 bits below the quadrant, and a 1 for the half, are a mantissa.
  const L mantissa = (t >> 10) & static_cast<uint64_t>(0x000fffffffc00000ull);
  const D v = real_of(mantissa | static_cast<uint64_t>(0x3ff0000000200000ull)) - 1.5;
  const D z = v * v;
  D s = madd(z, 5.633721012770646e-08, -3.5986417544449627e-06);
  s = madd(s, z, 0.00016044115029164788);
  s = madd(s, z, -0.0046817541322824174);
  s = madd(s, z, 0.07969262624603957);
  s = madd(s, z, -0.6459640975062443);
  s = madd(s, z, 1.5707963267948966);
  s = s * v;
  D c = madd(z, 4.6560038284659296e-07, -2.5200192418890228e-05);
  c = madd(c, z, 0.0009192599677595227);
  c = madd(c, z, -0.0208634807375739);
  c = madd(c, z, 0.25366950790005294);
  c = madd(c, z, -1.233700550136157);
  c = madd(c, z, 1.0);
  constexpr uint64_t kOdd = 0x4000000000000000ull, kSign = 0x8000000000000000ull;
  const auto odd = (t & kOdd) != static_cast<uint64_t>(0);
  *cosine = real_of(bits_of(select(odd, s, c)) ^ ((t + kOdd) & kSign));
  *sine = real_of(bits_of(select(odd, c, s)) ^ (t & kSign));
}

// sqrt(2) times cosine and sine, in float32, turn a word per 32-bit lane: Box-Muller's factor of 2 under the root, for
// nothing. 2e-7 absolute.
template <class I, class F>
LEAKCORE_HD void cos_sin_turn_float(I turn, F* cosine, F* sine) {
  const I t = turn + 0x20000000u;
  constexpr float kUnit = 2.0688786239730916e-09f;  // sqrt(2)·2π/2^32
  // Shifted by two, what the quadrant leaves is a signed number.
  const F v = madd(nearest_float(turn << 2u), 0.25f * kUnit, 0.5f * kUnit);
  const F z = v * v;
  F s = madd(z, 0.125f * -0.00019501821952871978f, 0.25f * 0.008332016877830029f);
  s = madd(s, z, 0.5f * -0.16666650772094727f);
  s = madd(v * z, s, v);
  F c = madd(z, -0.00024037781986407936f, 0.01472772378474474f);
  c = madd(c, z, -0.3535526394844055f);
  c = madd(c, z, 1.4142135381698608f);
  const auto odd = (t & 0x40000000u) != 0u;
  *cosine = real_of(bits_of(select(odd, s, c)) ^ ((t + 0x40000000u) & 0x80000000u));
  *sine = real_of(bits_of(select(odd, c, s)) ^ (t & 0x80000000u));
}

}  // namespace leakcore
