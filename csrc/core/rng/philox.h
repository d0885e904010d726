// Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011): random integers as a pure function of counter and key, so that
// every SIMD tier, thread and device draws the same ones.
//
// Key = 64-bit seed (low word first); counter = (draw block, stream, sample index low, sample index high). In this
// order the two multiplications of round 1 depend on the block and on the low index alone, so that a loop over blocks
// or samples can hoist most of two rounds. The promise: same seed, same integers, on every machine, for the life of a
// major version. It is a statistical generator, not a cryptographic one.
#pragma once

#include "core/simd/arith.h"

namespace leakcore {

constexpr int kRounds = 10;
constexpr uint32_t kPhiloxM0 = 0xD2511F53u, kPhiloxM1 = 0xCD9E8D57u;

struct Words {
  uint32_t w[4];
};

LEAKCORE_HD uint32_t round_key0(uint64_t seed, int round) {
  return static_cast<uint32_t>(seed) + static_cast<uint32_t>(round) * 0x9E3779B9u;
}
LEAKCORE_HD uint32_t round_key1(uint64_t seed, int round) {
  return static_cast<uint32_t>(seed >> 32) + static_cast<uint32_t>(round) * 0xBB67AE85u;
}

// The halves of a product. On CUDA of two multiplications: from one of 64 bits nvcc makes three instructions.
LEAKCORE_HD void multiply_halves(uint32_t a, uint32_t b, uint32_t* high, uint32_t* low) {
#ifdef __CUDA_ARCH__
  *high = __umulhi(a, b);
  *low = a * b;
#else
  const uint64_t product = static_cast<uint64_t>(a) * b;
  *high = static_cast<uint32_t>(product >> 32);
  *low = static_cast<uint32_t>(product);
#endif
}

LEAKCORE_HD Words philox_round(Words c, uint32_t k0, uint32_t k1) {
  uint32_t high0, low0, high1, low1;
  multiply_halves(c.w[0], kPhiloxM0, &high0, &low0);
  multiply_halves(c.w[2], kPhiloxM1, &high1, &low1);
  return {{high1 ^ c.w[1] ^ k0, low1, high0 ^ c.w[3] ^ k1, low0}};
}

LEAKCORE_HD Words philox4x32_10(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1) {
  Words c = {{c0, c1, c2, c3}};
#ifdef __CUDACC__
#pragma unroll
#else
#pragma GCC unroll 10
#endif
  for (int round = 0; round < kRounds; ++round) {
    c = philox_round(c, k0, k1);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

// The keys of all rounds. On a device they are read from a kernel's parameters in the instruction that needs them.
struct Keys {
  uint32_t k0[kRounds], k1[kRounds];
};

inline Keys round_keys(uint64_t seed) {
  Keys keys;
  for (int round = 0; round < kRounds; ++round) {
    keys.k0[round] = round_key0(seed, round);
    keys.k1[round] = round_key1(seed, round);
  }
  return keys;
}

LEAKCORE_HD Words philox_keyed(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, const Keys& key) {
  Words c = {{c0, c1, c2, c3}};
#ifdef __CUDACC__
#pragma unroll
#endif
  for (int round = 0; round < kRounds; ++round) c = philox_round(c, key.k0[round], key.k1[round]);
  return c;
}

LEAKCORE_HD Words draw_words(uint64_t seed, uint32_t stream, uint64_t sample, uint32_t block) {
  return philox4x32_10(block, stream, static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32),
                       static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

// A counter under way, a word per 64-bit lane; what stands in the upper halves is of no account.
template <class L>
struct Counter {
  L c0, c1, c2, c3;
};

template <class L>
LEAKCORE_HD void philox_round(Counter<L>& c, uint32_t k0, uint32_t k1) {
  const L a = multiply32(c.c0, kPhiloxM0), b = multiply32(c.c2, kPhiloxM1);
  c.c0 = b >> 32 ^ c.c1 ^ static_cast<uint64_t>(k0);
  c.c1 = b;
  c.c2 = a >> 32 ^ c.c3 ^ static_cast<uint64_t>(k1);
  c.c3 = a;
}

}  // namespace leakcore
