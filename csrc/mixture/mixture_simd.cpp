// Compiled once per instruction tier (setup.py). All but the table is in an anonymous namespace or always inlined, and
// no library template is called, so that no inline function built for one tier can be linked into another.
//
// What limits it, on Zen 4 (two 512-bit instructions a cycle, one of them a multiplication): per 8 samples and step in
// float64 about 13 instructions for random words, 28 and a division and a root per two steps for normals, 21 for the
// factor, of which 14 need a multiplier; per 16 samples in float32 13, 29 and 16. At one step per sample three quarters
// of a Philox block go unused, and the block is most of the time.
//
// Random words, normals and factors are each made in a loop of their own over a block that stays in the first-level
// cache, four steps (one Philox block) at a time: a loop with few constants keeps them all in registers.
#include "mixture/mixture_simd.h"

#include "core/normal.h"
#include "core/streams.h"
#include "mixture/steps.h"
#include "mixture/tally.h"

namespace leakcore {
namespace {

// Vectors side by side, by measurement: the float32 chains are short enough already.
constexpr int kNormalPack = 2, kFactorPack = 4, kFloatFactorPack = 1;
typedef Pack<Doubles, kFactorPack> WideDoubles;
typedef Pack<Floats, kFloatFactorPack> WideFloats;

// Rounds 1 and 2 of Philox as far as they depend on the sample alone. Sample 2i and 2i + 1 of a block stand in lane i
// of neighbouring vectors, so that their words interleave to natural order in 32-bit lanes.
struct Hoisted {
  uint64_t seed;
  uint32_t stream;
  uint64_t first;
  LEAKCORE_ALIGNED uint64_t low1[kBlock];
  LEAKCORE_ALIGNED uint64_t a2[kBlock];
};

void hoist(uint64_t seed, uint32_t stream, uint64_t first, Hoisted* h) {
  h->seed = seed;
  h->stream = stream;
  h->first = first;
  uint64_t lanes[kDoubles] = {};
  for (int i = 0; i < kDoubles; ++i) lanes[i] = first + 2 * static_cast<uint64_t>(i);
  Longs even = load<Longs>(lanes);
  for (int i = 0; i < kBlock; i += 2 * kDoubles) {
    for (int odd = 0; odd < 2; ++odd) {
      const Longs b1 = multiply32(even + static_cast<uint64_t>(odd), kPhiloxM1);
      store(h->low1 + i + odd * kDoubles, b1);
      store(h->a2 + i + odd * kDoubles,
            multiply32(b1 >> 32 ^ static_cast<uint64_t>(stream ^ round_key0(seed, 0)), kPhiloxM0));
    }
    even += static_cast<uint64_t>(2 * kDoubles);
  }
}

// word[j][i]: word j of sample i; words 2 and 3 only if wanted.
template <bool kAll>
void words_of(const Hoisted& h, uint32_t block, uint32_t (*word)[kBlock]) {
  const uint64_t seed = h.seed;
  const uint32_t high = static_cast<uint32_t>(h.first >> 32);
  const uint64_t a1 = multiply32(block, kPhiloxM0);
  const uint32_t c2 = static_cast<uint32_t>(a1 >> 32) ^ high ^ round_key1(seed, 0);
  const uint64_t b2 = multiply32(c2, kPhiloxM1);
  const uint64_t flip0 = static_cast<uint32_t>(b2 >> 32) ^ round_key0(seed, 1);
  const uint64_t flip2 = static_cast<uint32_t>(a1) ^ round_key1(seed, 1);
  const uint64_t keys = static_cast<uint64_t>(round_key0(seed, kRounds - 1)) * 0x100000001ull;
  const uint64_t keys2 = static_cast<uint64_t>(round_key1(seed, kRounds - 1)) * 0x100000001ull;
  for (int i = 0; i < kBlock; i += 2 * kDoubles) {
    Counter<Longs> c[2];
    for (int k = 0; k < 2; ++k) {
      const Longs low1 = load<Longs>(h.low1 + i + k * kDoubles), a2 = load<Longs>(h.a2 + i + k * kDoubles);
      // Round 3, whose second word is the same for all samples: folded into its key.
      const Longs a = multiply32(low1 ^ flip0, kPhiloxM0), b = multiply32(a2 >> 32 ^ flip2, kPhiloxM1);
      c[k] = {b >> 32 ^ static_cast<uint64_t>(static_cast<uint32_t>(b2) ^ round_key0(seed, 2)), b,
              a >> 32 ^ a2 ^ static_cast<uint64_t>(round_key1(seed, 2)), a};
    }
#pragma GCC unroll 6
    for (int round = 3; round < kRounds - 1; ++round) {
      philox_round(c[0], round_key0(seed, round), round_key1(seed, round));
      philox_round(c[1], round_key0(seed, round), round_key1(seed, round));
    }
    const Longs b[2] = {multiply32(c[0].c2, kPhiloxM1), multiply32(c[1].c2, kPhiloxM1)};
    store(word[0] + i, merge_upper(b[0], b[1]) ^ merge_lower(c[0].c1, c[1].c1) ^ keys);
    store(word[1] + i, merge_lower(b[0], b[1]));
    if (!kAll) continue;
    const Longs a[2] = {multiply32(c[0].c0, kPhiloxM0), multiply32(c[1].c0, kPhiloxM0)};
    store(word[2] + i, merge_upper(a[0], a[1]) ^ merge_lower(c[0].c3, c[1].c3) ^ keys2);
    store(word[3] + i, merge_lower(a[0], a[1]));
  }
}

void words(const Hoisted& h, uint32_t block, int steps, uint32_t (*word)[kBlock]) {
  if ((h.first + kBlock - 1) >> 32 != h.first >> 32) {  // once in 2^32 samples: the upper half changes in the block
    for (int i = 0; i < kBlock; ++i) {
      const Words w = draw_words(h.seed, h.stream, h.first + static_cast<uint64_t>(i), block);
      for (int j = 0; j < 4; ++j) word[j][i] = w.w[j];
    }
  } else if (steps > 2) {
    words_of<true>(h, block, word);
  } else {
    words_of<false>(h, block, word);
  }
}

void normals(const uint32_t (*word)[kBlock], int steps, double (*z)[kBlock]) {
  for (int s = 0; s < steps; s += 2) {
    for (int i = 0; i < kBlock; i += kNormalPack * kDoubles) {
      store_pack(z[s] + i, minus_two_log_unit(widen_pack<kNormalPack>(word[s] + i)));
    }
    for (int i = 0; i < kBlock; i += kNormalPack * kDoubles) {
      Pack<Doubles, kNormalPack> cosine, sine;
      cos_sin_turn(widen_pack<kNormalPack>(word[s + 1] + i), &cosine, &sine);
      const auto radius = root(load_pack<Doubles, kNormalPack>(z[s] + i));
      store_pack(z[s] + i, radius * cosine);
      if (s + 1 < steps) store_pack(z[s + 1] + i, radius * sine);
    }
  }
}

void normals_float(const uint32_t (*word)[kBlock], int steps, float (*z)[kBlock]) {
  for (int s = 0; s < steps; s += 2) {
    for (int i = 0; i < kBlock; i += kNormalPack * kFloats) {
      store_pack(z[s] + i, minus_log_unit_float(load_pack<Ints, kNormalPack>(word[s] + i)));
    }
    for (int i = 0; i < kBlock; i += kNormalPack * kFloats) {
      Pack<Floats, kNormalPack> cosine, sine;
      cos_sin_turn_float(load_pack<Ints, kNormalPack>(word[s + 1] + i), &cosine, &sine);
      const auto radius = root(load_pack<Floats, kNormalPack>(z[s] + i));
      store_pack(z[s] + i, radius * cosine);
      if (s + 1 < steps) store_pack(z[s + 1] + i, radius * sine);
    }
  }
}

// What a group of steps draws, for all configurations.
struct Work {
  Hoisted mixture, pick;
  LEAKCORE_ALIGNED uint32_t word[4][kBlock];
  LEAKCORE_ALIGNED uint32_t pick_word[4][kBlock];
  LEAKCORE_ALIGNED double z[kGroup][kBlock];
  LEAKCORE_ALIGNED float z32[kGroup][kBlock];
  LEAKCORE_ALIGNED uint32_t picked[kGroup][kBlock];  // not 0 where the second component was taken
};

void pick(Work& w, const Group& g, uint32_t block) {
  for (int s = 0; s < g.steps; ++s) {
    const uint64_t high = g.pick_high[s];
    const uint32_t* word = w.pick_word[s];
    if (high > 0xffffffffu) {
      for (int i = 0; i < kBlock; ++i) w.picked[s][i] = 1;
      continue;
    }
    const Ints limit = ints(static_cast<uint32_t>(high));
    Ints undecided = {};
    for (int i = 0; i < kBlock; i += kFloats) {
      const Ints x = load<Ints>(word + i);
      store(w.picked[s] + i, reinterpret_cast<Ints>(x < limit));
      undecided |= reinterpret_cast<Ints>(x == limit);
    }
    if (!any(reinterpret_cast<LongMask>(undecided))) continue;
    for (int i = 0; i < kBlock; ++i) {  // once in 2^32 draws
      if (word[i] != high) continue;
      const Words low = draw_words(w.pick.seed, stream_word(Purpose::mixture_pick, 1),
                                   w.pick.first + static_cast<uint64_t>(i), block);
      w.picked[s][i] = low.w[s] < g.pick_low[s];
    }
  }
}

template <bool kPicks>
LEAKCORE_HD WideDoubles exponent(const Work& w, const Group& g, int s, int i) {
  const WideDoubles z = load_pack<Doubles, kFactorPack>(w.z[s] + i);
  if (!kPicks) return madd(z, g.slope[s], g.offset[s]);
  const Doubles offset = doubles(g.offset[s]), lifted = doubles(g.lifted[s]);
  WideDoubles shift;
  for (int k = 0; k < kFactorPack; ++k) {
    shift.v[k] = select(widen(w.picked[s] + i + k * kDoubles) != 0u, lifted, offset);
  }
  return madd(z, g.slope[s], shift);
}

template <bool kPicks>
LEAKCORE_HD WideFloats exponent_float(const Work& w, const Group& g, int s, int i) {
  const WideFloats z = load_pack<Floats, kFloatFactorPack>(w.z32[s] + i);
  if (!kPicks) return madd(z, g.slope32[s], g.offset32[s]);
  const Floats offset = floats(g.offset32[s]), lifted = floats(g.lifted32[s]);
  WideFloats shift;
  for (int k = 0; k < kFloatFactorPack; ++k) {
    shift.v[k] = select(load<Ints>(w.picked[s] + i + k * kFloats) != 0u, lifted, offset);
  }
  return madd(z, g.slope32[s], shift);
}

LEAKCORE_HD void add(double* total, WideDoubles x) {
  store_pack(total, load_pack<Doubles, kFactorPack>(total) + x);
}

template <int kSteps, bool kPicks>
void sparse(const Work& w, const Group& g, double* product, double* total) {
  for (int i = 0; i < kBlock; i += kFactorPack * kDoubles) {
    WideDoubles p = mixture_excess(exponent<kPicks>(w, g, 0, i), g.q[0]);
    if (!g.first) p = mixture_times(load_pack<Doubles, kFactorPack>(product + i), p);
    for (int s = 1; s < kSteps; ++s) p = mixture_times(p, mixture_excess(exponent<kPicks>(w, g, s, i), g.q[s]));
    if (!g.last) store_pack(product + i, p);
    if (g.last) add(total + i, log1p_safe(p));
  }
}

template <int kSteps, bool kPicks>
void dense(const Work& w, const Group& g, double* product, double* total) {
  for (int i = 0; i < kBlock; i += kFactorPack * kDoubles) {
    WideDoubles p = mixture_factor(exponent<kPicks>(w, g, 0, i), g.q[0]);
    if (!g.first) p = load_pack<Doubles, kFactorPack>(product + i) * p;
    for (int s = 1; s < kSteps; ++s) p = p * mixture_factor(exponent<kPicks>(w, g, s, i), g.q[s]);
    if (!g.last) store_pack(product + i, p);
    if (g.last) add(total + i, log_positive(p));
  }
}

template <int kSteps, bool kPicks>
void linear(const Work& w, const Group& g, double*, double* total) {
  for (int i = 0; i < kBlock; i += kFactorPack * kDoubles) {
    for (int s = 0; s < kSteps; ++s) add(total + i, exponent<kPicks>(w, g, s, i));
  }
}

template <int kSteps, bool kPicks>
void careful(const Work& w, const Group& g, double*, double* total) {
  for (int s = 0; s < kSteps; ++s) {
    if (g.q[s] == 0.0) continue;
    for (int i = 0; i < kBlock; ++i) total[i] += careful_term(g, s, w.z[s][i], kPicks && w.picked[s][i] != 0);
  }
}

template <int kSteps, bool kPicks>
void quick(const Work& w, const Group& g, double* product, double* total) {
  for (int i = 0; i < kBlock; i += kFloatFactorPack * kFloats) {
    WideFloats narrow = mixture_excess_float(exponent_float<kPicks>(w, g, 0, i), g.q32[0]);
    for (int s = 1; s < kSteps; ++s) {
      narrow = mixture_times(narrow, mixture_excess_float(exponent_float<kPicks>(w, g, s, i), g.q32[s]));
    }
    if (g.first && g.last) narrow = log1p_float(narrow);
    Pack<Doubles, 2 * kFloatFactorPack> p;
    for (int k = 0; k < kFloatFactorPack; ++k) widen(narrow.v[k], &p.v[2 * k], &p.v[2 * k + 1]);
    if (g.first && g.last) {
      store_pack(total + i, load_pack<Doubles, 2 * kFloatFactorPack>(total + i) + p);
      continue;
    }
    if (!g.first) p = mixture_times(load_pack<Doubles, 2 * kFloatFactorPack>(product + i), p);
    if (!g.last) store_pack(product + i, p);
    if (g.last) store_pack(total + i, load_pack<Doubles, 2 * kFloatFactorPack>(total + i) + log1p_safe(p));
  }
}

template <int kSteps, bool kPicks>
void combine(const Work& w, const Group& g, double* product, double* total) {
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
constexpr Combine kCombine[2][kGroup] = {{combine<1, false>, combine<2, false>, combine<3, false>, combine<4, false>},
                                         {combine<1, true>, combine<2, true>, combine<3, true>, combine<4, true>}};

void log_ratios(const MixturePlan& plan, uint64_t seed, bool alternative, uint64_t first, double* out, double* work) {
  Work w;
  // The alternative draws from a stream of its own, so that samples of ν and of μ under one seed are independent.
  hoist(seed, stream_word(Purpose::mixture, alternative), first, &w.mixture);
  if (alternative) hoist(seed, stream_word(Purpose::mixture_pick, 0), first, &w.pick);
  for (int64_t i = 0; i < plan.configs * kBlock; ++i) out[i] = 0.0;
  for (int64_t k = 0; k < plan.groups; ++k) {
    bool wide = false, narrow = false;
    for (int64_t c = 0; c < plan.configs; ++c) {
      const Form form = plan.at(c, k).form;
      narrow = narrow || form == Form::quick;
      wide = wide || (form != Form::quick && form != Form::idle);
    }
    if (!wide && !narrow) continue;
    const uint32_t block = static_cast<uint32_t>(k);
    const int steps = plan.at(0, k).steps;
    words(w.mixture, block, steps, w.word);
    if (alternative) words(w.pick, block, steps, w.pick_word);
    if (wide) normals(w.word, steps, w.z);
    if (narrow) normals_float(w.word, steps, w.z32);
    for (int64_t c = 0; c < plan.configs; ++c) {
      const Group& g = plan.at(c, k);
      if (g.form == Form::idle) continue;
      if (alternative) pick(w, g, block);
      kCombine[alternative][steps - 1](w, g, work + c * kBlock, out + c * kBlock);
    }
  }
}

constexpr MixtureLoops kLoops = {log_ratios, tally};

}  // namespace

#define LEAKCORE_JOIN(a, b) a##b
#define LEAKCORE_TABLE(tier) LEAKCORE_JOIN(mixture_loops_, tier)
const MixtureLoops& LEAKCORE_TABLE(LEAKCORE_TIER)() {
  return kLoops;
}

}  // namespace leakcore
