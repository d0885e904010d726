// The arithmetic of one bin, for numbers (CUDA) and vectors alike: what tiers and devices share.
#pragma once

#include "allocation/plan.h"
#include "core/simd/elementary.h"

namespace leakcore {

LEAKCORE_HD double larger(double a, double b) {
  return a > b ? a : b;
}
LEAKCORE_HD double smaller(double a, double b) {
  return a < b ? a : b;
}
#ifdef LEAKCORE_TIER
LEAKCORE_HD Doubles larger(Doubles a, Doubles b) {
  return select(a > b, a, b);
}
LEAKCORE_HD Doubles smaller(Doubles a, Doubles b) {
  return select(a < b, a, b);
}
template <int K, class B>
LEAKCORE_HD Pack<Doubles, K> larger(const Pack<Doubles, K>& a, const B& b) {
  Pack<Doubles, K> r;
  for (int k = 0; k < K; ++k) r.v[k] = larger(a.v[k], part(b, k) - Doubles{});
  return r;
}
template <int K, class B>
LEAKCORE_HD Pack<Doubles, K> smaller(const Pack<Doubles, K>& a, const B& b) {
  Pack<Doubles, K> r;
  for (int k = 0; k < K; ++k) r.v[k] = smaller(a.v[k], part(b, k) - Doubles{});
  return r;
}
#endif

// sum + q·2^y, or, for a sum less 1 over terms of mean q, sum + q·(2^y − 1).
template <bool kExcess, class D, class S>
LEAKCORE_HD D add_exp2(D sum, D y, const S& q) {
  D weight, rest;
  split_exp2(y, q, &weight, &rest);
  return madd(weight, rest, kExcess ? sum + (weight - q.q) : sum + weight);
}

// q·2^y, or q·(2^y − 1), in float32.
template <bool kExcess, class F>
LEAKCORE_HD F exp2_float(F y, float q) {
  F weight, rest;
  split_exp2_float(y, q, &weight, &rest);
  return madd(weight, rest, kExcess ? weight - q : weight);
}

// q·2^y.
template <class D, class S>
LEAKCORE_HD D scaled_exp2(D y, const S& q) {
  D weight, rest;
  split_exp2(y, q, &weight, &rest);
  return madd(weight, rest, weight);
}

// e^x for x <= 0; what is below e^-700 counts as that.
template <class D>
LEAKCORE_HD D exp_below(D x) {
  return exp_safe(larger(x, -kExpSafe));
}

constexpr double kNothing = -1e305;  // the logarithm of an empty sum

// Σ e^a as e^most·sum: `rows` more terms.
template <class D>
LEAKCORE_HD void peak_add(const D* a, int rows, D* most, D* sum) {
  D top = *most;
  for (int s = 0; s < rows; ++s) top = larger(a[s], top);
  D total = *sum * exp_below(*most - top);
  for (int s = 0; s < rows; ++s) total = total + exp_below(a[s] - top);
  *most = top;
  *sum = total;
}

// log(e^a + e^b).
template <class D>
LEAKCORE_HD D log_add(D a, D b) {
  const D top = larger(a, b);
  return top + log1p_safe(exp_below(smaller(a, b) - top));
}

// The elementary symmetric polynomials of four weights: Π(1 + w·x) = 1 + c[0]·x + c[1]·x² + …
template <class D>
LEAKCORE_HD void symmetric(const D (&w)[4], D* c) {
  const D p = w[0] + w[1], q = w[0] * w[1], r = w[2] + w[3], t = w[2] * w[3];
  c[0] = p + r;
  c[1] = madd(p, r, q + t);
  c[2] = madd(p, t, q * r);
  c[3] = q * t;
}

// Levels [low, high] of the e_j after four more weights; those below level 0 are 0.
template <class D, class Load, class Store>
LEAKCORE_HD void raise_levels(const D* c, int64_t low, int64_t high, Load&& load, Store&& store) {
  D x0 = load(high), x1 = load(high - 1), x2 = load(high - 2), x3 = load(high - 3);
  for (int64_t j = high; j >= low; --j) {
    const D x4 = load(j - 4);
    store(j, madd(c[3], x4, madd(c[2], x3, madd(c[1], x2, madd(c[0], x1, x0)))));
    x0 = x1;
    x1 = x2;
    x2 = x3;
    x3 = x4;
  }
}

// Levels that the bins so far do not reach, or that those left cannot lift to the last one, are left out.
LEAKCORE_HD int64_t lowest_level(const AllocationShape& shape, int64_t bins_after) {
  const int64_t low = shape.level - (shape.bins - bins_after);
  return low > 1 ? low : 1;
}
LEAKCORE_HD int64_t highest_level(const AllocationShape& shape, int64_t bins_after) {
  return bins_after < shape.level ? bins_after : shape.level;
}

// The bin floor(u·bins), u in [0, 1) of 64 random bits, for fewer than 2^31 bins.
LEAKCORE_HD int64_t picked_bin(uint32_t high, uint32_t low, int64_t bins) {
  const uint64_t b = static_cast<uint64_t>(bins);
  return static_cast<int64_t>((high * b + (low * b >> 32)) >> 32);
}

}  // namespace leakcore
