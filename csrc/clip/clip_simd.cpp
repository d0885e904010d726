// Compiled once per instruction tier (setup.py). All but the table is in an anonymous namespace, and no library
// template is used, so that no inline function built for one tier can be linked into another.
#include "clip/clip_simd.h"

#include <cstring>

namespace leakcore {
namespace {

#if defined(__AVX512F__)
constexpr int W = 8;
#elif defined(__AVX2__)
constexpr int W = 4;
#else
constexpr int W = 2;
#endif
// Rows that share a pass over the observations: as many accumulators as the tier has registers for.
constexpr int kDotRows = W == 8 ? 4 : 1;
constexpr int kDotColumns = W == 2 ? 2 : 4;
constexpr int kAddRows = 4;

typedef double Doubles __attribute__((vector_size(W * 8)));
typedef float Floats __attribute__((vector_size(W * 4)));
typedef uint32_t Words __attribute__((vector_size(W * 4)));
typedef uint16_t Shorts __attribute__((vector_size(W * 2)));

struct Brain {
  uint16_t bits;
};

inline Doubles load(const double* p) {
  Doubles x;
  memcpy(&x, p, sizeof x);
  return x;
}
inline Doubles load(const float* p) {
  Floats x;
  memcpy(&x, p, sizeof x);
  return __builtin_convertvector(x, Doubles);
}
inline Doubles load(const Brain* p) {
  Shorts x;
  memcpy(&x, p, sizeof x);
  const Words wide = __builtin_convertvector(x, Words) << 16;
  Floats f;
  memcpy(&f, &wide, sizeof f);
  return __builtin_convertvector(f, Doubles);
}
inline void store(double* p, Doubles x) {
  memcpy(p, &x, sizeof x);
}
inline double widen(double x) {
  return x;
}
inline double widen(float x) {
  return x;
}
inline double widen(Brain x) {
  const uint32_t wide = static_cast<uint32_t>(x.bits) << 16;
  float f;
  memcpy(&f, &wide, sizeof f);
  return f;
}

template <int N>
inline double fold(double* lane) {
  for (int half = N / 2; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) lane[k] += lane[k + half];
  }
  return lane[0];
}

// The next stretch of a row is asked for as early as its sum of squares: what follows works on many rows in turn, and
// the hardware does not foresee a return to the first.
template <class T>
double squares(const void* data, int64_t count) {
  const T* x = static_cast<const T*>(data);
  const uintptr_t ahead = reinterpret_cast<uintptr_t>(x) + count * sizeof(T);
  constexpr int V = kSquareLanes / W;
  Doubles acc[V] = {};
  int64_t i = 0;
  for (; i + kSquareLanes <= count; i += kSquareLanes) {
    __builtin_prefetch(reinterpret_cast<const void*>(ahead + i * sizeof(T)), 0, 2);
    for (int v = 0; v < V; ++v) {
      const Doubles y = load(x + i + v * W);
      acc[v] += y * y;
    }
  }
  double lane[kSquareLanes];
  memcpy(lane, acc, sizeof lane);
  for (int k = 0; i < count; ++i, ++k) lane[k] += widen(x[i]) * widen(x[i]);
  return fold<kSquareLanes>(lane);
}

// The next rows are fetched while these are added: each is a short stretch, too short for the hardware to foresee.
template <class T, int R>
inline void add_some(const T* const* rows, const double* factors, const T* const* next, int64_t count, double* acc) {
  constexpr int64_t kLine = 64 / sizeof(T);
  int64_t i = 0;
  for (; i + kLine <= count; i += kLine) {
    if (next != nullptr) {
      for (int r = 0; r < R; ++r) __builtin_prefetch(next[r] + i, 0, 3);
    }
    for (int64_t k = i; k < i + kLine; k += W) {
      Doubles sum = load(acc + k);
      for (int r = 0; r < R; ++r) sum += load(rows[r] + k) * factors[r];
      store(acc + k, sum);
    }
  }
  for (; i < count; ++i) {
    for (int r = 0; r < R; ++r) acc[i] += widen(rows[r][i]) * factors[r];
  }
}

template <class T>
void add_rows(const void* const* data, const double* factors, int64_t num_rows, int64_t count, double* acc) {
  const T* row[2 * kAddRows];
  int64_t r = 0;
  for (; r + kAddRows <= num_rows; r += kAddRows) {
    const bool more = r + 2 * kAddRows <= num_rows;
    for (int k = 0; k < (more ? 2 * kAddRows : kAddRows); ++k) row[k] = static_cast<const T*>(data[r + k]);
    add_some<T, kAddRows>(row, factors + r, more ? row + kAddRows : nullptr, count, acc);
  }
  for (; r < num_rows; ++r) {
    row[0] = static_cast<const T*>(data[r]);
    add_some<T, 1>(row, factors + r, nullptr, count, acc);
  }
}

template <class T, int R, int M>
inline void dots_of(const T* const* rows, int64_t count, const double* observed, int64_t observed_stride, double* dots,
                    int64_t dots_stride) {
  constexpr int V = kDotLanes / W;
  Doubles acc[R][M][V] = {};
  int64_t i = 0;
  for (; i + kDotLanes <= count; i += kDotLanes) {
    for (int v = 0; v < V; ++v) {
      Doubles x[R];
      for (int r = 0; r < R; ++r) x[r] = load(rows[r] + i + v * W);
      for (int m = 0; m < M; ++m) {
        const Doubles o = load(observed + m * observed_stride + i + v * W);
        for (int r = 0; r < R; ++r) acc[r][m][v] += x[r] * o;
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int m = 0; m < M; ++m) {
      double lane[kDotLanes];
      memcpy(lane, acc[r][m], sizeof lane);
      for (int64_t j = i; j < count; ++j) lane[j - i] += widen(rows[r][j]) * observed[m * observed_stride + j];
      dots[r * dots_stride + m] += fold<kDotLanes>(lane);
    }
  }
}

template <class T, int R>
inline void dots_of_rows(const T* const* rows, int64_t count, const double* observed, int64_t observed_stride,
                         int64_t num_observed, double* dots, int64_t dots_stride) {
  int64_t m = 0;
  for (; m + kDotColumns <= num_observed; m += kDotColumns) {
    dots_of<T, R, kDotColumns>(rows, count, observed + m * observed_stride, observed_stride, dots + m, dots_stride);
  }
  for (; m < num_observed; ++m) {
    dots_of<T, R, 1>(rows, count, observed + m * observed_stride, observed_stride, dots + m, dots_stride);
  }
}

template <class T>
void add_dots(const void* const* data, int64_t num_rows, int64_t count, const double* observed, int64_t observed_stride,
              int64_t num_observed, double* dots, int64_t dots_stride) {
  const T* row[kDotRows];
  int64_t r = 0;
  for (; r + kDotRows <= num_rows; r += kDotRows) {
    for (int k = 0; k < kDotRows; ++k) row[k] = static_cast<const T*>(data[r + k]);
    dots_of_rows<T, kDotRows>(row, count, observed, observed_stride, num_observed, dots + r * dots_stride, dots_stride);
  }
  for (; r < num_rows; ++r) {
    row[0] = static_cast<const T*>(data[r]);
    dots_of_rows<T, 1>(row, count, observed, observed_stride, num_observed, dots + r * dots_stride, dots_stride);
  }
}

template <class T>
constexpr ClipLoops loops() {
  return {squares<T>, add_rows<T>, add_dots<T>};
}

constexpr ClipKernels kKernels = {loops<Brain>(), loops<float>(), loops<double>()};

}  // namespace

#define LEAKCORE_JOIN(a, b) a##b
#define LEAKCORE_TABLE(tier) LEAKCORE_JOIN(clip_kernels_, tier)
const ClipKernels& LEAKCORE_TABLE(LEAKCORE_TIER)() {
  return kKernels;
}

}  // namespace leakcore
