// T = 1: a sample's ratio is one logarithm, and goes straight to its place where every configuration has the usual
// form. Included by mixture_simd.cpp alone.
#pragma once

#include "core/runtime/line.h"
#include "mixture/factors.h"
#include "mixture/mixture_simd.h"

namespace leakcore {
namespace {

// A little within log1p_near's reach.
constexpr double kNearLow = -0.29, kNearHigh = 0.41;
constexpr uint64_t kTopOfDouble = 0x4000000000000000ull;
constexpr uint32_t kTopOfFloat = 0x40000000u;

// T = 1, where a loop over one block alone would be over before the processor's pipelines are full.
struct Single : Draws<1, kWideBlock> {
  static constexpr uintptr_t kPage = 4096;
  int samples;
  LEAKCORE_ALIGNED uint32_t even[kWideBlock / 2];
  LEAKCORE_ALIGNED uint32_t odd[kWideBlock / 2];
  LEAKCORE_ALIGNED char room[kWideBlock * sizeof(float) + kPage];

  // Room for a block of floats between z32 and `out`. The three lie at least a quarter of a page apart: a load waits
  // for an earlier store whose address has the same last twelve bits.
  float* excess_apart_from(const void* out) {
    constexpr uintptr_t kApart = kPage / 4;
    const uintptr_t from = reinterpret_cast<uintptr_t>(z32[0]), start = reinterpret_cast<uintptr_t>(room);
    uintptr_t to = reinterpret_cast<uintptr_t>(out) + kPage / 2;
    const uintptr_t ahead = (from - to) % kPage;
    if (ahead < kApart) to -= kApart;
    if (ahead > kPage - kApart) to += kApart;
    return reinterpret_cast<float*>(room + (to - start) % kPage / kLine * kLine);
  }
};

void pick(Single& w, const Group& g) {
  pick_by(w, g, w.samples, [&](uint64_t sample, int) {
    return draw_words(w.seed, stream_word(Purpose::mixture_one_pick, 1), sample / 4, 0).w[sample % 4];
  });
}

template <class T, class V>
LEAKCORE_HD void put(T* out, Pack<V, kFactorPack> x) {
  store_pack(out, x);
}
LEAKCORE_HD void put(double* out, WideFloats x) {
  store_pack(out, widened(x));
}

// Whether some u > kNearHigh, in integers, which leave the multipliers alone: the sum carries into the exponent's top
// bit. For -1 < u < 2^1000 (as floats < 2^120).
LEAKCORE_HD Longs beyond(Doubles u) {
  return bits_of(u) + (kTopOfDouble - bits_of(kNearHigh));
}
LEAKCORE_HD Ints beyond(Floats u) {
  return bits_of(u) + (kTopOfFloat - bits_of(static_cast<float>(kNearHigh)));
}
template <class V, int K>
LEAKCORE_HD auto beyond(const Pack<V, K>& u) {
  auto sum = beyond(u.v[0]);
  for (int k = 1; k < K; ++k) sum |= beyond(u.v[k]);
  return sum;
}
LEAKCORE_HD bool any_top(Longs sum) {
  return any(reinterpret_cast<LongMask>(sum & kTopOfDouble));
}
LEAKCORE_HD bool any_top(Ints sum) {
  return any(reinterpret_cast<LongMask>(sum & kTopOfFloat));
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
    store_pack(out + i, low || any_top(beyond(u)) ? log1p_safe(u) : log1p_near(u));
  }
}

// A block of samples whose words are to be drawn; none where samples is 0.
struct Following {
  uint64_t seed;
  uint32_t stream;
  uint64_t first;
  int samples;
};

template <class Soon, class Meanwhile>
void words_of(Single& w, const Following& block, Soon soon, Meanwhile&& meanwhile) {
  w.samples = block.samples;
  quad_words(block.seed, block.stream, block.first, block.samples, w.even, w.odd, soon, meanwhile);
}

// Only AVX-512 has registers for words and logarithms at once.
constexpr bool kWordsWithLogs = kVectorBytes == 64;

template <bool kPicks, class T, class Soon, class WordsSoon>
void one_quick(Single& w, const Group& g, T* out, Soon soon, const Following& next, WordsSoon words_soon) {
  const Lines<float, 1> line(g.slope32, g.offset32, g.lifted32);
  const float q = g.q32[0];
  const bool low = g.q[0] > -kNearLow;
  float* const excess = w.excess_apart_from(out);
  Ints far = {};
  for (int i = 0; i < w.samples; i += kFactorPack * kFloats) {
    soon.template fetch<kFactorPack * kFloats>();
    const WideFloats u = mixture_excess_float(exponent<kPicks>(w, line, 0, i), q);
    store_pack(excess + i, u);
    if (kWordsWithLogs) far |= beyond(u);
  }
  if constexpr (kWordsWithLogs && sizeof(T) == sizeof(float)) {
    if (next.samples > 0 && !low && !any_top(far)) {
      static_assert(4 * kCounters * kDoubles == kParts * kFloats, "as many samples of words as of logarithms");
      return words_of(w, next, words_soon, [&](int row, int part) __attribute__((always_inline)) {
        const int i = 4 * row + part * kFloats;
        store(out + i, log1p_near_float(load<Floats>(excess + i)));
      });
    }
  }
  for (int i = 0; i < w.samples; i += kFactorPack * kFloats) {
    soon.template fetch<kFactorPack * kFloats>();
    const WideFloats u = load_pack<Floats, kFactorPack>(excess + i);
    put(out + i, low || any_top(beyond(u)) ? log1p_float(u) : log1p_near_float(u));
  }
  if (next.samples > 0) words_of(w, next, words_soon, Alone{});
}

// A block's normals, as the forms in use need them, and then the words that pick: the normals' are gone afterwards.
void draw_singles(Single& w, const Following& block, bool alternative, bool wide, bool narrow) {
  w.seed = block.seed;
  w.first = block.first;
  const int samples = block.samples;
  if (wide) normals_of_pairs<kWideBlock / 2>(samples / 2, w.even, w.odd, w.z[0]);
  if (narrow) normals_of_pairs<kWideBlock / 2>(samples / 2, w.even, w.odd, w.z32[0]);
  if (!alternative) return;
  quad_words(block.seed, stream_word(Purpose::mixture_one_pick, 0), block.first, samples, w.even, w.odd,
             Nothing{nullptr}, Alone{});
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
      one_quick<kPicks>(w, g, to, Nothing{nullptr}, Following{}, Nothing{nullptr});
    } else {
      for (int i = 0; i < kBlock; ++i) to[i] = 0.0;
      combine<1, kPicks>(w, g, nullptr, to);
    }
  }
}

// Straight to their place, all configurations of the form that T stands for, block by block.
template <bool kOutside, class T>
void one_step_of(const MixturePlan& plan, uint64_t seed, bool alternative, uint64_t first, int64_t samples, T* out,
                 int64_t stride) {
  constexpr bool kNarrow = sizeof(T) == sizeof(float);
  const int size = samples < kWideBlock ? kBlock : kWideBlock;
  // What is written next, half of it during the words, half during factors and logarithms.
  constexpr int kHalf = kOutside ? sizeof(T) / 2 : 0;
  const auto next = [&](const T* at, int64_t count) { return reinterpret_cast<const char*>(at + size + count); };
  Single w;
  Following block = {seed, stream_word(Purpose::mixture_one, alternative), first, size};
  words_of(w, block, Soon<kHalf>{next(out, 0)}, Alone{});
  for (int64_t done = 0; done < samples; done += size, out += size) {
    draw_singles(w, block, alternative, !kNarrow, kNarrow);
    block.first += static_cast<uint64_t>(size);
    const bool more = done + size < samples;
    const Soon<kHalf> words_soon = {next(out + size, 0)};
    for (int64_t c = 0; c < plan.configs; ++c) {
      const Group& g = plan.at(c, 0);
      if (alternative) pick(w, g);
      T* const to = out + c * stride;
      const Soon<kHalf / 2> soon = {next(to, size / 2)};
      if constexpr (kNarrow) {
        const Following following = more && c + 1 == plan.configs ? block : Following{};
        alternative ? one_quick<true>(w, g, to, soon, following, words_soon)
                    : one_quick<false>(w, g, to, soon, following, words_soon);
      } else {
        alternative ? one_sparse<true>(w, g, to, soon) : one_sparse<false>(w, g, to, soon);
      }
    }
    if (!kNarrow && more) words_of(w, block, words_soon, Alone{});
  }
}

template <class T>
void one_step(const MixturePlan& plan, uint64_t seed, bool alternative, uint64_t first, int64_t samples, T* out,
              int64_t stride, bool outside) {
  const auto of = outside ? one_step_of<true, T> : one_step_of<false, T>;
  of(plan, seed, alternative, first, samples, out, stride);
}

}  // namespace
}  // namespace leakcore
