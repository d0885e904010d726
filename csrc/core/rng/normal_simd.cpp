// Compiled once per instruction tier (setup.py). All but the table is in an anonymous namespace or always inlined, and
// no library template is used, so that no inline function built for one tier can be linked into another.
#include "core/rng/normal_simd.h"

#include "core/simd/pairs.h"

namespace leakcore {
namespace {

constexpr int kPairs = 2 * kRandomBlocks;

// Only word 0 of the counter varies, so the other half of the first two rounds is computed once.
void words(uint64_t seed, uint32_t stream, uint64_t sample, uint32_t block, uint32_t* even, uint32_t* odd) {
  const uint64_t b1 = multiply32(sample, kPhiloxM1);
  const uint32_t c0 = static_cast<uint32_t>(b1 >> 32) ^ stream ^ round_key0(seed, 0);
  const uint64_t a2 = multiply32(c0, kPhiloxM0);
  const uint64_t flip0 = static_cast<uint32_t>(b1) ^ round_key0(seed, 1);
  const uint64_t flip2 = static_cast<uint32_t>(a2 >> 32) ^ round_key1(seed, 1);
  const uint64_t flip1 = static_cast<uint32_t>(sample >> 32) ^ round_key1(seed, 0);
  const Longs first = ascending(0) + static_cast<uint64_t>(block);
  const auto start = [&](int k) -> Counter<Longs> {
    const Longs a1 = multiply32(first + static_cast<uint64_t>(k * kDoubles), kPhiloxM0);
    const Longs b2 = multiply32(a1 >> 32 ^ flip1, kPhiloxM1);
    return {b2 >> 32 ^ flip0, b2, a1 ^ flip2, longs(a2)};
  };
  draw_pairs(seed, kRandomBlocks, start, even, odd, Alone{});
}

void normals(uint64_t seed, uint32_t stream, uint64_t sample, uint32_t block, double* out) {
  LEAKCORE_ALIGNED uint32_t even[kPairs];
  LEAKCORE_ALIGNED uint32_t odd[kPairs];
  words(seed, stream, sample, block, even, odd);
  normals_of_pairs<kPairs>(kPairs, even, odd, out);
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
