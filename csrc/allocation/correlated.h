// Bins whose noise is a factor times normals. A block's normals are stored in strips of kStrip samples, [columns]
// [kStrip]; four rows of the factor are multiplied with a strip in registers, and their terms added up at once.
// Included by allocation_simd.cpp alone.
#pragma once

#include "allocation/independent.h"

namespace leakcore {
namespace {

// Four rows by kStripPack vectors of sums, and the vectors that they are made of, fit the registers.
#if defined(__AVX512F__)
constexpr int kStripPack = 4;
#else
constexpr int kStripPack = 2;
#endif
constexpr int kStrip = kStripPack * kDoubles;
typedef Pack<Doubles, kStripPack> Strip;

struct Correlated {
  const AllocationShape* plan;
  Hoisted draws, pick;
  LEAKCORE_ALIGNED uint32_t word[4][kBlock];
  LEAKCORE_ALIGNED double z[4][kBlock];
  double* strips;  // [kBlock / kStrip][columns][kStrip]

  double* strip(int i) const { return strips + i / kStrip * plan->draws * kStrip; }
};

// Normals number [epoch·columns, (epoch + 1)·columns) of every sample.
void draw_strips(Correlated& w, int64_t epoch) {
  const int64_t columns = w.plan->draws, begin = epoch * columns, end = begin + columns;
  for (int64_t block = begin / 4; 4 * block < end; ++block) {
    const int rows = static_cast<int>(end - 4 * block < 4 ? end - 4 * block : 4);
    words(w.draws, static_cast<uint32_t>(block), rows, w.word);
    normals(w.word, rows, w.z);
    for (int s = 0; s < rows; ++s) {
      const int64_t column = 4 * block + s - begin;
      if (column < 0) continue;
      for (int i = 0; i < kBlock; i += kStrip) {
        store_pack(w.strip(i) + column * kStrip, load_pack<Doubles, kStripPack>(w.z[s] + i));
      }
    }
  }
}

// G's column J, as row J of the factor on top of the normals: y = σF(z + F_J/σ).
void shift_strips(Correlated& w, int64_t epoch) {
  const AllocationShape& plan = *w.plan;
  words(w.pick, static_cast<uint32_t>(epoch / 2), 4, w.word);
  const uint32_t* high = w.word[epoch % 2 * 2];
  const uint32_t* low = w.word[epoch % 2 * 2 + 1];
  for (int i = 0; i < kBlock; ++i) {
    const int64_t row = picked_bin(high[i], low[i], plan.bins);
    double* z = w.strip(i) + plan.factor.row_column[row] * kStrip + i % kStrip;
    for (int64_t k = plan.factor.row_start[row]; k < plan.factor.row_start[row + 1]; ++k, z += kStrip)
      *z += plan.factor.shifts[k];
  }
}

// The exponents of a tile's rows for a strip.
LEAKCORE_HD void exponents(const AllocationShape& plan, const Tile& tile, const double* offsets, const double* z,
                           Strip* y) {
  for (int r = 0; r < kTileRows; ++r) {
    for (int k = 0; k < kStripPack; ++k) y[r].v[k] = doubles(offsets[r]);
  }
  const double* c = plan.factor.coefficients + tile.start;
  z += tile.begin * kStrip;
  for (int64_t column = tile.begin; column < tile.end; ++column, c += kTileRows, z += kStrip) {
    const Strip normal = load_pack<Doubles, kStripPack>(z);
    for (int r = 0; r < kTileRows; ++r) y[r] = madd(normal, c[r], y[r]);
  }
}

// The epoch's ratios of a strip, added to out.
template <AllocationForm kForm>
void add_strip(const AllocationShape& plan, const double* z, double* out) {
  const WideScale q(plan.scale);
  Strip sum = {}, most;
  for (int k = 0; k < kStripPack; ++k) most.v[k] = doubles(kNothing);
  for (int64_t t = 0; t < plan.factor.num_tiles; ++t) {
    const int64_t row = t * kTileRows;
    const int rows = static_cast<int>(plan.bins - row < kTileRows ? plan.bins - row : kTileRows);
    Strip y[kTileRows];
    exponents(plan, plan.factor.tiles[t], plan.factor.offsets + row, z, y);
    for (int r = 0; r < rows; ++r) {
      if constexpr (kForm == AllocationForm::careful) {
        peak_add(&y[r], 1, &most, &sum);
      } else {
        sum = add_exp2<kForm == AllocationForm::excess>(sum, y[r], q);
      }
    }
  }
  Strip ratio;
  if constexpr (kForm == AllocationForm::careful) {
    ratio = most + (log_positive(sum) - plan.log_count);
  } else if constexpr (kForm == AllocationForm::excess) {
    ratio = log1p_safe(sum);
  } else {
    ratio = log_positive(sum);
  }
  store_pack(out, load_pack<Doubles, kStripPack>(out) + ratio);
}

void correlated_ratios(const AllocationShape& plan, uint64_t seed, bool alternative, uint64_t first, double* out,
                       double* work) {
  Correlated w;
  w.plan = &plan;
  w.strips = work;
  hoist(seed, stream_word(Purpose::allocation, alternative), first, &w.draws);
  if (alternative) hoist(seed, stream_word(Purpose::allocation_pick, 0), first, &w.pick);
  fill(out, 0.0);
  const auto add = plan.form == AllocationForm::careful  ? add_strip<AllocationForm::careful>
                   : plan.form == AllocationForm::excess ? add_strip<AllocationForm::excess>
                                                         : add_strip<AllocationForm::plain>;
  for (int64_t epoch = 0; epoch < plan.epochs; ++epoch) {
    draw_strips(w, epoch);
    if (alternative) shift_strips(w, epoch);
    for (int i = 0; i < kBlock; i += kStrip) add(plan, w.strip(i), out + i);
  }
}

}  // namespace
}  // namespace leakcore
