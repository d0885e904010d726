// What native code draws random numbers for: the part of the registry in leakcore/kernels/streams.py that it
// needs (a test compares them). Stream word = purpose << 24 | step & 0xffffff: two purposes, or two steps, never share
// a draw.
#pragma once

#include "core/simd/hd.h"

namespace leakcore {

enum class Purpose : uint32_t {
  mixture = 1,       // normals of the Gaussian mixture, T >= 2; step 0 under the null, 1 under the alternative
  clip_noise = 2,    // noise of clip_and_noise; sample index = run, column = draw
  mixture_pick = 6,  // which component a mixture step takes; step 0: the leading 32 bits, step 1: the next 32
  mixture_one = 8,   // as mixture, where T = 1: sample i takes draw i % 4 of sample index i / 4, so that none is wasted
  mixture_one_pick = 9,  // as mixture_pick, likewise
  allocation = 78,       // normals of random allocation; step 0 under the null, 1 under the alternative
  allocation_pick = 79,  // which bin of a factor's the target is in: draws 2e and 2e + 1 for epoch e
};

constexpr uint32_t kStepBits = 24;

LEAKCORE_HD uint32_t stream_word(Purpose purpose, uint32_t step) {
  return static_cast<uint32_t>(purpose) << kStepBits | (step & ((1u << kStepBits) - 1));
}

}  // namespace leakcore
