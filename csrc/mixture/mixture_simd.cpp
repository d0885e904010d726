// Compiled once per instruction tier (setup.py). All but the table is in an anonymous namespace or always inlined, and
// no library template is called, so that no inline function built for one tier can be linked into another.
//
// What limits it, on Zen 4 (two 512-bit instructions a cycle, one of them a multiplication): per 8 samples and step in
// float64 about 13 instructions for random words, 28 and a division and a root per two steps for normals, 21 for the
// factor, of which 14 need a multiplier; per 16 samples in float32 13, 29 and 16.
//
// At one step per sample every sample has a logarithm, too, with a division of its own. Nanoseconds per sample at 3.67
// GHz, measured loop by loop: words 0.30, normals 0.75, e^y 0.50, logarithm 0.48; in float32 0.30, 0.31, 0.16, 0.15.
// The multiplications alone, one vector a cycle, would take 0.15, 0.43, 0.44 and 0.37, divisions and roots aside. Of
// 10^7 samples a fresh array costs 0.7 (float32: 0.35) more in page faults: hence `out`.
//
// Random words, normals and factors are each made in a loop of their own over a block that stays in the first-level
// cache, four steps (one Philox block) at a time: a loop with few constants keeps them all in registers.
#include "mixture/mixture_simd.h"

#include "core/streams.h"
#include "mixture/draws.h"
#include "mixture/steps.h"
#include "mixture/tally.h"

namespace leakcore {
namespace {

// Vectors side by side, by measurement: the float32 chains are short enough already.
constexpr int kFactorPack = 4, kFloatFactorPack = 1;
// A little within log1p_near's reach.
constexpr double kNearLow = -0.29, kNearHigh = 0.41;
typedef Pack<Doubles, kFactorPack> WideDoubles;
typedef Pack<Floats, kFloatFactorPack> WideFloats;

// What a group of steps draws, for all configurations.
struct Work {
  uint64_t seed, first;
  Hoisted mixture, pick;
  LEAKCORE_ALIGNED uint32_t word[4][kBlock];
  LEAKCORE_ALIGNED uint32_t pick_word[4][kBlock];
  LEAKCORE_ALIGNED double z[kGroup][kBlock];
  LEAKCORE_ALIGNED float z32[kGroup][kBlock];
  LEAKCORE_ALIGNED uint32_t picked[kGroup][kBlock];  // not 0 where the second component was taken
  LEAKCORE_ALIGNED double excess[kBlock];
  LEAKCORE_ALIGNED float excess32[kBlock];
};

void pick(Work& w, const Group& g, bool one_step, uint32_t block) {
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
      const uint64_t sample = w.first + static_cast<uint64_t>(i);
      const uint32_t low =
          one_step ? draw_words(w.seed, stream_word(Purpose::mixture_one_pick, 1), sample / 4, 0).w[sample % 4]
                   : draw_words(w.seed, stream_word(Purpose::mixture_pick, 1), sample, block).w[s];
      w.picked[s][i] = low < g.pick_low[s];
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

template <bool kPicks, int K = kFloatFactorPack>
LEAKCORE_HD Pack<Floats, K> exponent_float(const Work& w, const Group& g, int s, int i) {
  const Pack<Floats, K> z = load_pack<Floats, K>(w.z32[s] + i);
  if (!kPicks) return madd(z, g.slope32[s], g.offset32[s]);
  const Floats offset = floats(g.offset32[s]), lifted = floats(g.lifted32[s]);
  Pack<Floats, K> shift;
  for (int k = 0; k < K; ++k) {
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

template <class T, class V>
LEAKCORE_HD void put(T* out, Pack<V, kFactorPack> x) {
  store_pack(out, x);
}
LEAKCORE_HD void put(double* out, Pack<Floats, kFactorPack> x) {
  Pack<Doubles, 2 * kFactorPack> wide;
  for (int k = 0; k < kFactorPack; ++k) widen(x.v[k], &wide.v[2 * k], &wide.v[2 * k + 1]);
  store_pack(out, wide);
}

// T = 1: the ratio is one logarithm. Most often none of a pack needs its exponent split off.
template <bool kPicks>
void one_sparse(Work& w, const Group& g, double* out) {
  for (int i = 0; i < kBlock; i += kFactorPack * kDoubles) {
    store_pack(w.excess + i, mixture_excess(exponent<kPicks>(w, g, 0, i), g.q[0]));
  }
  for (int i = 0; i < kBlock; i += kFactorPack * kDoubles) {
    const WideDoubles u = load_pack<Doubles, kFactorPack>(w.excess + i);
    LongMask beyond = {};
    for (int k = 0; k < kFactorPack; ++k) beyond |= (u.v[k] < kNearLow) | (u.v[k] > kNearHigh);
    put(out + i, any(beyond) ? log1p_safe(u) : log1p_near(u));
  }
}

template <bool kPicks, class T>
void one_quick(Work& w, const Group& g, T* out) {
  for (int i = 0; i < kBlock; i += kFactorPack * kFloats) {
    store_pack(w.excess32 + i, mixture_excess_float(exponent_float<kPicks, kFactorPack>(w, g, 0, i), g.q32[0]));
  }
  for (int i = 0; i < kBlock; i += kFactorPack * kFloats) {
    const Pack<Floats, kFactorPack> u = load_pack<Floats, kFactorPack>(w.excess32 + i);
    IntMask beyond = {};
    for (int k = 0; k < kFactorPack; ++k) {
      beyond |= (u.v[k] < static_cast<float>(kNearLow)) | (u.v[k] > static_cast<float>(kNearHigh));
    }
    put(out + i, any(reinterpret_cast<LongMask>(beyond)) ? log1p_float(u) : log1p_near_float(u));
  }
}

template <bool kPicks>
void one(Work& w, const Group& g, double* out) {
  if (g.form == Form::sparse) return one_sparse<kPicks>(w, g, out);
  if (g.form == Form::quick) return one_quick<kPicks>(w, g, out);
  for (int i = 0; i < kBlock; ++i) out[i] = 0.0;
  combine<1, kPicks>(w, g, nullptr, out);
}

// T = 1, as log_ratios below; T is float where every configuration is `quick`.
template <class T>
void one_step(const MixturePlan& plan, uint64_t seed, bool alternative, uint64_t first, T* out, int64_t stride) {
  Work w;
  w.seed = seed;
  w.first = first;
  bool wide = false, narrow = false;
  for (int64_t c = 0; c < plan.configs; ++c) {
    const Form form = plan.at(c, 0).form;
    narrow = narrow || form == Form::quick;
    wide = wide || (form != Form::quick && form != Form::idle);
  }
  if (wide || narrow) quad_words(seed, stream_word(Purpose::mixture_one, alternative), first, w.word[0], w.word[1]);
  if (wide) normals_of_pairs<kBlock / 2>(w.word[0], w.word[1], w.z[0]);
  if (narrow) normals_of_pairs<kBlock / 2>(w.word[0], w.word[1], w.z32[0]);
  if (alternative && (wide || narrow)) {
    quad_words(seed, stream_word(Purpose::mixture_one_pick, 0), first, w.word[0], w.word[1]);
    for (int i = 0; i < kBlock / 2; i += kFloats) {
      store_interleaved(w.pick_word[0] + 2 * i, load<Ints>(w.word[0] + i), load<Ints>(w.word[1] + i));
    }
  }
  for (int64_t c = 0; c < plan.configs; ++c) {
    const Group& g = plan.at(c, 0);
    if (alternative && g.form != Form::idle) pick(w, g, true, 0);
    if constexpr (sizeof(T) == sizeof(float)) {
      (alternative ? one_quick<true, float> : one_quick<false, float>)(w, g, out + c * stride);
    } else {
      (alternative ? one<true> : one<false>)(w, g, out + c * stride);
    }
  }
}

void log_ratios(const MixturePlan& plan, uint64_t seed, bool alternative, uint64_t first, double* out, double* work) {
  if (plan.one_step) return one_step(plan, seed, alternative, first, out, kBlock);
  Work w;
  w.seed = seed;
  w.first = first;
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
      if (alternative) pick(w, g, false, block);
      kCombine[alternative][steps - 1](w, g, work + c * kBlock, out + c * kBlock);
    }
  }
}

constexpr MixtureLoops kLoops = {log_ratios, one_step<double>, one_step<float>, tally};

}  // namespace

#define LEAKCORE_JOIN(a, b) a##b
#define LEAKCORE_TABLE(tier) LEAKCORE_JOIN(mixture_loops_, tier)
const MixtureLoops& LEAKCORE_TABLE(LEAKCORE_TIER)() {
  return kLoops;
}

}  // namespace leakcore
