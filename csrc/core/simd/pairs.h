// Random words and normals of many Philox blocks at a time in pairs, the two of a Box-Muller pair apart: `even` holds
// words (0, 2, 0, 2, …) of consecutive blocks, `odd` words (1, 3, 1, 3, …). Only *_simd.cpp may include it.
#pragma once

#include "core/rng/normal.h"
#include "core/simd/vec.h"

namespace leakcore {
namespace {

constexpr int kCounters = 4;  // vectors side by side, by measurement: the chain of ten rounds is long

constexpr int kParts = 8;  // a round between one and the next

// Nothing is done between the rounds.
struct Alone {
  LEAKCORE_HD void operator()(int, int) const {}
};

// `start(k)` is the counter of blocks k·kDoubles … after the first two rounds, called for k = 0, 1, … in turn: what two
// of the rounds cost depends on which word of the counter varies. `blocks` is a multiple of kCounters·kDoubles.
// `meanwhile(i, part)` is other work, done between the rounds of blocks i …, in kParts parts: a chain of multiply-adds
// leaves the shifts and exclusive ors to the rounds, and the rounds leave multiplications to it.
template <class Start, class Meanwhile>
LEAKCORE_HD void draw_pairs(uint64_t seed, int blocks, Start&& start, uint32_t* even, uint32_t* odd,
                            Meanwhile&& meanwhile) {
  const uint64_t keys = static_cast<uint64_t>(round_key1(seed, kRounds - 1)) << 32 | round_key0(seed, kRounds - 1);
  for (int i = 0; i < blocks; i += kCounters * kDoubles) {
    Counter<Longs> c[kCounters];
    for (int k = 0; k < kCounters; ++k) c[k] = start(i / kDoubles + k);
    meanwhile(i, 0);
#pragma GCC unroll 7
    for (int round = 2; round < kRounds - 1; ++round) {
#pragma GCC unroll 4
      for (int k = 0; k < kCounters; ++k) philox_round(c[k], round_key0(seed, round), round_key1(seed, round));
      meanwhile(i, round - 1);
    }
#pragma GCC unroll 4
    for (int k = 0; k < kCounters; ++k) {
      const Longs a = multiply32(c[k].c0, kPhiloxM0), b = multiply32(c[k].c2, kPhiloxM1);
      store(even + 2 * (i + k * kDoubles), merge_upper(b, a) ^ merge_lower(c[k].c1, c[k].c3) ^ keys);
      store(odd + 2 * (i + k * kDoubles), merge_lower(b, a));
    }
  }
}

// first, first + 1, … in 64-bit lanes.
LEAKCORE_HD Longs ascending(uint64_t first) {
  LEAKCORE_ALIGNED uint64_t lanes[kDoubles] = {};
  for (int i = 0; i < kDoubles; ++i) lanes[i] = first + static_cast<uint64_t>(i);
  return load<Longs>(lanes);
}

constexpr int kPairPack = 4;  // vectors side by side, by measurement

// Normals in the order of the draws: 0, 1, 2, 3 of the first block, then of the next. `pairs` is a multiple of
// kPairPack vectors' lanes, kMost at most.
template <int kMost>
LEAKCORE_HD void normals_of_pairs(int pairs, const uint32_t* even, const uint32_t* odd, double* out) {
  LEAKCORE_ALIGNED double square[kMost];
  for (int i = 0; i < pairs; i += kPairPack * kDoubles) {
    store_pack(square + i, minus_two_log_unit(widen_pack<kPairPack>(even + i)));
  }
  for (int i = 0; i < pairs; i += kPairPack * kDoubles) {
    Pack<Doubles, kPairPack> cosine, sine;
    cos_sin_turn(widen_pack<kPairPack>(odd + i) << 32, &cosine, &sine);
    const auto radius = root(load_pack<Doubles, kPairPack>(square + i));
    for (int k = 0; k < kPairPack; ++k) {
      store_interleaved(out + 2 * (i + k * kDoubles), radius.v[k] * cosine.v[k], radius.v[k] * sine.v[k]);
    }
  }
}

template <int kMost>
LEAKCORE_HD void normals_of_pairs(int pairs, const uint32_t* even, const uint32_t* odd, float* out) {
  LEAKCORE_ALIGNED float square[kMost];
  for (int i = 0; i < pairs; i += kPairPack * kFloats) {
    store_pack(square + i, minus_log_unit_float(load_pack<Ints, kPairPack>(even + i)));
  }
  for (int i = 0; i < pairs; i += kPairPack * kFloats) {
    Pack<Floats, kPairPack> cosine, sine;
    cos_sin_turn_float(load_pack<Ints, kPairPack>(odd + i), &cosine, &sine);
    const auto radius = root(load_pack<Floats, kPairPack>(square + i));
    for (int k = 0; k < kPairPack; ++k) {
      store_interleaved(out + 2 * (i + k * kFloats), bits_of(radius.v[k] * cosine.v[k]),
                        bits_of(radius.v[k] * sine.v[k]));
    }
  }
}

}  // namespace
}  // namespace leakcore
