// What a step does to the samples of a block, given its random words and normals, one loop for each form of a group.
// Included by mixture_simd.cpp alone.
#pragma once

#include "core/rng/streams.h"
#include "core/simd/elementary.h"
#include "core/simd/pack.h"
#include "mixture/draws.h"
#include "mixture/steps.h"

namespace leakcore {
namespace {

constexpr int kFactorPack = 4;  // vectors side by side, by measurement
typedef Pack<Doubles, kFactorPack> WideDoubles;
typedef Pack<Floats, kFactorPack> WideFloats;

// What kRows steps of kWidth samples draw, for all configurations.
template <int kRows, int kWidth>
struct Draws {
  uint64_t seed, first;
  LEAKCORE_ALIGNED uint32_t pick_word[kRows][kWidth];
  LEAKCORE_ALIGNED double z[kRows][kWidth];
  LEAKCORE_ALIGNED float z32[kRows][kWidth];
  LEAKCORE_ALIGNED uint32_t picked[kRows][kWidth];  // not 0 where the second component was taken
};

// A group of steps.
struct Work : Draws<kGroup, kBlock> {
  Hoisted mixture, pick;
  LEAKCORE_ALIGNED uint32_t word[4][kBlock];
};

// low(i, s): the next word after that of sample i and step s, where that does not decide.
template <class D, class Low>
LEAKCORE_HD void pick_by(D& d, const Group& g, int samples, Low&& low) {
  for (int s = 0; s < g.steps; ++s) {
    const uint64_t high = g.pick_high[s];
    const uint32_t* word = d.pick_word[s];
    if (high > 0xffffffffu) {
      for (int i = 0; i < samples; ++i) d.picked[s][i] = 1;
      continue;
    }
    const Ints limit = ints(static_cast<uint32_t>(high));
    Ints undecided = {};
    for (int i = 0; i < samples; i += kFloats) {
      const Ints x = load<Ints>(word + i);
      store(d.picked[s] + i, reinterpret_cast<Ints>(x < limit));
      undecided |= reinterpret_cast<Ints>(x == limit);
    }
    if (!any(reinterpret_cast<LongMask>(undecided))) continue;
    for (int i = 0; i < samples; ++i) {  // once in 2^32 draws
      if (word[i] == high) d.picked[s][i] = low(d.first + static_cast<uint64_t>(i), s) < g.pick_low[s];
    }
  }
}

void pick(Work& w, const Group& g, uint32_t block) {
  pick_by(w, g, kBlock, [&](uint64_t sample, int s) {
    return draw_words(w.seed, stream_word(Purpose::mixture_pick, 1), sample, block).w[s];
  });
}

// The exponents of a group's steps as lines in z. Copies, which what a loop stores cannot be thought to overlap: they
// stay in registers.
template <class T, int kSteps>
struct Lines {
  T slope[kSteps], offset[kSteps], lifted[kSteps];

  LEAKCORE_HD Lines(const T* slopes, const T* offsets, const T* lifts) {
    for (int s = 0; s < kSteps; ++s) {
      slope[s] = slopes[s];
      offset[s] = offsets[s];
      lifted[s] = lifts[s];
    }
  }
};

template <bool kPicks, class D, int kSteps>
LEAKCORE_HD WideDoubles exponent(const D& w, const Lines<double, kSteps>& line, int s, int i) {
  const Doubles offset = doubles(line.offset[s]), lifted = doubles(line.lifted[s]);
  WideDoubles y = load_pack<Doubles, kFactorPack>(w.z[s] + i);
  for (int k = 0; k < kFactorPack; ++k) {
    const Doubles shift = kPicks ? select(widen(w.picked[s] + i + k * kDoubles) != 0u, lifted, offset) : offset;
    y.v[k] = madd(y.v[k], line.slope[s], shift);
  }
  return y;
}

template <bool kPicks, class D, int kSteps>
LEAKCORE_HD WideFloats exponent(const D& w, const Lines<float, kSteps>& line, int s, int i) {
  const Floats offset = floats(line.offset[s]), lifted = floats(line.lifted[s]);
  WideFloats y = load_pack<Floats, kFactorPack>(w.z32[s] + i);
  for (int k = 0; k < kFactorPack; ++k) {
    const Floats shift = kPicks ? select(load<Ints>(w.picked[s] + i + k * kFloats) != 0u, lifted, offset) : offset;
    y.v[k] = madd(y.v[k], line.slope[s], shift);
  }
  return y;
}

LEAKCORE_HD Pack<Doubles, 2 * kFactorPack> widened(const WideFloats& x) {
  Pack<Doubles, 2 * kFactorPack> wide;
  for (int k = 0; k < kFactorPack; ++k) widen(x.v[k], &wide.v[2 * k], &wide.v[2 * k + 1]);
  return wide;
}

template <int K>
LEAKCORE_HD void add(double* total, const Pack<Doubles, K>& x) {
  store_pack(total, load_pack<Doubles, K>(total) + x);
}

template <int kSteps, bool kPicks, class D>
void sparse(const D& w, const Group& g, double* product, double* total) {
  const WideScale q[kGroup] = {WideScale(g.q[0]), WideScale(g.q[1]), WideScale(g.q[2]), WideScale(g.q[3])};
  const Lines<double, kSteps> line(g.slope, g.offset, g.lifted);
  const bool first = g.first, last = g.last;
  for (int i = 0; i < kBlock; i += kFactorPack * kDoubles) {
    WideDoubles p = mixture_excess(exponent<kPicks>(w, line, 0, i), q[0]);
    if (!first) p = mixture_times(load_pack<Doubles, kFactorPack>(product + i), p);
    for (int s = 1; s < kSteps; ++s) p = mixture_times(p, mixture_excess(exponent<kPicks>(w, line, s, i), q[s]));
    if (!last) store_pack(product + i, p);
    if (last) add(total + i, log1p_safe(p));
  }
}

template <int kSteps, bool kPicks, class D>
void dense(const D& w, const Group& g, double* product, double* total) {
  const WideScale q[kGroup] = {WideScale(g.q[0]), WideScale(g.q[1]), WideScale(g.q[2]), WideScale(g.q[3])};
  const Lines<double, kSteps> line(g.slope, g.offset, g.lifted);
  const bool first = g.first, last = g.last;
  for (int i = 0; i < kBlock; i += kFactorPack * kDoubles) {
    WideDoubles p = mixture_factor(exponent<kPicks>(w, line, 0, i), q[0]);
    if (!first) p = load_pack<Doubles, kFactorPack>(product + i) * p;
    for (int s = 1; s < kSteps; ++s) p = p * mixture_factor(exponent<kPicks>(w, line, s, i), q[s]);
    if (!last) store_pack(product + i, p);
    if (last) add(total + i, log_positive(p));
  }
}

template <int kSteps, bool kPicks, class D>
void linear(const D& w, const Group& g, double*, double* total) {
  const Lines<double, kSteps> line(g.slope, g.offset, g.lifted);
  for (int i = 0; i < kBlock; i += kFactorPack * kDoubles) {
    for (int s = 0; s < kSteps; ++s) add(total + i, exponent<kPicks>(w, line, s, i));
  }
}

template <int kSteps, bool kPicks, class D>
void careful(const D& w, const Group& g, double*, double* total) {
  for (int s = 0; s < kSteps; ++s) {
    if (g.q[s] == 0.0) continue;
    for (int i = 0; i < kBlock; ++i) total[i] += careful_term(g, s, w.z[s][i], kPicks && w.picked[s][i] != 0);
  }
}

template <int kSteps, bool kPicks, class D>
void quick(const D& w, const Group& g, double* product, double* total) {
  const Lines<float, kSteps> line(g.slope32, g.offset32, g.lifted32);
  const float q[kGroup] = {g.q32[0], g.q32[1], g.q32[2], g.q32[3]};
  const bool first = g.first, last = g.last;
  for (int i = 0; i < kBlock; i += kFactorPack * kFloats) {
    WideFloats narrow = mixture_excess_float(exponent<kPicks>(w, line, 0, i), q[0]);
    for (int s = 1; s < kSteps; ++s) {
      narrow = mixture_times(narrow, mixture_excess_float(exponent<kPicks>(w, line, s, i), q[s]));
    }
    if (first && last) narrow = log1p_float(narrow);
    Pack<Doubles, 2 * kFactorPack> p = widened(narrow);
    if (first && last) {
      add(total + i, p);
      continue;
    }
    if (!first) p = mixture_times(load_pack<Doubles, 2 * kFactorPack>(product + i), p);
    if (!last) store_pack(product + i, p);
    if (last) add(total + i, log1p_safe(p));
  }
}

template <int kSteps, bool kPicks, class D>
void combine(const D& w, const Group& g, double* product, double* total) {
  switch (g.form) {
    case Form::idle:
      return;
    case Form::sparse:
      return sparse<kSteps, kPicks>(w, g, product, total);
    case Form::dense:
      return dense<kSteps, kPicks>(w, g, product, total);
    case Form::linear:
      return linear<kSteps, kPicks>(w, g, product, total);
    case Form::careful:
      return careful<kSteps, kPicks>(w, g, product, total);
    case Form::quick:
      return quick<kSteps, kPicks>(w, g, product, total);
  }
}

using Combine = void (*)(const Work& w, const Group& g, double* product, double* total);
constexpr Combine kCombine[2][kGroup] = {
    {combine<1, false, Work>, combine<2, false, Work>, combine<3, false, Work>, combine<4, false, Work>},
    {combine<1, true, Work>, combine<2, true, Work>, combine<3, true, Work>, combine<4, true, Work>}};

}  // namespace
}  // namespace leakcore
