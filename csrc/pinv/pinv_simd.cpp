// Compiled once per instruction tier (setup.py). All but the table is in an anonymous namespace, and no library
// template is used, so that no inline function built for one tier can be linked into another.
#include "pinv/pinv_simd.h"

#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace leakcore {
namespace {

#if defined(__AVX512F__)
constexpr int W = 8;
#elif defined(__AVX2__)
constexpr int W = 4;
#else
constexpr int W = 2;
#endif
constexpr int V = kStripe / W;  // registers per stripe
// A tile of kLanes stripes times kColumns samples keeps its sums in registers and enough of them to hide the latency.
constexpr int kLanes = W == 8 ? 3 : 1;
constexpr int kColumns = W == 8 ? 8 : W == 4 ? 4 : 2;
constexpr int64_t kPanel = 256;  // columns of the Jacobian per pass of the Gram matrix: their stripes stay in cache

typedef double Doubles __attribute__((vector_size(W * 8)));

inline Doubles load(const double* p) {
  Doubles x;
  memcpy(&x, p, sizeof x);
  return x;
}
inline void store(double* p, Doubles x) {
  memcpy(p, &x, sizeof x);
}
inline Doubles all(double x) {
  return x - Doubles{};
}

inline Doubles fused(Doubles a, Doubles b, Doubles c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_pd(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_pd(a, b, c);
#elif defined(__ARM_FEATURE_FMA)
  for (int k = 0; k < W; ++k) c[k] = __builtin_fma(a[k], b[k], c[k]);
  return c;
#else
  return a * b + c;
#endif
}
inline double fused(double a, double b, double c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}

inline Doubles magnitude(Doubles x) {
  typedef int64_t Words __attribute__((vector_size(W * 8)));
  Words bits;
  memcpy(&bits, &x, sizeof bits);
  bits &= 0x7fffffffffffffffll;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// Transposes go by tiles of T × T: of 4 in the widest tier too, whose shuffles across 512 bits cost double.
constexpr int T = W == 2 ? 2 : 4;
typedef double Tile __attribute__((vector_size(T * 8)));

inline void exchange(Tile* x) {
#if defined(__AVX2__)
  for (int i = 0; i < 4; i += 2) {
    const Tile a = x[i], b = x[i + 1];
    x[i] = __builtin_shufflevector(a, b, 0, 4, 2, 6);
    x[i + 1] = __builtin_shufflevector(a, b, 1, 5, 3, 7);
  }
  for (int i = 0; i < 2; ++i) {
    const Tile a = x[i], b = x[i + 2];
    x[i] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    x[i + 2] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
  }
#else
  const Tile a = x[0], b = x[1];
  x[0] = __builtin_shufflevector(a, b, 0, 2);
  x[1] = __builtin_shufflevector(a, b, 1, 3);
#endif
}

// The 8 × 8 tile whose row k is in[k], written with row k at out + k·step.
inline void transpose(const double* const* in, double* out, int64_t step) {
  for (int i = 0; i < kStripe; i += T) {
    for (int j = 0; j < kStripe; j += T) {
      Tile x[T];
      for (int k = 0; k < T; ++k) memcpy(&x[k], in[i + k] + j, sizeof x[k]);
      exchange(x);
      for (int k = 0; k < T; ++k) memcpy(out + (j + k) * step + i, &x[k], sizeof x[k]);
    }
  }
}

inline double fold(const Doubles* x) {
  double lane[kStripe];
  memcpy(lane, x, sizeof lane);
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

void pack(const double* const* rows, int64_t num_rows, int64_t count, double* stripes, int64_t stripe_step) {
  static const double zeros[kStripe] = {};
  for (int64_t first = 0; first < num_rows; first += kStripe, stripes += stripe_step) {
    const int64_t here = num_rows - first < kStripe ? num_rows - first : kStripe;
    const double* in[kStripe];
    int64_t i = 0;
    for (; i + kStripe <= count; i += kStripe) {
      for (int64_t k = 0; k < kStripe; ++k) in[k] = k < here ? rows[first + k] + i : zeros;
      transpose(in, stripes + i * kStripe, kStripe);
    }
    for (; i < count; ++i) {
      for (int64_t k = 0; k < kStripe; ++k) stripes[i * kStripe + k] = k < here ? rows[first + k][i] : 0.0;
    }
  }
}

// With four lanes the extra instruction cost more than it brought: 4 µs per problem of 200 × 50.
constexpr bool kFetches = W == 8;

// What will be read later, fetched evenly while the registers are busy: in steps of less than a line, since a burst of
// lines would hold up the loads of the present.
struct Ahead {
  const char* at;
  int64_t step;

  void fetch() {
    __builtin_prefetch(at, 0, 2);
    at += step;
  }
};

// sums[c][s] += Σ_k a_s[k·a_step + lanes]·b[k·b_step + c], in order of k; stripe s of a begins at a + s·a_next.
template <int S, int C>
inline void multiply(const double* a, int64_t a_step, int64_t a_next, const double* b, int64_t b_step, int64_t depth,
                     Doubles (*sums)[S * V], Ahead* ahead = nullptr) {
  Doubles acc[C][S * V];
  for (int c = 0; c < C; ++c) {
    for (int v = 0; v < S * V; ++v) acc[c][v] = sums[c][v];
  }
  for (int64_t k = 0; k < depth; ++k, a += a_step, b += b_step) {
    Doubles x[S * V];
    if (ahead != nullptr) ahead->fetch();
    for (int s = 0; s < S; ++s) {
      for (int v = 0; v < V; ++v) x[s * V + v] = load(a + s * a_next + v * W);
    }
    for (int c = 0; c < C; ++c) {
      const Doubles y = all(b[c]);
      for (int v = 0; v < S * V; ++v) acc[c][v] = fused(x[v], y, acc[c][v]);
    }
  }
  for (int c = 0; c < C; ++c) {
    for (int v = 0; v < S * V; ++v) sums[c][v] = acc[c][v];
  }
}

// C samples from number c0 of a stripe against S stripes of lanes, into tiles[s][c0 + c][lane].
template <int S, int C>
inline void gram_columns(const double* a, int64_t a_next, const double* b, int64_t c0, int64_t depth,
                         double (*tiles)[kStripe * kStripe], Ahead* ahead) {
  Doubles sums[C][S * V] = {};
  Ahead here = *ahead;
  multiply<S, C>(a, kStripe, a_next, b + c0, kStripe, depth, sums, kFetches ? &here : nullptr);
  *ahead = here;
  for (int s = 0; s < S; ++s) {
    for (int c = 0; c < C; ++c) memcpy(tiles[s] + (c0 + c) * kStripe, sums[c] + s * V, kStripe * sizeof(double));
  }
}

template <int S>
void gram_tiles(const double* a, int64_t a_next, const double* b, int64_t columns, int64_t depth, bool add,
                double* gram, int64_t ld, Ahead* ahead) {
  double tiles[S][kStripe * kStripe] = {};
  int64_t c = 0;
  for (; c + kColumns <= columns; c += kColumns) gram_columns<S, kColumns>(a, a_next, b, c, depth, tiles, ahead);
  for (; kColumns > 4 && c + 4 <= columns; c += 4) gram_columns<S, 4>(a, a_next, b, c, depth, tiles, ahead);
  for (; kColumns > 2 && c + 2 <= columns; c += 2) gram_columns<S, 2>(a, a_next, b, c, depth, tiles, ahead);
  for (; c < columns; ++c) gram_columns<S, 1>(a, a_next, b, c, depth, tiles, ahead);
  for (int s = 0; s < S; ++s) {
    double* out = gram + s * kStripe * ld;
    const double* in[kStripe];
    for (int k = 0; k < kStripe; ++k) in[k] = tiles[s] + k * kStripe;
    if (!add) {
      transpose(in, out, ld);
      continue;
    }
    double turned[kStripe * kStripe];
    transpose(in, turned, kStripe);
    for (int k = 0; k < kStripe; ++k) {
      for (int j = 0; j < kStripe; ++j) out[k * ld + j] += turned[k * kStripe + j];
    }
  }
}

void gram(const double* stripes, int64_t stripe_step, int64_t num_rows, int64_t count, double* out, int64_t ld,
          const void* next, int64_t next_bytes) {
  const int64_t num_stripes = (num_rows + kStripe - 1) / kStripe;
  const int64_t tiles = num_stripes * (num_stripes + kLanes) / (2 * kLanes) + 1;
  Ahead ahead = {reinterpret_cast<const char*>(stripes), 0};
  if (kFetches && next != nullptr) ahead = {static_cast<const char*>(next), (next_bytes - 1) / (tiles * count) + 1};
  for (int64_t first = 0; first < count; first += kPanel) {
    const int64_t depth = count - first < kPanel ? count - first : kPanel;
    const double* panel = stripes + first * kStripe;
    for (int64_t t = 0; t < num_stripes; ++t) {
      const double* b = panel + t * stripe_step;
      const int64_t columns = num_rows - t * kStripe < kStripe ? num_rows - t * kStripe : kStripe;
      int64_t s = 0;
      for (; s + kLanes <= t + 1; s += kLanes) {
        gram_tiles<kLanes>(panel + s * stripe_step, stripe_step, b, columns, depth, first > 0,
                           out + (s * ld + t) * kStripe, ld, &ahead);
      }
      for (; kLanes > 2 && s + 2 <= t + 1; s += 2) {
        gram_tiles<2>(panel + s * stripe_step, stripe_step, b, columns, depth, first > 0, out + (s * ld + t) * kStripe,
                      ld, &ahead);
      }
      for (; s <= t; ++s) {
        gram_tiles<1>(panel + s * stripe_step, stripe_step, b, columns, depth, first > 0, out + (s * ld + t) * kStripe,
                      ld, &ahead);
      }
    }
  }
}

// rows[c] = start[c] − Σ_{k < depth} b[k·ld + c]·a[k·ld + lanes] for one stripe; the loops below finish it in
// registers.
inline void subtract(const double* a, const double* b, int64_t ld, int64_t depth, Doubles (*rows)[V]) {
  for (int c = 0; c < kStripe; ++c) {
    for (int v = 0; v < V; ++v) rows[c][v] = -rows[c][v];
  }
  for (int c = 0; c < kStripe; c += kColumns) multiply<1, kColumns>(a, ld, 0, b + c, ld, depth, rows + c);
  for (int c = 0; c < kStripe; ++c) {
    for (int v = 0; v < V; ++v) rows[c][v] = -rows[c][v];
  }
}

inline void load_rows(const double* p, int64_t ld, Doubles (*rows)[V]) {
  for (int c = 0; c < kStripe; ++c) {
    for (int v = 0; v < V; ++v) rows[c][v] = load(p + c * ld + v * W);
  }
}
inline void store_rows(double* p, int64_t ld, const Doubles (*rows)[V]) {
  for (int c = 0; c < kStripe; ++c) {
    for (int v = 0; v < V; ++v) store(p + c * ld + v * W, rows[c][v]);
  }
}

bool cholesky(double* g, int64_t num_rows, int64_t ld, double small, double* reciprocal) {
  for (int64_t k = 0; k < num_rows; k += kStripe) {
    const int here = num_rows - k < kStripe ? static_cast<int>(num_rows - k) : static_cast<int>(kStripe);
    double* const block = g + k * ld + k;
    double* const inverse = reciprocal + k;
    double diagonal[kStripe], tile[kStripe][kStripe];
    Doubles rows[kStripe][V];
    load_rows(block, ld, rows);
    for (int c = 0; c < here; ++c) diagonal[c] = block[c * ld + c];
    subtract(g + k, g + k, ld, k, rows);
    memcpy(tile, rows, sizeof tile);
    for (int c = 0; c < kStripe; ++c) {
      if (c >= here) {
        inverse[c] = 0.0;
        memset(tile[c], 0, sizeof tile[c]);
        continue;
      }
      const double pivot = tile[c][c];
      if (!(pivot > small * diagonal[c])) return false;
      inverse[c] = 1.0 / __builtin_sqrt(pivot);
      for (int j = 0; j < kStripe; ++j) tile[c][j] = j < c ? 0.0 : tile[c][j] * inverse[c];
      for (int r = c + 1; r < here; ++r) {
        for (int j = 0; j < kStripe; ++j) tile[r][j] = fused(-tile[c][r], tile[c][j], tile[r][j]);
      }
    }
    for (int c = 0; c < kStripe; ++c) memcpy(block + c * ld, tile[c], sizeof tile[c]);
    for (int64_t i = k + kStripe; i < num_rows; i += kStripe) {
      load_rows(g + k * ld + i, ld, rows);
      subtract(g + i, g + k, ld, k, rows);
      for (int c = 0; c < kStripe; ++c) {
        const Doubles scale = all(inverse[c]);
        for (int v = 0; v < V; ++v) rows[c][v] *= scale;
        for (int r = c + 1; r < kStripe; ++r) {
          const Doubles factor = all(-tile[c][r]);
          for (int v = 0; v < V; ++v) rows[r][v] = fused(factor, rows[c][v], rows[r][v]);
        }
      }
      store_rows(g + k * ld + i, ld, rows);
    }
  }
  return true;
}

void invert(const double* r, const double* reciprocal, int64_t num_rows, int64_t ld, double* m, double* leverage) {
  for (int64_t i = 0; i < num_rows; i += kStripe) {
    Doubles squares[V] = {};
    for (int64_t k = i; k < num_rows; k += kStripe) {
      Doubles rows[kStripe][V] = {};
      if (k == i) {
        double one[kStripe][kStripe] = {};
        for (int c = 0; c < kStripe; ++c) one[c][c] = 1.0;
        memcpy(rows, one, sizeof rows);
      } else {
        subtract(m + i * ld + i, r + i * ld + k, ld, k - i, rows);
      }
      const double* const block = r + k * ld + k;
      for (int c = 0; c < kStripe; ++c) {
        const Doubles scale = all(reciprocal[k + c]);
        for (int v = 0; v < V; ++v) rows[c][v] *= scale;
        for (int v = 0; v < V; ++v) squares[v] = fused(rows[c][v], rows[c][v], squares[v]);
        for (int t = c + 1; t < kStripe; ++t) {
          const Doubles factor = all(-block[c * ld + t]);
          for (int v = 0; v < V; ++v) rows[t][v] = fused(factor, rows[c][v], rows[t][v]);
        }
      }
      store_rows(m + k * ld + i, ld, rows);
    }
    memcpy(leverage + i, squares, sizeof squares);
  }
}

void apply(const double* m, int64_t num_rows, int64_t ld, const double* s, double* work, double* out, double* middle) {
  double squares = 0.0;
  for (int64_t k = 0; k < num_rows; ++k) {
    Doubles sum[V] = {};
    for (int64_t i = 0; i <= k; i += kStripe) {
      for (int v = 0; v < V; ++v) sum[v] = fused(load(m + k * ld + i + v * W), load(s + i + v * W), sum[v]);
    }
    work[k] = fold(sum);
    squares = fused(work[k], work[k], squares);
  }
  for (int64_t i = 0; i < num_rows; i += kStripe) {
    Doubles sum[V] = {};
    for (int64_t k = i; k < num_rows; ++k) {
      for (int v = 0; v < V; ++v) sum[v] = fused(load(m + k * ld + i + v * W), all(work[k]), sum[v]);
    }
    memcpy(out + i, sum, sizeof sum);
  }
  *middle = squares;
}

void residual(const double* const* rows, int64_t num_rows, int64_t count, const double* b, const double* e,
              double* rest, double* rest_squares, double* terms_squares) {
  constexpr int U = 32 / W > 4 ? 4 : 32 / W;  // registers of columns at a time
  constexpr int64_t kStep = U * W;
  double squares[2][kStripe] = {};
  int64_t i = 0;
  for (; i + kStep <= count; i += kStep) {
    Doubles x[U], t[U] = {};
    for (int u = 0; u < U; ++u) x[u] = load(b + i + u * W);
    for (int64_t r = 0; r < num_rows; ++r) {
      const Doubles factor = all(-e[r]), weight = magnitude(factor);
      for (int u = 0; u < U; ++u) {
        const Doubles c = load(rows[r] + i + u * W);
        x[u] = fused(factor, c, x[u]);
        t[u] = fused(weight, magnitude(c), t[u]);
      }
    }
    for (int u = 0; u < U; ++u) {
      store(rest + i + u * W, x[u]);
      const int64_t lane = (i + u * W) % kStripe;
      store(squares[0] + lane, fused(x[u], x[u], load(squares[0] + lane)));
      store(squares[1] + lane, fused(t[u], t[u], load(squares[1] + lane)));
    }
  }
  for (; i < count; ++i) {
    double x = b[i], t = 0.0;
    for (int64_t r = 0; r < num_rows; ++r) {
      x = fused(-e[r], rows[r][i], x);
      t = fused(__builtin_fabs(e[r]), __builtin_fabs(rows[r][i]), t);
    }
    rest[i] = x;
    squares[0][i % kStripe] = fused(x, x, squares[0][i % kStripe]);
    squares[1][i % kStripe] = fused(t, t, squares[1][i % kStripe]);
  }
  for (int which = 0; which < 2; ++which) {
    Doubles lanes[V];
    memcpy(lanes, squares[which], sizeof lanes);
    *(which ? terms_squares : rest_squares) = fold(lanes);
  }
}

// Several stripes at a time, so that their chains of additions overlap.
template <int S>
inline void project_some(const double* stripes, int64_t stripe_step, int64_t count, const double* x, double* s) {
  Doubles sums[1][S * V] = {};
  multiply<S, 1>(stripes, kStripe, stripe_step, x, 1, count, sums);
  memcpy(s, sums, sizeof sums);
}

void project(const double* stripes, int64_t stripe_step, int64_t num_rows, int64_t count, const double* x, double* s) {
  constexpr int kMany = W == 8 ? 4 : W == 4 ? 4 : 2;
  int64_t k = 0;
  const int64_t num_stripes = (num_rows + kStripe - 1) / kStripe;
  for (; k + kMany <= num_stripes; k += kMany) {
    project_some<kMany>(stripes + k * stripe_step, stripe_step, count, x, s + k * kStripe);
  }
  for (; k < num_stripes; ++k) project_some<1>(stripes + k * stripe_step, stripe_step, count, x, s + k * kStripe);
}

constexpr PinvKernels kKernels = {pack, gram, cholesky, invert, apply, residual, project};

}  // namespace

#define LEAKCORE_JOIN(a, b) a##b
#define LEAKCORE_TABLE(tier) LEAKCORE_JOIN(pinv_kernels_, tier)
const PinvKernels& LEAKCORE_TABLE(LEAKCORE_TIER)() {
  return kKernels;
}

}  // namespace leakcore
