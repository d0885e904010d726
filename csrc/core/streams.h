// The one table of what random numbers are for, mirrored in leakcore/kernels/_streams.py (a test compares them). Stream
// word = purpose << 24 | step & 0xffffff: two purposes, or two steps, never share a draw.
#pragma once

#include "core/hd.h"

namespace leakcore {

enum class Purpose : uint32_t {
  mixture = 1,       // normals of the Gaussian mixture, T >= 2; step 0 under the null, 1 under the alternative
  clip_noise = 2,    // noise of clip_and_noise; sample index = run, column = draw
  init = 3,          // initial parameters of models
  batch = 4,         // Poisson sampling of batches
  order = 5,         // orders and shuffles
  mixture_pick = 6,  // which component a mixture step takes; step 0: the leading 32 bits, step 1: the next 32
  audit = 7,         // repeated releases of one gradient; sample index = release, step = batch
  mixture_one = 8,   // as mixture, where T = 1: sample i takes draw i % 4 of sample index i / 4, so that none is wasted
  mixture_one_pick = 9,  // as mixture_pick, likewise
  laplace = 10,          // noise of the Laplace mechanism: entry i takes draws 2i and 2i + 1 of sample index 0
  features = 11,         // features that an attacker makes
  defense = 12,          // noise that a defence adds to a release
};

constexpr uint32_t kStepBits = 24;

LEAKCORE_HD uint32_t stream_word(Purpose purpose, uint32_t step) {
  return static_cast<uint32_t>(purpose) << kStepBits | (step & ((1u << kStepBits) - 1));
}

}  // namespace leakcore
