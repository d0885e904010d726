// Compiled once per instruction tier (setup.py): norms and sums of rows, and the table of all loops.
#include "clip/clip_simd.h"

#include "clip/simd_dots.h"
#include "clip/simd_rows.h"

namespace leakcore {
namespace {

// lanes = acc, to which the squares of R rows are added.
template <class T, int R>
inline void add_squares(const void* const* data, int64_t count, Doubles (*acc)[kSquareLanes / W], double* lanes) {
  constexpr int V = kSquareLanes / W;
  const T* rows[R];
  for (int r = 0; r < R; ++r) rows[r] = static_cast<const T*>(data[r]);
  int64_t i = 0;
  for (; i + kSquareLanes <= count; i += kSquareLanes) {
    for (int r = 0; r < R; ++r) {
      foresee_page<R == 1 ? 2 : 8>(rows[r] + i, kSquareLanes * static_cast<int64_t>(sizeof(T)));
      for (int v = 0; v < V; ++v) {
        const Doubles y = doubles_at(rows[r] + i + v * W);
        acc[r][v] = madd(y, y, acc[r][v]);
      }
    }
  }
  memcpy(lanes, acc, R * sizeof *acc);
  for (int r = 0; r < R; ++r) add_last_squares(rows[r] + i, count - i, lanes + r * kSquareLanes);
}

// Streams side by side are read a little faster than one.
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
    double lanes[kSquareLanes];
    add_squares<T, 1>(rows + r, count, acc, lanes);
    sums[r * stride] = fold<kSquareLanes>(lanes);
  }
}

// Many rows at a time: the sum goes through the cache once for all. The hardware foresees their streams, but not far
// enough: asked for by hand, too, they come a tenth faster.
constexpr int64_t kSoonBytes = 1536;
template <class T, int R>
inline void add_some(const void* const* data, const double* factors, int64_t count, double* acc) {
  const T* rows[R];
  for (int r = 0; r < R; ++r) rows[r] = static_cast<const T*>(data[r]);
  int64_t i = 0;
  constexpr int64_t kPage = 4096 / static_cast<int64_t>(sizeof(T)), kStep = 2 * W;
  for (; i + kStep <= count; i += kStep) {
    // One row's page at a time, so that every row has its turn once a page (see foresee_page).
    if (const int64_t turn = i % kPage / kStep; turn < R) __builtin_prefetch(rows[turn] + i + 2 * kPage, 0, 3);
    for (int r = 0; r < R; ++r) {
      for (int64_t byte = 0; byte < kStep * static_cast<int64_t>(sizeof(T)); byte += kLine) {
        __builtin_prefetch(reinterpret_cast<const char*>(rows[r] + i) + kSoonBytes + byte, 0, 2);
      }
    }
    Doubles a = doubles_at(acc + i), b = doubles_at(acc + i + W);
    for (int r = 0; r < R; ++r) {
      const Doubles factor = doubles(factors[r]);
      a = madd(doubles_at(rows[r] + i), factor, a);
      b = madd(doubles_at(rows[r] + i + W), factor, b);
    }
    store(acc + i, a);
    store(acc + i + W, b);
  }
  for (; i < count; ++i) {
    for (int r = 0; r < R; ++r) acc[i] = madd(widen(rows[r][i]), factors[r], acc[i]);
  }
}

template <class T>
void add_rows(const void* const* rows, const double* factors, int64_t num_rows, int64_t count, double* acc) {
  int64_t r = 0;
  for (; r + 12 <= num_rows; r += 12) add_some<T, 12>(rows + r, factors + r, count, acc);
  if (r + 8 <= num_rows) {
    add_some<T, 8>(rows + r, factors + r, count, acc);
    r += 8;
  }
  if (r + 4 <= num_rows) {
    add_some<T, 4>(rows + r, factors + r, count, acc);
    r += 4;
  }
  for (; r < num_rows; ++r) add_some<T, 1>(rows + r, factors + r, count, acc);
}

// A row's squares wait for memory, the rows that are added come from the second-level cache: side by side, one's
// arithmetic hides the other's wait. The hardware's prefetchers lose the row among the others, so it is asked for by
// hand, in the order in which it will be read, and then a second time: while all slots for misses are taken, a core
// drops what it is asked for.
constexpr int64_t kAgainBytes = 8192;
template <class T, int R>
inline void squares_beside_rows(const void* data, int64_t count, double* lanes, const void* ahead,
                                const void* const* others, const double* factors, double* acc) {
  const T* x = static_cast<const T*>(data);
  const char* next = static_cast<const char*>(ahead);
  const T* rows[R];
  for (int r = 0; r < R; ++r) rows[r] = static_cast<const T*>(others[r]);
  constexpr int V = kSquareLanes / W, C = kBesideStep / R / W;
  constexpr int64_t kStepBytes = kBesideStep * static_cast<int64_t>(sizeof(T));
  Doubles sum[V];
  memcpy(sum, lanes, sizeof sum);
  for (int64_t i = 0; i < count; i += kBesideStep) {
    foresee_page(next, kStepBytes);
    const char* again = reinterpret_cast<const char*>(x + i) + kAgainBytes;
    for (int64_t line = 0; line < kStepBytes; line += kLine) __builtin_prefetch(next + line, 0, 2);
    for (int64_t line = 0; line < kStepBytes; line += kLine) __builtin_prefetch(again + line, 0, 2);
    next += kStepBytes;
    for (int64_t k = 0; k < kBesideStep; k += kSquareLanes) {
      for (int v = 0; v < V; ++v) {
        const Doubles y = doubles_at(x + i + k + v * W);
        sum[v] = madd(y, y, sum[v]);
      }
    }
    const int64_t j = i / R;
    Doubles total[C];
    for (int c = 0; c < C; ++c) total[c] = doubles_at(acc + j + c * W);
    for (int r = 0; r < R; ++r) {
      const Doubles factor = doubles(factors[r]);
      for (int c = 0; c < C; ++c) total[c] = madd(doubles_at(rows[r] + j + c * W), factor, total[c]);
    }
    for (int c = 0; c < C; ++c) store(acc + j + c * W, total[c]);
  }
  memcpy(lanes, sum, sizeof sum);
}

template <class T>
void squares_beside(const void* data, int64_t count, double* lanes, const void* ahead, const void* const* others,
                    const double* factors, int64_t num_rows, double* acc) {
  if (num_rows == 8) return squares_beside_rows<T, 8>(data, count, lanes, ahead, others, factors, acc);
  squares_beside_rows<T, 4>(data, count, lanes, ahead, others, factors, acc);
}

template <class T>
constexpr ClipLoops loops(decltype(ClipLoops::add_float_dots) float_dots) {
  return {squares<T>, sums_of_squares<T>, add_rows<T>, squares_beside<T>, add_dots<T>, float_dots};
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
