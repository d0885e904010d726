// Counting a block of ratios into brackets and adding e^{−L} exactly. Included by mixture_simd.cpp alone.
//
// A double is an integer mantissa at a place. Those of a block mostly lie within 2^32 of the largest: there each splits
// into two integers at the same place, which plain 64-bit lanes add exactly; the rest go one by one.
#pragma once

#include "core/products/exact_sum.h"
#include "core/simd/vec.h"
#include "mixture/mixture_simd.h"
#include "mixture/steps.h"

namespace leakcore {
namespace {

// Up to here a pass over the block per threshold is cheaper than a search per sample.
constexpr int64_t kPasses = 12;

// The number of thresholds <= ratio.
inline int64_t reached(const Tally& t, double ratio) {
  int64_t low = 0, high = t.num_thresholds;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (t.thresholds[middle] <= ratio) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

inline uint64_t* digits(const Tally& t, int64_t bracket, int sum) {
  return t.sums + (bracket * kTailSums + sum) * kSumDigits;
}

// |ratio| > kExpSafe.
inline void tally_far(const Tally& t, double ratio) {
  const int64_t above = reached(t, ratio);
  if (above == 0) return;
  t.counts[2 * (above - 1)] += 1;
  t.counts[2 * (above - 1) + 1] += 1;
  exact_add(digits(t, above - 1, 1), exp_wide(-ratio));
  for (int64_t j = 0; j < above; ++j) exact_add(digits(t, j, 2), far_excess(t.thresholds[j], ratio));
}

inline void tally_near(const Tally& t, double ratio, double inverse) {
  const int64_t above = reached(t, ratio);
  t.counts[2 * (above - 1)] += 1;
  exact_add(digits(t, above - 1, 0), inverse);
}

inline uint64_t fold(Longs x) {
  uint64_t sum = 0;
  for (int i = 0; i < kDoubles; ++i) sum += x[i];
  return sum;
}

void tally(double* ratios, int begin, int end, const Tally& t) {
  if (t.num_thresholds == 0) return;
  const double nothing = real_of(static_cast<uint64_t>(0x7ff8000000000000ull));  // in no bracket
  for (int i = 0; i < begin; ++i) ratios[i] = nothing;
  for (int i = end; i < kBlock; ++i) ratios[i] = nothing;
  const Doubles lowest = doubles(t.thresholds[0]);
  LongMask some = {}, far = {};
  Doubles least = doubles(kExpSafe), most = doubles(-kExpSafe);
  for (int i = 0; i < kBlock; i += kDoubles) {
    const Doubles ratio = load<Doubles>(ratios + i);
    const LongMask in = ratio >= lowest;
    const LongMask beyond = in & ((ratio < -kExpSafe) | (ratio > kExpSafe));
    some |= in;
    far |= beyond;
    least = select(in & ~beyond & (ratio < least), ratio, least);
    most = select(in & ~beyond & (ratio > most), ratio, most);
  }
  if (!any(some)) return;
  if (any(far)) {
    for (int i = 0; i < kBlock; ++i) {
      if (!(ratios[i] < -kExpSafe || ratios[i] > kExpSafe)) continue;
      tally_far(t, ratios[i]);
      ratios[i] = nothing;
    }
  }
  double low = kExpSafe, high = -kExpSafe;
  for (int i = 0; i < kDoubles; ++i) {
    low = least[i] < low ? least[i] : low;
    high = most[i] > high ? most[i] : high;
  }
  if (low > high) return;

  const bool by_pass = t.num_thresholds <= kPasses;
  // Mantissas at places base … base + 32 fit the window; rounding may lift one by a place.
  const uint64_t top = (bits_of(exp_safe(-low)) >> 52) + 1;
  const uint64_t base = top > 33 ? top - 32 : 1;
  LEAKCORE_ALIGNED uint64_t lower[kBlock];
  LEAKCORE_ALIGNED uint64_t upper[kBlock];
  for (int i = 0; i < kBlock; i += kDoubles) {
    const Doubles ratio = load<Doubles>(ratios + i);
    const LongMask in = ratio >= lowest;
    const Doubles inverse = select(in, exp_safe(-select(in, ratio, Doubles{})), Doubles{});
    const Longs place = bits_of(inverse) >> 52;
    const LongMask inside = reinterpret_cast<LongMask>(place) >= static_cast<int64_t>(base);
    const LongMask left = in & ~(by_pass ? inside : LongMask{});
    if (any(left)) {
      for (int k = 0; k < kDoubles; ++k) {
        if (!left[k]) continue;
        tally_near(t, ratio[k], inverse[k]);
        ratios[i + k] = nothing;
      }
    }
    if (!by_pass) continue;
    const Longs mantissa = (bits_of(inverse) & 0x000fffffffffffffull) | 0x0010000000000000ull;
    const Longs shift = (place - base) & reinterpret_cast<Longs>(inside);
    store(lower + i, mantissa << shift & 0xffffffffull);
    store(upper + i, mantissa >> (32u - shift));
  }
  if (!by_pass) return;

  int64_t counts[kPasses + 1] = {};
  uint64_t lowers[kPasses + 1] = {}, uppers[kPasses + 1] = {};
  int64_t brackets = 0;
  for (; brackets < t.num_thresholds && t.thresholds[brackets] <= high; ++brackets) {
    const Doubles threshold = doubles(t.thresholds[brackets]);
    Longs number = {}, lower_sum = {}, upper_sum = {};
    for (int i = 0; i < kBlock; i += kDoubles) {
      const LongMask above = load<Doubles>(ratios + i) >= threshold;
      number = above ? number + 1u : number;
      lower_sum = above ? lower_sum + load<Longs>(lower + i) : lower_sum;
      upper_sum = above ? upper_sum + load<Longs>(upper + i) : upper_sum;
    }
    counts[brackets] = static_cast<int64_t>(fold(number));
    lowers[brackets] = fold(lower_sum);
    uppers[brackets] = fold(upper_sum);
  }
  for (int64_t j = 0; j < brackets; ++j) {
    t.counts[2 * j] += counts[j] - counts[j + 1];
    exact_add_at(digits(t, j, 0), lowers[j] - lowers[j + 1], static_cast<uint32_t>(base - 1));
    exact_add_at(digits(t, j, 0), uppers[j] - uppers[j + 1], static_cast<uint32_t>(base + 31));
  }
}

}  // namespace
}  // namespace leakcore
