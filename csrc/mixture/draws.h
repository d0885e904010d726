// Random words and normals of a block of samples. Included by mixture_simd.cpp and allocation_simd.cpp alone.
//
// A block's first sample is a multiple of kBlock, so the upper half of the sample index is the same throughout.
#pragma once

#include "core/runtime/line.h"
#include "core/simd/pairs.h"
#include "mixture/mixture_simd.h"

namespace leakcore {
namespace {

// Vectors side by side, by measurement: the chain of ten rounds is long, but AVX2 has sixteen registers.
#if defined(__AVX2__) && !defined(__AVX512F__)
constexpr int kWordVectors = 2;
#else
constexpr int kWordVectors = 4;
#endif
constexpr int kNormalPack = 2;

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
  for (int i = 0; i < kBlock; i += kWordVectors * kDoubles) {
    Counter<Longs> c[kWordVectors];
    for (int k = 0; k < kWordVectors; ++k) {
      const Longs low1 = load<Longs>(h.low1 + i + k * kDoubles), a2 = load<Longs>(h.a2 + i + k * kDoubles);
      // Round 3, whose second word is the same for all samples: folded into its key.
      const Longs a = multiply32(low1 ^ flip0, kPhiloxM0), b = multiply32(a2 >> 32 ^ flip2, kPhiloxM1);
      c[k] = {b >> 32 ^ static_cast<uint64_t>(static_cast<uint32_t>(b2) ^ round_key0(seed, 2)), b,
              a >> 32 ^ a2 ^ static_cast<uint64_t>(round_key1(seed, 2)), a};
    }
#pragma GCC unroll 6
    for (int round = 3; round < kRounds - 1; ++round) {
#pragma GCC unroll 4
      for (int k = 0; k < kWordVectors; ++k) philox_round(c[k], round_key0(seed, round), round_key1(seed, round));
    }
#pragma GCC unroll 2
    for (int k = 0; k < kWordVectors; k += 2) {
      const int at = i + k * kDoubles;
      const Longs b[2] = {multiply32(c[k].c2, kPhiloxM1), multiply32(c[k + 1].c2, kPhiloxM1)};
      store(word[0] + at, merge_upper(b[0], b[1]) ^ merge_lower(c[k].c1, c[k + 1].c1) ^ keys);
      store(word[1] + at, merge_lower(b[0], b[1]));
      if (!kAll) continue;
      const Longs a[2] = {multiply32(c[k].c0, kPhiloxM0), multiply32(c[k + 1].c0, kPhiloxM0)};
      store(word[2] + at, merge_upper(a[0], a[1]) ^ merge_lower(c[k].c3, c[k + 1].c3) ^ keys2);
      store(word[3] + at, merge_lower(a[0], a[1]));
    }
  }
}

void words(const Hoisted& h, uint32_t block, int steps, uint32_t (*word)[kBlock]) {
  if (steps > 2) {
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
      cos_sin_turn(widen_pack<kNormalPack>(word[s + 1] + i) << 32, &cosine, &sine);
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

// Memory that is written soon, kBytes per sample, asked for in even steps beforehand, since a burst of stores to lines
// that no cache holds would wait for every one.
template <int kBytes>
struct Soon {
  const char* at;

  template <int kSamples>
  LEAKCORE_HD void fetch() {
#pragma GCC unroll 4
    for (int line = 0; line < kSamples * kBytes; line += kLine) __builtin_prefetch(at + line, 1, 3);
    at += kSamples * kBytes;
  }
};
using Nothing = Soon<0>;

// T = 1: rows of four draws, a sample each. `meanwhile`: see draw_pairs.
template <class Soon, class Meanwhile>
void quad_words(uint64_t seed, uint32_t stream, uint64_t first, int samples, uint32_t* even, uint32_t* odd, Soon soon,
                Meanwhile&& meanwhile) {
  const uint64_t row = first / 4;
  // Only word 2 of the counter varies: one multiplication in the first two rounds, and the other one by addition.
  const uint64_t flip0 = stream ^ round_key0(seed, 0);
  const uint64_t b2 = multiply32(static_cast<uint32_t>(row >> 32) ^ round_key1(seed, 0), kPhiloxM1);
  const uint64_t flip1 = static_cast<uint32_t>(b2 >> 32) ^ round_key0(seed, 1);
  const uint64_t flip2 = round_key1(seed, 1);
  Longs b1 = multiply32(ascending(static_cast<uint32_t>(row)), kPhiloxM1);
  const auto start = [&](int) -> Counter<Longs> {
    soon.template fetch<4 * kDoubles>();
    const Longs a2 = multiply32(b1 >> 32 ^ flip0, kPhiloxM0);
    const Counter<Longs> c = {b1 ^ flip1, longs(b2), a2 >> 32 ^ flip2, a2};
    b1 += static_cast<uint64_t>(kDoubles) * kPhiloxM1;
    return c;
  };
  draw_pairs(seed, samples / 4, start, even, odd, meanwhile);
}

}  // namespace
}  // namespace leakcore
