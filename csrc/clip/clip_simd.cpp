// Compiled once per instruction tier (setup.py): norms and sums of rows, and the table of all loops.
#include "clip/clip_simd.h"

#include "clip/simd_dots.h"
#include "clip/simd_rows.h"

namespace leakcore {
namespace {

// Many rows at a time: the sum goes through the cache once for all. Prefetchers follow the rows, but not far enough.
constexpr int64_t kSoonBytes = 1536;
template <class T, int R>
inline void add_some(const void* const* data, const double* from, int64_t count, double* acc) {
  const T* rows[R];
  for (int r = 0; r < R; ++r) rows[r] = static_cast<const T*>(data[r]);
  const Factors<T, R> factors(from);
  int64_t i = 0;
  constexpr int C = kSumStep<T, R> == W ? 2 : 1;
  constexpr int64_t kPage = 4096 / static_cast<int64_t>(sizeof(T)), kStep = C * kSumStep<T, R>;
  for (; i + kStep <= count; i += kStep) {
    // One row's page at a time, so that every row has its turn once a page (see foresee_page).
    if (const int64_t turn = i % kPage / kStep; turn < R) __builtin_prefetch(rows[turn] + i + 2 * kPage, 0, 3);
    for (int r = 0; r < R; ++r) {
      ask_for<2>(reinterpret_cast<const char*>(rows[r] + i) + kSoonBytes, kStep * static_cast<int64_t>(sizeof(T)));
    }
    add_sum_step<T, R, C>(rows, factors, i, acc + i);
  }
  for (; i < count; ++i) add_sum_column<T, R>(rows, factors, i, acc);
}

template <class T>
void add_rows(const void* const* rows, const double* factors, int64_t num_rows, int64_t count, double* acc) {
  const auto ready = [&](int64_t r, int64_t some) {
    return r + some <= num_rows && within_floats<T>(factors + r, some);
  };
  for (int64_t r = 0; r < num_rows;) {
    if (ready(r, 12)) {
      add_some<T, 12>(rows + r, factors + r, count, acc);
      r += 12;
    } else if (ready(r, 8)) {
      add_some<T, 8>(rows + r, factors + r, count, acc);
      r += 8;
    } else if (ready(r, 4)) {
      add_some<T, 4>(rows + r, factors + r, count, acc);
      r += 4;
    } else {
      const int64_t end = r + 4 < num_rows ? r + 4 : num_rows;
      for (; r < end; ++r) add_some<T, 1>(rows + r, factors + r, count, acc);
    }
  }
}

// Squares of one row wait for memory while rows from the second-level cache are added. Prefetchers lose that row among
// the others, so it is prefetched by hand in the order of reading, and again when it is kAgainBytes nearer: a core
// drops prefetches while its miss slots are full.
constexpr uintptr_t kAgainBytes = 4096;

inline const char* at(uintptr_t address) {
  return reinterpret_cast<const char*>(address);
}

// Keeps the compiler from gathering prefetches in one place, where some would be dropped.
template <class T>
inline void hold() {
  if constexpr (!kNarrow<T>) asm volatile("" ::: "memory");
}

template <class T, int R>
inline void squares_during_rows(const void* data, int64_t count, double* lanes, const void* ahead,
                                const void* const* others, const double* from, double* acc) {
  const T* x = static_cast<const T*>(data);
  auto next = reinterpret_cast<uintptr_t>(ahead);
  const T* rows[R];
  for (int r = 0; r < R; ++r) rows[r] = static_cast<const T*>(others[r]);
  const Factors<T, R> factors(from);
  constexpr int64_t kStep = R * kSumStep<T, R> > kOverlapStep ? R * kSumStep<T, R> : kOverlapStep;
  constexpr int64_t kBytes = kOverlapStep * static_cast<int64_t>(sizeof(T));
  Doubles sum[kSquareLanes / W];
  for (int v = 0; v < kSquareLanes / W; ++v) sum[v] = doubles_at(lanes + v * W);
  for (int64_t i = 0; i < count; i += kStep) {
    for (int64_t k = i; k < i + kStep; k += kOverlapStep) {
      foresee_page(at(next), kBytes);
      ask_for<2>(at(next - kAgainBytes), kBytes);
      hold<T>();
      for (int64_t j = 0; j < kOverlapStep; j += kSquareStep<T>) add_square_step(x + k + j, sum);
      hold<T>();
      ask_for<2>(at(next), kBytes);
      next += kBytes;
    }
    add_sum_step<T, R, static_cast<int>(kStep / R / kSumStep<T, R>)>(rows, factors, i / R, acc + i / R);
  }
  for (int v = 0; v < kSquareLanes / W; ++v) store(lanes + v * W, sum[v]);
}

template <class T>
void squares_during_sum(const void* data, int64_t count, double* lanes, const void* ahead, const void* const* others,
                        const double* factors, int64_t num_rows, double* acc) {
  if (!within_floats<T>(factors, num_rows)) {
    squares<T>(&data, 1, count, lanes);
    add_rows<T>(others, factors, num_rows, count / num_rows, acc);
  } else if (num_rows == 8) {
    squares_during_rows<T, 8>(data, count, lanes, ahead, others, factors, acc);
  } else if (kNarrow<T> || num_rows == 4) {
    squares_during_rows<T, 4>(data, count, lanes, ahead, others, factors, acc);
  } else {
    squares_during_rows<T, kNarrow<T> ? 4 : 2>(data, count, lanes, ahead, others, factors, acc);
  }
}

template <class T>
constexpr ClipLoops loops(decltype(ClipLoops::add_float_dots) float_dots) {
  return {squares<T>,
          sums_of_squares<T>,
          add_rows<T>,
          squares_during_sum<T>,
          add_dots<T>,
          float_dots,
          kNarrow<T> ? 4 * kOverlapStep : kOverlapStep};
}

constexpr ClipKernels kKernels = {loops<Half>(add_float_dots<Half>), loops<Brain>(add_float_dots<Brain>),
                                  loops<float>(add_float_dots<float>), loops<double>(nullptr)};

}  // namespace

#define LEAKCORE_JOIN(a, b) a##b
#define LEAKCORE_TABLE(tier) LEAKCORE_JOIN(clip_kernels_, tier)
const ClipKernels& LEAKCORE_TABLE(LEAKCORE_TIER)() {
  return kKernels;
}

}  // namespace leakcore
