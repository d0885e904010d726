// What the loops over rows do in one step, for clip_simd.cpp alone: in an anonymous namespace, and no library template
// is used, so that no inline function built for one tier can be linked into another.
//
// Squares and clipped sums run in double. Of 16-bit elements four squares (exact in float32) and four rows times their
// factors are first added in float32, which saves conversions.
#pragma once

#include <cstring>

#include "clip/clip_simd.h"
#include "core/runtime/line.h"
#include "core/simd/lanes.h"

namespace leakcore {
namespace {

constexpr int W = kDoubles;

template <class T>
constexpr bool kNarrow = sizeof(T) == 2;

template <int N>
inline double fold(double* lane) {
  for (int half = N / 2; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) lane[k] += lane[k + half];
  }
  return lane[0];
}

// The lines of `bytes` from p on, into the second-level cache (2) or the nearest (3).
template <int Level>
inline void ask_for(const void* p, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += kLine) __builtin_prefetch(static_cast<const char*>(p) + line, 0, Level);
}

// Hardware prefetchers stop at a page of 4 KiB: one line of a later page is prefetched to have its translation ready.
template <int Pages = 2>
inline void foresee_page(const void* p, int64_t step) {
  constexpr uintptr_t kPage = 4096;
  if (reinterpret_cast<uintptr_t>(p) % kPage < static_cast<uintptr_t>(step)) {
    __builtin_prefetch(static_cast<const char*>(p) + Pages * kPage, 0, 3);
  }
}

// Columns whose squares are added in one step.
template <class T>
constexpr int64_t kSquareStep = kSquareLanes * (kNarrow<T> ? kSquareChain : 1);

// The squares of a step, kSquareChain to a lane, in lanes f·kFloats …: which column goes where is the same on every
// tier.
inline Floats chain_of_squares(const Half* x, int f) {
  Floats y = floats_at(x + f * kFloats);
  Floats sum = y * y;
  for (int s = 1; s < kSquareChain; ++s) {
    y = floats_at(x + s * kSquareLanes + f * kFloats);
    sum = madd(y, y, sum);
  }
  return sum;
}
inline Floats chain_of_squares(const Brain* x, int f) {
  Floats even, odd, sum = {};
  for (int s = 0; s < kSquareChain / 2; ++s) {
    split(x + 2 * (s * kSquareLanes + f * kFloats), &even, &odd);
    sum = madd(odd, odd, madd(even, even, sum));
  }
  return sum;
}

// sum, the lanes of a row, += the squares of a step.
template <class T>
inline void add_square_step(const T* x, Doubles* sum) {
  if constexpr (kNarrow<T>) {
    for (int f = 0; f < kSquareLanes / kFloats; ++f) {
      Doubles low, high;
      widen(chain_of_squares(x, f), &low, &high);
      sum[2 * f] += low;
      sum[2 * f + 1] += high;
    }
  } else {
    for (int v = 0; v < kSquareLanes / W; ++v) {
      const Doubles y = doubles_at(x + v * W);
      sum[v] = madd(y, y, sum[v]);
    }
  }
}

// `lanes` += the squares of the last columns of a row, fewer than a step.
template <class T>
inline void add_last_squares(const T* x, int64_t count, double* lanes) {
  if constexpr (kNarrow<T>) {
    if (count == 0) return;
    T tail[kSquareStep<T>] = {};
    memcpy(tail, x, sizeof(T) * static_cast<size_t>(count));
    Doubles sum[kSquareLanes / W];
    memcpy(sum, lanes, sizeof sum);
    add_square_step(tail, sum);
    memcpy(lanes, sum, sizeof sum);
  } else {
    for (int64_t i = 0; i < count; ++i) lanes[i] = madd(widen(x[i]), widen(x[i]), lanes[i]);
  }
}

// How far ahead rows that are read side by side are prefetched; some prefetchers do not run far enough.
constexpr int64_t kInFrontBytes = 1024;

// lanes = acc, to which the squares of R rows are added.
template <class T, int R>
inline void add_squares(const void* const* data, int64_t count, Doubles (*acc)[kSquareLanes / W], double* lanes) {
  const T* rows[R];
  for (int r = 0; r < R; ++r) rows[r] = static_cast<const T*>(data[r]);
  int64_t i = 0;
  constexpr int64_t kBytes = kSquareStep<T> * static_cast<int64_t>(sizeof(T));
  for (; i + kSquareStep<T> <= count; i += kSquareStep<T>) {
    for (int r = 0; r < R; ++r) {
      foresee_page<R == 1 ? 2 : 8>(rows[r] + i, kBytes);
      if constexpr (R > 1) ask_for<2>(reinterpret_cast<const char*>(rows[r] + i) + kInFrontBytes, kBytes);
      add_square_step(rows[r] + i, acc[r]);
    }
  }
  memcpy(lanes, acc, R * sizeof *acc);
  for (int r = 0; r < R; ++r) add_last_squares(rows[r] + i, count - i, lanes + r * kSquareLanes);
}

// Rows side by side are read faster than one after the other.
template <class T>
void squares(const void* const* rows, int64_t num_rows, int64_t count, double* lanes) {
  constexpr int R = W == 8 ? 4 : W == 4 ? 2 : 1;
  Doubles acc[R][kSquareLanes / W];
  int64_t r = 0;
  for (; r + R <= num_rows; r += R) {
    memcpy(acc, lanes + r * kSquareLanes, sizeof acc);
    add_squares<T, R>(rows + r, count, acc, lanes + r * kSquareLanes);
  }
  for (; r < num_rows; ++r) {
    memcpy(acc, lanes + r * kSquareLanes, sizeof *acc);
    add_squares<T, 1>(rows + r, count, acc, lanes + r * kSquareLanes);
  }
}

template <class T>
void sums_of_squares(const void* const* rows, int64_t num_rows, int64_t count, double* sums, int64_t stride) {
  for (int64_t r = 0; r < num_rows; ++r) {
    Doubles acc[1][kSquareLanes / W] = {};
    LEAKCORE_ALIGNED double lanes[kSquareLanes];
    add_squares<T, 1>(rows + r, count, acc, lanes);
    sums[r * stride] = fold<kSquareLanes>(lanes);
  }
}

// The factors of R rows as they are multiplied by: in float32 where rows are added in float32, by fours.
template <class T, int R>
constexpr bool kByFours = R % kSumChain == 0 && kNarrow<T>;
template <class T, int R, bool ByFours = kByFours<T, R>>
struct Factors {
  explicit Factors(const double* from) {
    for (int r = 0; r < R; ++r) at[r] = from[r];
  }
  double at[R];
};
template <class T, int R>
struct Factors<T, R, true> {
  explicit Factors(const double* from) {
    for (int r = 0; r < R; ++r) at[r] = static_cast<float>(from[r]);
  }
  float at[R];
};

// Whether float32 holds these factors to its full precision; NaN it does not.
template <class T>
inline bool within_floats(const double* factors, int64_t count) {
  bool within = true;
  for (int64_t r = 0; r < (kNarrow<T> ? count : 0); ++r) within &= factors[r] >= 0x1p-100 || factors[r] == 0.0;
  return within;
}

// Columns of a sum that one step adds to, at least.
template <class T, int R>
constexpr int kSumStep = kByFours<T, R> ? 2 * kFloats : W;

// acc[0 … C·kSumStep) += R rows times their factors, from column i on.
template <class T, int R, int C>
inline void add_sum_step(const T* const* rows, const Factors<T, R>& factors, int64_t i, double* acc) {
  if constexpr (kByFours<T, R>) {
    for (int c = 0; c < C; ++c, i += 2 * kFloats, acc += 2 * kFloats) {
      Doubles total[4];
      for (int k = 0; k < 4; ++k) total[k] = doubles_at(acc + k * W);
      for (int r = 0; r < R; r += kSumChain) {
        Floats a, b;
        split(rows[r] + i, &a, &b);
        Floats one = a * floats(factors.at[r]), other = b * floats(factors.at[r]);
        for (int s = 1; s < kSumChain; ++s) {
          split(rows[r + s] + i, &a, &b);
          one = madd(a, floats(factors.at[r + s]), one);
          other = madd(b, floats(factors.at[r + s]), other);
        }
        join(rows[r], &one, &other);
        Doubles sum[4];
        widen(one, sum, sum + 1);
        widen(other, sum + 2, sum + 3);
        for (int k = 0; k < 4; ++k) total[k] += sum[k];
      }
      for (int k = 0; k < 4; ++k) store(acc + k * W, total[k]);
    }
  } else {
    Doubles total[C];
    for (int c = 0; c < C; ++c) total[c] = doubles_at(acc + c * W);
    for (int r = 0; r < R; ++r) {
      const Doubles factor = doubles(factors.at[r]);
      for (int c = 0; c < C; ++c) total[c] = madd(doubles_at(rows[r] + i + c * W), factor, total[c]);
    }
    for (int c = 0; c < C; ++c) store(acc + c * W, total[c]);
  }
}

// acc[i] += R rows times their factors at one column.
template <class T, int R>
inline void add_sum_column(const T* const* rows, const Factors<T, R>& factors, int64_t i, double* acc) {
  if constexpr (kByFours<T, R>) {
    for (int r = 0; r < R; r += kSumChain) {
      float sum = static_cast<float>(widen(rows[r][i])) * factors.at[r];
      for (int s = 1; s < kSumChain; ++s) sum = madd(static_cast<float>(widen(rows[r + s][i])), factors.at[r + s], sum);
      acc[i] += static_cast<double>(sum);
    }
  } else {
    for (int r = 0; r < R; ++r) acc[i] = madd(widen(rows[r][i]), factors.at[r], acc[i]);
  }
}

}  // namespace
}  // namespace leakcore
