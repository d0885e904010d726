// Compiled once per instruction tier (setup.py). All but the table is in an anonymous namespace or always inlined, and
// no library template is used, so that no inline function built for one tier can be linked into another.
#include "core/normal_simd.h"

#include "core/normal.h"

namespace leakcore {
namespace {

constexpr int kPairs = 2 * kRandomBlocks;
constexpr int kPack = 2;  // vectors side by side

// Words (0, 2, 0, 2, …) and (1, 3, 1, 3, …) of consecutive blocks. Only word 0 of the counter varies, so the other
// half of the first two rounds is computed once.
void words(uint64_t seed, uint32_t stream, uint64_t sample, uint32_t block, uint32_t* even, uint32_t* odd) {
  const uint64_t b1 = multiply32(sample, kPhiloxM1);
  const uint32_t c0 = static_cast<uint32_t>(b1 >> 32) ^ stream ^ round_key0(seed, 0);
  const uint64_t a2 = multiply32(c0, kPhiloxM0);
  const uint64_t flip0 = static_cast<uint32_t>(b1) ^ round_key0(seed, 1);
  const uint64_t flip2 = static_cast<uint32_t>(a2 >> 32) ^ round_key1(seed, 1);
  const uint64_t flip1 = static_cast<uint32_t>(sample >> 32) ^ round_key1(seed, 0);
  LEAKCORE_ALIGNED uint32_t lanes[2 * kDoubles] = {};
  for (int i = 0; i < kDoubles; ++i) lanes[2 * i] = block + static_cast<uint32_t>(i);
  Longs index = load<Longs>(lanes);
  const uint64_t keys = static_cast<uint64_t>(round_key1(seed, kRounds - 1)) << 32 | round_key0(seed, kRounds - 1);
  for (int i = 0; i < kRandomBlocks; i += 2 * kDoubles) {
    Counter<Longs> c[2];
    for (int k = 0; k < 2; ++k) {
      const Longs a1 = multiply32(index, kPhiloxM0);
      const Longs b2 = multiply32(a1 >> 32 ^ flip1, kPhiloxM1);
      c[k] = {b2 >> 32 ^ flip0, b2, a1 ^ flip2, longs(a2)};
      index += static_cast<uint64_t>(kDoubles);
    }
#pragma GCC unroll 7
    for (int round = 2; round < kRounds - 1; ++round) {
      philox_round(c[0], round_key0(seed, round), round_key1(seed, round));
      philox_round(c[1], round_key0(seed, round), round_key1(seed, round));
    }
    for (int k = 0; k < 2; ++k) {
      const Longs a = multiply32(c[k].c0, kPhiloxM0), b = multiply32(c[k].c2, kPhiloxM1);
      store(even + 2 * (i + k * kDoubles), merge_upper(b, a) ^ merge_lower(c[k].c1, c[k].c3) ^ keys);
      store(odd + 2 * (i + k * kDoubles), merge_lower(b, a));
    }
  }
}

void normals(uint64_t seed, uint32_t stream, uint64_t sample, uint32_t block, double* out) {
  LEAKCORE_ALIGNED uint32_t even[kPairs];
  LEAKCORE_ALIGNED uint32_t odd[kPairs];
  words(seed, stream, sample, block, even, odd);
  LEAKCORE_ALIGNED double square[kPairs];
  for (int i = 0; i < kPairs; i += kPack * kDoubles) {
    store_pack(square + i, minus_two_log_unit(widen_pack<kPack>(even + i)));
  }
  for (int i = 0; i < kPairs; i += kPack * kDoubles) {
    Pack<Doubles, kPack> cosine, sine;
    cos_sin_turn(widen_pack<kPack>(odd + i), &cosine, &sine);
    const auto radius = root(load_pack<Doubles, kPack>(square + i));
    for (int k = 0; k < kPack; ++k) {
      store_interleaved(out + 2 * (i + k * kDoubles), radius.v[k] * cosine.v[k], radius.v[k] * sine.v[k]);
    }
  }
}

void uniforms(uint64_t seed, uint32_t stream, uint64_t sample, uint32_t block, double* out) {
  LEAKCORE_ALIGNED uint32_t even[kPairs];
  LEAKCORE_ALIGNED uint32_t odd[kPairs];
  words(seed, stream, sample, block, even, odd);
  for (int i = 0; i < kPairs; i += kDoubles) {
    store_interleaved(out + 2 * i, exact_double(widen(even + i), 0.5) * 2.3283064365386962890625e-10,
                      exact_double(widen(odd + i), 0.5) * 2.3283064365386962890625e-10);
  }
}

constexpr RandomLoops kLoops = {normals, uniforms};

}  // namespace

#define LEAKCORE_JOIN(a, b) a##b
#define LEAKCORE_TABLE(tier) LEAKCORE_JOIN(random_loops_, tier)
const RandomLoops& LEAKCORE_TABLE(LEAKCORE_TIER)() {
  return kLoops;
}

}  // namespace leakcore
