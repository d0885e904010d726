// Compiled once per instruction tier (setup.py). All but the table is in an anonymous namespace or always inlined, and
// no library template is called, so that no inline function built for one tier can be linked into another.
//
// What limits it, on Zen 4 (two 512-bit instructions a cycle, one of them a multiplication): per 8 samples and step in
// float64 about 13 instructions for random words, 28 and a division and a root per two steps for normals, 18 for the
// factor, of which 10 need a multiplier; per 16 samples in float32 13, 28 and 16.
//
// At one step per sample every sample has a logarithm, too, with a division of its own. Nanoseconds per sample at 3.72
// GHz, the best of many runs loop by loop: words 0.29, normals 0.72, e^y 0.37, logarithm 0.43; in float32 0.29, 0.26,
// 0.15, 0.16. One multiplication of 512 bits a cycle, a division in three such slots and ten rounds of Philox at two
// instructions a cycle allow 0.24, 0.55, 0.34 and 0.40 in float64. Of 10^7 samples a fresh array costs 0.7 (float32:
// 0.35) more in page faults, hence `out`. The copy past the caches cost 0.17 in float64 while its stores had 16 bytes;
// with the tier's 64 it costs nothing. In float32 plain stores are faster. Eighths of the exponent by table would save
// 0.03 in float32 and cost a unit of q there: not taken. On Emerald Rapids a sample takes 2.43 (float32: 1.03), and
// stores to memory that no cache holds took 0.42 more in either: a block's come in one burst, each line waiting for its
// turn. Asked for during the block before, they cost nothing.
//
// Random words, normals and factors are each made in a loop of their own over a block that stays in the first-level
// cache, four steps (one Philox block) at a time: a loop with few constants keeps them all in registers.
#include "mixture/mixture_simd.h"

#include "core/stream_copy.h"
#include "core/streams.h"
#include "mixture/draws.h"
#include "mixture/steps.h"
#include "mixture/tally.h"

namespace leakcore {
namespace {

constexpr int kFactorPack = 4;  // vectors side by side, by measurement
// A little within log1p_near's reach.
constexpr double kNearLow = -0.29, kNearHigh = 0.41;
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

// T = 1, where a loop over one block alone would be over before the processor's pipelines are full.
struct Single : Draws<1, kWideBlock> {
  int samples;
  LEAKCORE_ALIGNED uint32_t even[kWideBlock / 2];
  LEAKCORE_ALIGNED uint32_t odd[kWideBlock / 2];
  LEAKCORE_ALIGNED float excess32[kWideBlock];
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

void pick(Single& w, const Group& g) {
  pick_by(w, g, w.samples, [&](uint64_t sample, int) {
    return draw_words(w.seed, stream_word(Purpose::mixture_one_pick, 1), sample / 4, 0).w[sample % 4];
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

template <class T, class V>
LEAKCORE_HD void put(T* out, Pack<V, kFactorPack> x) {
  store_pack(out, x);
}
LEAKCORE_HD void put(double* out, WideFloats x) {
  store_pack(out, widened(x));
}

// Whether some u > kNearHigh, in integers, which leave the multipliers alone: the sum carries into the exponent's top
// bit. For -1 < u < 2^1000.
template <int K>
LEAKCORE_HD bool any_beyond(const Pack<Doubles, K>& u) {
  constexpr uint64_t kTop = 0x4000000000000000ull;
  const uint64_t lift = kTop - bits_of(kNearHigh);
  Longs sum = bits_of(u.v[0]) + lift;
  for (int k = 1; k < K; ++k) sum |= bits_of(u.v[k]) + lift;
  return any(reinterpret_cast<LongMask>(sum & kTop));
}

template <int K>
LEAKCORE_HD bool any_beyond(const Pack<Floats, K>& u) {
  constexpr uint32_t kTop = 0x40000000u;
  const uint32_t lift = kTop - bits_of(static_cast<float>(kNearHigh));
  Ints sum = bits_of(u.v[0]) + lift;
  for (int k = 1; k < K; ++k) sum |= bits_of(u.v[k]) + lift;
  return any(reinterpret_cast<LongMask>(sum & kTop));
}

// T = 1: the ratio is one logarithm. Most often none of a pack needs its exponent split off; the two ways are equal.
template <bool kPicks, class Soon>
void one_sparse(Single& w, const Group& g, double* out, Soon soon) {
  const WideScale q(g.q[0]);
  const Lines<double, 1> line(g.slope, g.offset, g.lifted);
  const bool low = g.q[0] > -kNearLow;  // u >= -q
  for (int i = 0; i < w.samples; i += kFactorPack * kDoubles) {
    soon.template fetch<kFactorPack * kDoubles>();
    store_pack(out + i, mixture_excess(exponent<kPicks>(w, line, 0, i), q));
  }
  for (int i = 0; i < w.samples; i += kFactorPack * kDoubles) {
    soon.template fetch<kFactorPack * kDoubles>();
    const WideDoubles u = load_pack<Doubles, kFactorPack>(out + i);
    store_pack(out + i, low || any_beyond(u) ? log1p_safe(u) : log1p_near(u));
  }
}

template <bool kPicks, class T, class Soon>
void one_quick(Single& w, const Group& g, T* out, Soon soon) {
  const Lines<float, 1> line(g.slope32, g.offset32, g.lifted32);
  const float q = g.q32[0];
  const bool low = g.q[0] > -kNearLow;
  for (int i = 0; i < w.samples; i += kFactorPack * kFloats) {
    soon.template fetch<kFactorPack * kFloats>();
    store_pack(w.excess32 + i, mixture_excess_float(exponent<kPicks>(w, line, 0, i), q));
  }
  for (int i = 0; i < w.samples; i += kFactorPack * kFloats) {
    soon.template fetch<kFactorPack * kFloats>();
    const WideFloats u = load_pack<Floats, kFactorPack>(w.excess32 + i);
    put(out + i, low || any_beyond(u) ? log1p_float(u) : log1p_near_float(u));
  }
}

// The normals and words of `samples` consecutive samples, as the forms in use need them.
template <class Soon>
void draw_singles(Single& w, uint64_t seed, bool alternative, uint64_t first, int samples, bool wide, bool narrow,
                  Soon soon) {
  w.seed = seed;
  w.first = first;
  w.samples = samples;
  quad_words(seed, stream_word(Purpose::mixture_one, alternative), first, samples, w.even, w.odd, soon);
  if (wide) normals_of_pairs<kWideBlock / 2>(samples / 2, w.even, w.odd, w.z[0]);
  if (narrow) normals_of_pairs<kWideBlock / 2>(samples / 2, w.even, w.odd, w.z32[0]);
  if (!alternative) return;
  quad_words(seed, stream_word(Purpose::mixture_one_pick, 0), first, samples, w.even, w.odd, Nothing{nullptr});
  for (int i = 0; i < samples / 2; i += kFloats) {
    store_interleaved(w.pick_word[0] + 2 * i, load<Ints>(w.even + i), load<Ints>(w.odd + i));
  }
}

template <bool kPicks>
void singles(Single& w, const MixturePlan& plan, double* out) {
  for (int64_t c = 0; c < plan.configs; ++c) {
    const Group& g = plan.at(c, 0);
    if (kPicks && g.form != Form::idle) pick(w, g);
    double* to = out + c * kBlock;
    if (g.form == Form::sparse) {
      one_sparse<kPicks>(w, g, to, Nothing{nullptr});
    } else if (g.form == Form::quick) {
      one_quick<kPicks>(w, g, to, Nothing{nullptr});
    } else {
      for (int i = 0; i < kBlock; ++i) to[i] = 0.0;
      combine<1, kPicks>(w, g, nullptr, to);
    }
  }
}

// Straight to their place, all configurations of the form that T stands for.
template <Stores kStores, class T>
void one_step_of(const MixturePlan& plan, uint64_t seed, bool alternative, uint64_t first, int samples, T* out,
                 int64_t stride) {
  constexpr bool kNarrow = sizeof(T) == sizeof(float), kPast = kStores == Stores::past;
  // What is written next, half of it beside the words, half beside factors and logarithms.
  constexpr int kHalf = kStores == Stores::onwards ? sizeof(T) / 2 : 0;
  const auto next = [&](const T* at, int64_t count) { return reinterpret_cast<const char*>(at + samples + count); };
  Single w;
  LEAKCORE_ALIGNED T passing[kPast ? kWideBlock : 1];
  draw_singles(w, seed, alternative, first, samples, !kNarrow, kNarrow, Soon<kHalf>{next(out, 0)});
  for (int64_t c = 0; c < plan.configs; ++c) {
    const Group& g = plan.at(c, 0);
    if (alternative) pick(w, g);
    T* const place = out + c * stride;
    T* const to = kPast ? passing : place;
    const Soon<kHalf / 2> soon = {next(to, samples / 2)};
    if constexpr (kNarrow) {
      alternative ? one_quick<true>(w, g, to, soon) : one_quick<false>(w, g, to, soon);
    } else {
      alternative ? one_sparse<true>(w, g, to, soon) : one_sparse<false>(w, g, to, soon);
    }
    if constexpr (kPast) stream_copy(place, passing, static_cast<int64_t>(sizeof(T)) * samples);
  }
}

template <class T>
void one_step(const MixturePlan& plan, uint64_t seed, bool alternative, uint64_t first, int samples, T* out,
              int64_t stride, Stores stores) {
  constexpr Stores kPast = sizeof(T) == sizeof(double) ? Stores::past : Stores::plain;
  const auto of = stores == Stores::past      ? one_step_of<kPast, T>
                  : stores == Stores::onwards ? one_step_of<Stores::onwards, T>
                                              : one_step_of<Stores::plain, T>;
  of(plan, seed, alternative, first, samples, out, stride);
}

// Which normals a step's group needs, over all configurations.
void forms_in_use(const MixturePlan& plan, int64_t group, bool* wide, bool* narrow) {
  *wide = *narrow = false;
  for (int64_t c = 0; c < plan.configs; ++c) {
    const Form form = plan.at(c, group).form;
    *narrow = *narrow || form == Form::quick;
    *wide = *wide || (form != Form::quick && form != Form::idle);
  }
}

void single_ratios(const MixturePlan& plan, uint64_t seed, bool alternative, uint64_t first, double* out) {
  bool wide, narrow;
  forms_in_use(plan, 0, &wide, &narrow);
  Single w;
  if (wide || narrow) draw_singles(w, seed, alternative, first, kBlock, wide, narrow, Nothing{nullptr});
  (alternative ? singles<true> : singles<false>)(w, plan, out);
}

void log_ratios(const MixturePlan& plan, uint64_t seed, bool alternative, uint64_t first, double* out, double* work) {
  if (plan.one_step) return single_ratios(plan, seed, alternative, first, out);
  Work w;
  w.seed = seed;
  w.first = first;
  // The alternative draws from a stream of its own, so that samples of ν and of μ under one seed are independent.
  hoist(seed, stream_word(Purpose::mixture, alternative), first, &w.mixture);
  if (alternative) hoist(seed, stream_word(Purpose::mixture_pick, 0), first, &w.pick);
  for (int64_t i = 0; i < plan.configs * kBlock; ++i) out[i] = 0.0;
  for (int64_t k = 0; k < plan.groups; ++k) {
    bool wide, narrow;
    forms_in_use(plan, k, &wide, &narrow);
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

void fence() {
  stream_fence();
}

constexpr MixtureLoops kLoops = {log_ratios, one_step<double>, one_step<float>, fence, tally};

}  // namespace

#define LEAKCORE_JOIN(a, b) a##b
#define LEAKCORE_TABLE(tier) LEAKCORE_JOIN(mixture_loops_, tier)
const MixtureLoops& LEAKCORE_TABLE(LEAKCORE_TIER)() {
  return kLoops;
}

}  // namespace leakcore
