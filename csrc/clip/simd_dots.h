// Inner products of rows with observations, in double and in float32, for clip_simd.cpp alone.
#pragma once

#include "clip/simd_rows.h"

namespace leakcore {
namespace {

// Rows that share a pass over the observations: as many accumulators as the tier has registers for.
constexpr int kDotRows = W == 8 ? 4 : 1;
constexpr int kDotColumns = W == 2 ? 2 : 4;

// As a type, so that a loop over as many observations is unrolled.
template <int Count>
struct Some {
  static constexpr int kCount = Count;
};

// body(Some<M>, m) for observations m … m + M − 1, as many at a time as the registers hold.
template <class Body>
inline void for_observations(int64_t num_observed, const Body& body) {
  int64_t m = 0;
  for (; m + kDotColumns <= num_observed; m += kDotColumns) body(Some<kDotColumns>{}, m);
  if (kDotColumns > 2 && m + 2 <= num_observed) {
    body(Some<2>{}, m);
    m += 2;
  }
  for (; m < num_observed; ++m) body(Some<1>{}, m);
}

// `count` columns of rows that are read side by side; what is read afterwards begins `next` bytes past their end.
struct Stretch {
  int64_t count, next;
};

// Prefetches what R rows side by side need kNextBytes later into the second-level cache (the distance is measured).
constexpr int64_t kNextBytes = 4096;
template <class T, int R>
inline void ask_for_next(const T* const* rows, int64_t i, Stretch stretch) {
  constexpr int64_t kBytes = kSquareLanes * static_cast<int64_t>(sizeof(T));
  constexpr int64_t kColumns = kNextBytes / static_cast<int64_t>(sizeof(T));
  const int64_t further = kNextBytes + (i + kColumns < stretch.count ? 0 : stretch.next);
  for (int r = 0; r < R; ++r) ask_for<2>(reinterpret_cast<const char*>(rows[r] + i) + further, kBytes);
}

// Inner products, and with Squares also the squares: one pass, so that arithmetic goes on while memory answers.
template <class T, int R, int M, bool Squares>
inline void dots_of(const void* const* data, Stretch stretch, const double* observed, int64_t observed_stride,
                    double* dots, int64_t dots_stride, double* lanes) {
  constexpr int V = kSquareLanes / W, D = kDotLanes / W;
  const T* rows[R];
  for (int r = 0; r < R; ++r) rows[r] = static_cast<const T*>(data[r]);
  Doubles acc[R][M][D] = {};
  Doubles sum[R][V] = {};
#pragma GCC unroll 64
  for (int k = 0; k < (Squares ? R * V : 0); ++k) sum[k / V][k % V] = doubles_at(lanes + k * W);
  int64_t i = 0;
  for (; i + kSquareLanes <= stretch.count; i += kSquareLanes) {
    ask_for_next<T, R>(rows, i, stretch);
    for (int v = 0; v < V; ++v) {
      Doubles x[R];
      for (int r = 0; r < R; ++r) {
        x[r] = doubles_at(rows[r] + i + v * W);
        if (Squares) sum[r][v] = madd(x[r], x[r], sum[r][v]);
      }
      for (int m = 0; m < M; ++m) {
        const Doubles o = doubles_at(observed + m * observed_stride + i + v * W);
        for (int r = 0; r < R; ++r) acc[r][m][v % D] = madd(x[r], o, acc[r][m][v % D]);
      }
    }
  }
  // Unrolled: otherwise GCC keeps the accumulators in memory.
#pragma GCC unroll 64
  for (int k = 0; k < (Squares ? R * V : 0); ++k) store(lanes + k * W, sum[k / V][k % V]);
  double folded[R * M * kDotLanes];
#pragma GCC unroll 64
  for (int k = 0; k < R * M * D; ++k) store(folded + k * W, acc[k / (M * D)][k / D % M][k % D]);
  for (int r = 0; r < R; ++r) {
    if constexpr (Squares) add_last_squares(rows[r] + i, stretch.count - i, lanes + r * kSquareLanes);
    for (int m = 0; m < M; ++m) {
      double* lane = folded + (r * M + m) * kDotLanes;
      for (int64_t j = i; j < stretch.count; ++j) {
        double& at = lane[(j - i) % kDotLanes];
        at = madd(widen(rows[r][j]), observed[m * observed_stride + j], at);
      }
      dots[r * dots_stride + m] += fold<kDotLanes>(lane);
    }
  }
}

// Squares: unless lanes is null.
template <class T, int R, int M>
inline void some_dots(const void* const* rows, Stretch stretch, const double* observed, int64_t observed_stride,
                      double* dots, int64_t dots_stride, double* lanes) {
  if constexpr (!kNarrow<T>) {
    if (lanes != nullptr) {
      return dots_of<T, R, M, true>(rows, stretch, observed, observed_stride, dots, dots_stride, lanes);
    }
  }
  dots_of<T, R, M, false>(rows, stretch, observed, observed_stride, dots, dots_stride, nullptr);
}

template <class T, int R>
inline void dots_of_rows(const void* const* rows, Stretch stretch, const double* observed, int64_t observed_stride,
                         int64_t num_observed, double* dots, int64_t dots_stride, double* lanes) {
  for_observations(num_observed, [&](auto some, int64_t m) {
    some_dots<T, R, decltype(some)::kCount>(rows, stretch, observed + m * observed_stride, observed_stride, dots + m,
                                            dots_stride, m == 0 ? lanes : nullptr);
  });
}

// The squares of 16-bit elements are added before their products, not with them: `lanes`, if not null, becomes null.
template <class T>
inline void narrow_squares_first(const void* const* rows, int64_t num_rows, int64_t count, double** lanes) {
  if (!kNarrow<T> || *lanes == nullptr) return;
  squares<T>(rows, num_rows, count, *lanes);
  *lanes = nullptr;
}

template <class T>
void add_dots(const void* const* rows, int64_t num_rows, int64_t count, int64_t next, const double* observed,
              int64_t observed_stride, int64_t num_observed, double* dots, int64_t dots_stride, double* lanes) {
  narrow_squares_first<T>(rows, num_rows, count, &lanes);
  const auto from = [](auto* p, int64_t offset) { return p == nullptr ? nullptr : p + offset; };
  int64_t r = 0;
  for (; r + kDotRows <= num_rows; r += kDotRows) {
    dots_of_rows<T, kDotRows>(rows + r, Stretch{count, next}, observed, observed_stride, num_observed,
                              dots + r * dots_stride, dots_stride, from(lanes, r * kSquareLanes));
  }
  for (; r < num_rows; ++r) {
    dots_of_rows<T, 1>(rows + r, Stretch{count, next}, observed, observed_stride, num_observed, dots + r * dots_stride,
                       dots_stride, from(lanes, r * kSquareLanes));
  }
}

// total[i] += lane i + lane i + 8 of a chain, which are added in float32.
inline void add_lanes(const Floats* lanes, double* total) {
#if defined(__AVX512F__)
  const __m256 sum = _mm256_add_ps(_mm512_castps512_ps256(*lanes), _mm512_extractf32x8_ps(*lanes, 1));
  store(total, doubles_at(total) + doubles_of(sum));
#else
  constexpr int kHalf = kDotLanes / kFloats;
  for (int h = 0; h < kHalf; ++h, total += kFloats) {
    Doubles low, high;
    widen(lanes[h] + lanes[h + kHalf], &low, &high);
    store(total, doubles_at(total) + low);
    store(total + W, doubles_at(total + W) + high);
  }
#endif
}

// totals[(r·num_observed + m)·kDotLanes + …] += the lanes of a chain over `steps`·kSquareLanes columns, in float32.
template <class T, int R, int M, bool Squares>
inline void add_chain(const T* const* rows, int64_t steps, Stretch stretch, const float* observed,
                      int64_t observed_stride, double* totals, int64_t num_observed, double* lanes) {
  constexpr int V = kSquareLanes / W, F = kSquareLanes / kFloats;
  const float* observations[M];
  for (int m = 0; m < M; ++m) observations[m] = observed + m * observed_stride;
  Floats acc[R][M][F] = {};
  Doubles sum[R][V] = {};
#pragma GCC unroll 64
  for (int k = 0; k < (Squares ? R * V : 0); ++k) sum[k / V][k % V] = doubles_at(lanes + k * W);
  const int64_t end = steps * kSquareLanes;
  for (int64_t i = 0; i < end; i += kSquareLanes) {
    ask_for_next<T, R>(rows, i, stretch);
    for (int r = 0; r < (Squares ? R : 0); ++r) add_square_step(rows[r] + i, sum[r]);
    for (int f = 0; f < F; ++f) {
      Floats x[R];
      for (int r = 0; r < R; ++r) x[r] = floats_at(rows[r] + i + f * kFloats);
      for (int m = 0; m < M; ++m) {
        const Floats o = floats_at(observations[m] + i + f * kFloats);
        for (int r = 0; r < R; ++r) acc[r][m][f] = madd(x[r], o, acc[r][m][f]);
      }
    }
  }
#pragma GCC unroll 64
  for (int k = 0; k < (Squares ? R * V : 0); ++k) store(lanes + k * W, sum[k / V][k % V]);
#pragma GCC unroll 64
  for (int k = 0; k < R * M; ++k) add_lanes(acc[k / M][k % M], totals + (k / M * num_observed + k % M) * kDotLanes);
}

// A chain of each row with each of M observations; Squares: unless lanes is null.
template <class T, int R, int M>
inline void some_chains(const T* const* rows, int64_t steps, Stretch stretch, const float* observed,
                        int64_t observed_stride, double* totals, int64_t num_observed, double* lanes) {
  if constexpr (!kNarrow<T>) {
    if (lanes != nullptr) {
      return add_chain<T, R, M, true>(rows, steps, stretch, observed, observed_stride, totals, num_observed, lanes);
    }
  }
  add_chain<T, R, M, false>(rows, steps, stretch, observed, observed_stride, totals, num_observed, nullptr);
}

template <class T, int R>
inline void add_chains(const T* const* rows, int64_t steps, Stretch stretch, const float* observed,
                       int64_t observed_stride, int64_t num_observed, double* totals, double* lanes) {
  for_observations(num_observed, [&](auto some, int64_t m) {
    some_chains<T, R, decltype(some)::kCount>(rows, steps, stretch, observed + m * observed_stride, observed_stride,
                                              totals + m * kDotLanes, num_observed, m == 0 ? lanes : nullptr);
  });
}

template <class T, int R>
inline void float_dots_of(const void* const* data, Stretch stretch, const float* observed, int64_t observed_stride,
                          int64_t num_observed, double* dots, int64_t dots_stride, double* lanes) {
  constexpr int64_t kColumns = kChain * kSquareLanes;
  const T* rows[R];
  for (int r = 0; r < R; ++r) rows[r] = static_cast<const T*>(data[r]);
  LEAKCORE_ALIGNED double totals[R * kMostObserved * kDotLanes];
  memset(totals, 0, sizeof(double) * static_cast<size_t>(R * num_observed * kDotLanes));
  const int64_t count = stretch.count, whole = count / kSquareLanes * kSquareLanes;
  for (int64_t i = 0; i < whole; i += kColumns) {
    const int64_t steps = (whole - i < kColumns ? whole - i : kColumns) / kSquareLanes;
    add_chains<T, R>(rows, steps, {count - i, stretch.next}, observed + i, observed_stride, num_observed, totals,
                     lanes);
    for (int r = 0; r < R; ++r) rows[r] += steps * kSquareLanes;
  }
  if (whole < count) {  // the last columns and zeros
    T tails[R][kSquareLanes] = {};
    float observed_tails[kMostObserved][kSquareLanes] = {};
    for (int r = 0; r < R; ++r) {
      memcpy(tails[r], rows[r], sizeof(T) * static_cast<size_t>(count - whole));
      rows[r] = tails[r];
    }
    for (int64_t m = 0; m < num_observed; ++m) {
      memcpy(observed_tails[m], observed + m * observed_stride + whole,
             sizeof(float) * static_cast<size_t>(count - whole));
    }
    add_chains<T, R>(rows, 1, {kSquareLanes, 0}, observed_tails[0], kSquareLanes, num_observed, totals, lanes);
  }
  for (int r = 0; r < R; ++r) {
    for (int64_t m = 0; m < num_observed; ++m) {
      dots[r * dots_stride + m] += fold<kDotLanes>(totals + (r * num_observed + m) * kDotLanes);
    }
  }
}

template <class T>
void add_float_dots(const void* const* rows, int64_t num_rows, int64_t count, int64_t next, const float* observed,
                    int64_t observed_stride, int64_t num_observed, double* dots, int64_t dots_stride, double* lanes) {
  narrow_squares_first<T>(rows, num_rows, count, &lanes);
  const auto from = [](auto* p, int64_t offset) { return p == nullptr ? nullptr : p + offset; };
  int64_t r = 0;
  for (; r + kDotRows <= num_rows; r += kDotRows) {
    float_dots_of<T, kDotRows>(rows + r, Stretch{count, next}, observed, observed_stride, num_observed,
                               dots + r * dots_stride, dots_stride, from(lanes, r * kSquareLanes));
  }
  for (; r < num_rows; ++r) {
    float_dots_of<T, 1>(rows + r, Stretch{count, next}, observed, observed_stride, num_observed, dots + r * dots_stride,
                        dots_stride, from(lanes, r * kSquareLanes));
  }
}

}  // namespace
}  // namespace leakcore
