// What the loops over rows have in common, for clip_simd.cpp alone: in an anonymous namespace, and no library template
// is used, so that no inline function built for one tier can be linked into another.
#pragma once

#include <cstring>

#include "clip/clip_simd.h"
#include "core/lanes.h"
#include "core/line.h"

namespace leakcore {
namespace {

constexpr int W = kDoubles;

template <int N>
inline double fold(double* lane) {
  for (int half = N / 2; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) lane[k] += lane[k + half];
  }
  return lane[0];
}

// Hardware prefetches within a page of 4 KiB and waits for the translation of the next: one line of it, asked for a few
// pages early, is worth 25% of the speed of reading such memory (from huge pages it costs nothing).
template <int Pages = 2>
inline void foresee_page(const void* p, int64_t step) {
  constexpr uintptr_t kPage = 4096;
  if (reinterpret_cast<uintptr_t>(p) % kPage < static_cast<uintptr_t>(step)) {
    __builtin_prefetch(static_cast<const char*>(p) + Pages * kPage, 0, 3);
  }
}

// `lanes` += the squares of the last columns of a row, fewer than there are lanes.
template <class T>
inline void add_last_squares(const T* x, int64_t count, double* lanes) {
  for (int64_t i = 0; i < count; ++i) lanes[i] = madd(widen(x[i]), widen(x[i]), lanes[i]);
}

}  // namespace
}  // namespace leakcore
