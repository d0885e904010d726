// One step of the mixture, for numbers (CUDA, and the rare cases on every tier) and vectors alike: the arithmetic that
// tiers and devices share.
#pragma once

#include "core/simd/elementary.h"
#include "mixture/plan.h"

namespace leakcore {

// u = q·(2^y − 1).
template <class D, class S>
LEAKCORE_HD D mixture_excess(D y, const S& q) {
  return scaled_exp2m1(y, q);
}

template <class F>
LEAKCORE_HD F mixture_excess_float(F y, float q) {
  F weight, rest;
  split_exp2_float(y, q, &weight, &rest);
  return madd(weight, rest, weight - q);
}

// 1 − q + q·2^y.
template <class D, class S>
LEAKCORE_HD D mixture_factor(D y, const S& q) {
  D weight, rest;
  split_exp2(y, q, &weight, &rest);
  return madd(weight, rest, weight + (1.0 - q.q));
}

// (1 + p)·(1 + u) − 1.
template <class D>
LEAKCORE_HD D mixture_times(D p, D u) {
  return madd(p, u, p + u);
}

// log(1 − q + q·e^y) for every σ >= 0 and q in (0, 1], the infinite exponents of a vanishing σ included.
LEAKCORE_HD double careful_term(const Group& g, int s, double z, bool picked) {
  // (z + (x̄ − ½)/σ)/σ: one infinity at most, so never their difference. At σ = 0 the sign decides.
  const double centre = picked ? 0.5 : -0.5;
  const double sigma = g.sigma[s], q = g.q[s];
  const double infinity = real_of(static_cast<uint64_t>(0x7ff0000000000000ull));
  const double y = sigma == 0.0 ? (picked ? infinity : -infinity) : (z + centre / sigma) / sigma;
  if (q == 1.0) return y;
  if (y > kExpSafe) {
    const double a = y + g.log_q[s];
    if (a > kExpSafe) return a;
    return a > 0.0 ? a + log1p_safe((1.0 - q) * exp_safe(-a)) : log1p_safe(exp_safe(a) - q);
  }
  const double bounded = y < -kExpSafe ? -kExpSafe : y;
  return q <= 0.5 || bounded > -0.5 ? log1p_safe(q * expm1_safe(bounded))
                                    : log_positive((1.0 - q) + q * exp_safe(bounded));
}

// 1 − e^{threshold − ratio} for a ratio >= threshold. Equal infinities have no difference; their limits are 1 at −∞ and
// 0 at +∞.
LEAKCORE_HD double far_excess(double threshold, double ratio) {
  if (threshold - threshold != 0.0) return threshold < 0.0 ? 1.0 : 0.0;
  const double gap = threshold - ratio;
  return gap < -kExpSafe ? 1.0 : 0.0 - expm1_safe(gap);
}

}  // namespace leakcore
