// The Gram matrix of stripes, for pinv_simd.cpp alone.
#pragma once

#include "pinv/simd_lanes.h"

namespace leakcore {
namespace {

#ifndef KPANEL
#define KPANEL 256
#endif
constexpr int64_t kPanel = KPANEL;  // columns of the Jacobian per pass: their stripes stay in cache

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

// Samples `b` (C of them, broadcast) against S stripes of lanes: rows of the result are the samples of b.
template <int S, int C>
inline void gram_rows(const double* a, int64_t a_next, const double* b, int64_t depth, bool add, double* out,
                      int64_t ld, Ahead* ahead) {
  Doubles sums[C][S * V] = {};
  if (add) {
    for (int c = 0; c < C; ++c) {
      for (int v = 0; v < S * V; ++v) sums[c][v] = load(out + c * ld + v * W);
    }
  }
  Ahead here = *ahead;
  multiply<S, C>(a, kStripe, a_next, b, kStripe, depth, sums, kFetches ? &here : nullptr);
  *ahead = here;
  for (int c = 0; c < C; ++c) {
    for (int v = 0; v < S * V; ++v) store(out + c * ld + v * W, sums[c][v]);
  }
}

// All of the stripe's samples against S stripes at or after it.
template <int S>
inline void gram_tile(const double* a, int64_t a_next, const double* b, int64_t depth, bool add, double* out,
                      int64_t ld, Ahead* ahead) {
  for (int c = 0; c < kStripe; c += kColumns) {
    gram_rows<S, kColumns>(a, a_next, b + c, depth, add, out + c * ld, ld, ahead);
  }
}

// The last stripe's few samples against S stripes at or before it: only as many sums as there are samples, whose tiles
// are then turned.
template <int S>
inline void gram_narrow(const double* a, int64_t a_next, const double* b, int64_t columns, int64_t depth, bool add,
                        double* out, int64_t ld, Ahead* ahead) {
  double tiles[kStripe][S * kStripe] = {};
  double* const to = tiles[0];
  constexpr int64_t step = S * kStripe;
  int64_t c = 0;
  for (; c + 4 <= columns; c += 4) gram_rows<S, 4>(a, a_next, b + c, depth, false, to + c * step, step, ahead);
  for (; c + 2 <= columns; c += 2) gram_rows<S, 2>(a, a_next, b + c, depth, false, to + c * step, step, ahead);
  for (; c < columns; ++c) gram_rows<S, 1>(a, a_next, b + c, depth, false, to + c * step, step, ahead);
  for (int s = 0; s < S; ++s, out += kStripe * ld) {
    const double* in[kStripe];
    for (int k = 0; k < kStripe; ++k) in[k] = tiles[k] + s * kStripe;
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
  const int64_t full = num_rows / kStripe, columns = num_rows % kStripe;
  const int64_t tiles = full * (full + kLanes) / (2 * kLanes) + 1;
  Ahead ahead = {reinterpret_cast<const char*>(stripes), 0};
  if (kFetches && next != nullptr) ahead = {static_cast<const char*>(next), (next_bytes - 1) / (tiles * count) + 1};
  for (int64_t first = 0; first < count; first += kPanel) {
    const int64_t depth = count - first < kPanel ? count - first : kPanel;
    const double* const panel = stripes + first * kStripe;
    const bool add = first > 0;
    for (int64_t t = 0; t < full; ++t) {
      const double* const b = panel + t * stripe_step;
      double* const row = out + t * kStripe * ld;
      int64_t s = t;
      for (; s + kLanes <= full; s += kLanes) {
        gram_tile<kLanes>(panel + s * stripe_step, stripe_step, b, depth, add, row + s * kStripe, ld, &ahead);
      }
      for (; kLanes > 2 && s + 2 <= full; s += 2) {
        gram_tile<2>(panel + s * stripe_step, stripe_step, b, depth, add, row + s * kStripe, ld, &ahead);
      }
      for (; s < full; ++s) {
        gram_tile<1>(panel + s * stripe_step, stripe_step, b, depth, add, row + s * kStripe, ld, &ahead);
      }
    }
    if (columns == 0) continue;
    const double* const b = panel + full * stripe_step;
    constexpr int kWide = W == 8 ? 4 : 1;
    double* const corner = out + full * kStripe;
    int64_t s = 0;
    for (; s + kWide <= full + 1; s += kWide) {
      gram_narrow<kWide>(panel + s * stripe_step, stripe_step, b, columns, depth, add, corner + s * kStripe * ld, ld,
                         &ahead);
    }
    for (; kWide > 3 && s + 3 <= full + 1; s += 3) {
      gram_narrow<3>(panel + s * stripe_step, stripe_step, b, columns, depth, add, corner + s * kStripe * ld, ld,
                     &ahead);
    }
    for (; s <= full; ++s) {
      gram_narrow<1>(panel + s * stripe_step, stripe_step, b, columns, depth, add, corner + s * kStripe * ld, ld,
                     &ahead);
    }
  }
}

// Several stripes at a time, so that their chains of additions overlap.
template <int S>
inline void project_some(const double* stripes, int64_t stripe_step, int64_t num_stripes, int64_t count,
                         const double* x, double* s) {
  for (; num_stripes >= S; num_stripes -= S, stripes += S * stripe_step, s += S * kStripe) {
    Doubles sums[1][S * V] = {};
    multiply<S, 1>(stripes, kStripe, stripe_step, x, 1, count, sums);
    memcpy(s, sums, sizeof sums);
  }
  if constexpr (S > 1) project_some<S - 1>(stripes, stripe_step, num_stripes, count, x, s);
}

void project(const double* stripes, int64_t stripe_step, int64_t num_rows, int64_t count, const double* x, double* s) {
  project_some<W == 8 ? 8 : 4>(stripes, stripe_step, (num_rows + kStripe - 1) / kStripe, count, x, s);
}

}  // namespace
}  // namespace leakcore
