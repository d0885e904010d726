// Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011): random integers as a pure function of counter and key, so that
// every SIMD tier, thread and device draws the same ones.
//
// Key = 64-bit seed (low word first); counter = (draw block, stream, sample index low, sample index high). In this
// order the two multiplications of round 1 depend on the block and on the low index alone, so a loop over blocks or
// samples can hoist. The promise: same seed, same integers, on every machine, for the life of a major version. It is a
// statistical generator, not a cryptographic one.
#pragma once

#include "core/hd.h"

namespace leakcore {

struct Words {
  uint32_t w[4];
};

LEAKCORE_HD Words philox4x32_10(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1) {
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = static_cast<uint64_t>(c0) * 0xD2511F53u;
    const uint64_t b = static_cast<uint64_t>(c2) * 0xCD9E8D57u;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

LEAKCORE_HD Words draw_words(uint64_t seed, uint32_t stream, uint64_t sample, uint32_t block) {
  return philox4x32_10(block, stream, static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32),
                       static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
}

}  // namespace leakcore
