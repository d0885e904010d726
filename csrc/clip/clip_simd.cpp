// Compiled once per instruction tier (setup.py). All but the table is in an anonymous namespace, and no library
// template is used, so that no inline function built for one tier can be linked into another.
#include "clip/clip_simd.h"

#include <cstring>

#include "core/lanes.h"

namespace leakcore {
namespace {

constexpr int W = kDoubles;
constexpr int64_t kLine = 64;
// Rows that share a pass over the observations: as many accumulators as the tier has registers for.
constexpr int kDotRows = W == 8 ? 4 : 1;
constexpr int kDotColumns = W == 2 ? 2 : 4;

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

// Brings in R pieces one after the other, in as many steps as R rows as long take kSquareLanes columns at a time.
template <class T, int R>
class Bringer {
 public:
  Bringer(const void* const* pieces, int64_t count)
      : pieces_(pieces), bytes_(count * static_cast<int64_t>(sizeof(T))), left_(bytes_) {
    if (pieces != nullptr) next_ = static_cast<const char*>(pieces[0]);
  }
  inline void step() {
    constexpr int64_t kBytes = R * kSquareLanes * static_cast<int64_t>(sizeof(T));
    foresee_page(next_, kBytes);
    for (int64_t line = 0; line < kBytes; line += kLine) __builtin_prefetch(next_ + line, 0, 2);
    next_ += kBytes;
    left_ -= kBytes;
    if (left_ <= 0 && ++piece_ < R) {
      next_ = static_cast<const char*>(pieces_[piece_]);
      left_ = bytes_;
    }
  }

 private:
  const void* const* pieces_;
  const char* next_ = nullptr;
  int64_t bytes_, left_;
  int piece_ = 0;
};

// Inner products, and with Squares also the squares: one pass, so that arithmetic goes on while memory answers.
template <class T, int R, int M, bool Squares, bool Ahead>
inline void dots_of(const void* const* data, const void* const* ahead, int64_t count, const double* observed,
                    int64_t observed_stride, double* dots, int64_t dots_stride, double* lanes) {
  constexpr int V = kSquareLanes / W, D = kDotLanes / W;
  const T* rows[R];
  for (int r = 0; r < R; ++r) rows[r] = static_cast<const T*>(data[r]);
  Doubles acc[R][M][D] = {};
  Doubles sum[R][V] = {};
#pragma GCC unroll 64
  for (int k = 0; k < (Squares ? R * V : 0); ++k) sum[k / V][k % V] = doubles_at(lanes + k * W);
  Bringer<T, R> bring(ahead, count);
  int64_t i = 0;
  for (; i + kSquareLanes <= count; i += kSquareLanes) {
    if (Ahead) bring.step();
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
  // Unrolled, so that the registers are never taken for an array in memory, which GCC would write in every iteration.
#pragma GCC unroll 64
  for (int k = 0; k < (Squares ? R * V : 0); ++k) store(lanes + k * W, sum[k / V][k % V]);
  double folded[R * M * kDotLanes];
#pragma GCC unroll 64
  for (int k = 0; k < R * M * D; ++k) store(folded + k * W, acc[k / (M * D)][k / D % M][k % D]);
  for (int r = 0; r < R; ++r) {
    if (Squares) add_last_squares(rows[r] + i, count - i, lanes + r * kSquareLanes);
    for (int m = 0; m < M; ++m) {
      double* lane = folded + (r * M + m) * kDotLanes;
      for (int64_t j = i; j < count; ++j) {
        double& here = lane[(j - i) % kDotLanes];
        here = madd(widen(rows[r][j]), observed[m * observed_stride + j], here);
      }
      dots[r * dots_stride + m] += fold<kDotLanes>(lane);
    }
  }
}

template <class T, int R, int M>
inline void some_dots(const void* const* rows, const void* const* ahead, int64_t count, const double* observed,
                      int64_t observed_stride, double* dots, int64_t dots_stride, double* lanes) {
  if (lanes != nullptr && ahead != nullptr) {
    dots_of<T, R, M, true, true>(rows, ahead, count, observed, observed_stride, dots, dots_stride, lanes);
  } else if (lanes != nullptr) {
    dots_of<T, R, M, true, false>(rows, nullptr, count, observed, observed_stride, dots, dots_stride, lanes);
  } else {
    dots_of<T, R, M, false, false>(rows, nullptr, count, observed, observed_stride, dots, dots_stride, nullptr);
  }
}

template <class T, int R>
inline void dots_of_rows(const void* const* rows, const void* const* ahead, int64_t count, const double* observed,
                         int64_t observed_stride, int64_t num_observed, double* dots, int64_t dots_stride,
                         double* lanes) {
  int64_t m = 0;
  for (; m + kDotColumns <= num_observed; m += kDotColumns) {
    some_dots<T, R, kDotColumns>(rows, ahead, count, observed + m * observed_stride, observed_stride, dots + m,
                                 dots_stride, m == 0 ? lanes : nullptr);
  }
  if (kDotColumns > 2 && m + 2 <= num_observed) {
    some_dots<T, R, 2>(rows, ahead, count, observed + m * observed_stride, observed_stride, dots + m, dots_stride,
                       m == 0 ? lanes : nullptr);
    m += 2;
  }
  for (; m < num_observed; ++m) {
    some_dots<T, R, 1>(rows, ahead, count, observed + m * observed_stride, observed_stride, dots + m, dots_stride,
                       m == 0 ? lanes : nullptr);
  }
}

template <class T>
void add_dots(const void* const* rows, const void* const* ahead, int64_t num_rows, int64_t count,
              const double* observed, int64_t observed_stride, int64_t num_observed, double* dots, int64_t dots_stride,
              double* lanes) {
  int64_t r = 0;
  for (; r + kDotRows <= num_rows; r += kDotRows) {
    dots_of_rows<T, kDotRows>(rows + r, ahead == nullptr ? nullptr : ahead + r, count, observed, observed_stride,
                              num_observed, dots + r * dots_stride, dots_stride,
                              lanes == nullptr ? nullptr : lanes + r * kSquareLanes);
  }
  for (; r < num_rows; ++r) {
    dots_of_rows<T, 1>(rows + r, ahead == nullptr ? nullptr : ahead + r, count, observed, observed_stride, num_observed,
                       dots + r * dots_stride, dots_stride, lanes == nullptr ? nullptr : lanes + r * kSquareLanes);
  }
}

template <class T>
constexpr ClipLoops loops() {
  return {squares<T>, sums_of_squares<T>, add_rows<T>, squares_beside<T>, add_dots<T>};
}

constexpr ClipKernels kKernels = {loops<Half>(), loops<Brain>(), loops<float>(), loops<double>()};

}  // namespace

#define LEAKCORE_JOIN(a, b) a##b
#define LEAKCORE_TABLE(tier) LEAKCORE_JOIN(clip_kernels_, tier)
const ClipKernels& LEAKCORE_TABLE(LEAKCORE_TIER)() {
  return kKernels;
}

}  // namespace leakcore
