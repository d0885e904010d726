// Bins with independent noise: words, normals and terms are each made in a loop of their own over a block that stays
// in the first-level cache, four draws (one Philox block) at a time. By symmetry the chosen bins are an epoch's first.
// Included by allocation_simd.cpp alone.
#pragma once

#include "allocation/plan.h"
#include "allocation/terms.h"
#include "core/rng/streams.h"
#include "mixture/draws.h"

namespace leakcore {
namespace {

constexpr int kTermPack = 4;  // vectors side by side, by measurement
constexpr int kTermLanes = kTermPack * kDoubles;
typedef Pack<Doubles, kTermPack> Terms;
typedef Pack<Floats, kTermPack> NarrowTerms;

struct Bins {
  const AllocationShape* plan;
  Hoisted draws;
  LEAKCORE_ALIGNED uint32_t word[4][kBlock];
  LEAKCORE_ALIGNED double z[4][kBlock];
  LEAKCORE_ALIGNED float z32[4][kBlock];
  LEAKCORE_ALIGNED double sum[kBlock];    // of the epoch under way, as far as it has come
  LEAKCORE_ALIGNED double most[kBlock];   // `careful`: its largest exponent
  LEAKCORE_ALIGNED double total[kBlock];  // Σz of the epoch, for the sum of all exponents
  double* levels;                         // [kBlock / kTermLanes][kLevelPad + level + 1][kTermLanes]

  double* level_of(int i, int64_t j) const {
    return levels + (i / kTermLanes * (kLevelPad + plan->level + 1) + kLevelPad + j) * kTermLanes;
  }
};

// Rows [from, from + kRows) of the draws, from bin number `bin` on.
template <int kRows>
struct Line {
  double slope, offset[kRows];

  LEAKCORE_HD Line(const AllocationShape& plan, int64_t bin) : slope(plan.slope) {
    for (int s = 0; s < kRows; ++s) offset[s] = bin + s < plan.chosen ? plan.lifted : plan.offset;
  }
  LEAKCORE_HD Terms at(const Bins& w, int from, int s, int i) const {
    return madd(load_pack<Doubles, kTermPack>(w.z[from + s] + i), slope, offset[s]);
  }
};

template <bool kExcess, int kRows>
void add_sums(Bins& w, int from, int64_t bin) {
  const WideScale q(w.plan->scale);
  const Line<kRows> line(*w.plan, bin);
  for (int i = 0; i < kBlock; i += kTermLanes) {
    Terms sum = load_pack<Doubles, kTermPack>(w.sum + i);
    for (int s = 0; s < kRows; ++s) sum = add_exp2<kExcess>(sum, line.at(w, from, s, i), q);
    store_pack(w.sum + i, sum);
  }
}

template <bool kExcess, int kRows>
void add_sums_float(Bins& w, int from, int64_t bin) {
  const AllocationShape& plan = *w.plan;
  const float q = static_cast<float>(plan.scale), slope = static_cast<float>(plan.slope);
  float offset[kRows];
  for (int s = 0; s < kRows; ++s) offset[s] = static_cast<float>(bin + s < plan.chosen ? plan.lifted : plan.offset);
  for (int i = 0; i < kBlock; i += kTermPack * kFloats) {
    NarrowTerms part;
    for (int s = 0; s < kRows; ++s) {
      const NarrowTerms y = madd(load_pack<Floats, kTermPack>(w.z32[from + s] + i), slope, offset[s]);
      part = s == 0 ? exp2_float<kExcess>(y, q) : part + exp2_float<kExcess>(y, q);
    }
    Pack<Doubles, 2 * kTermPack> wide;
    for (int k = 0; k < kTermPack; ++k) widen(part.v[k], &wide.v[2 * k], &wide.v[2 * k + 1]);
    store_pack(w.sum + i, load_pack<Doubles, 2 * kTermPack>(w.sum + i) + wide);
  }
}

template <int kRows>
void add_careful(Bins& w, int from, int64_t bin) {
  const Line<kRows> line(*w.plan, bin);
  for (int i = 0; i < kBlock; i += kTermLanes) {
    Terms most = load_pack<Doubles, kTermPack>(w.most + i), sum = load_pack<Doubles, kTermPack>(w.sum + i);
    Terms a[kRows];
    for (int s = 0; s < kRows; ++s) a[s] = line.at(w, from, s, i);
    peak_add(a, kRows, &most, &sum);
    store_pack(w.most + i, most);
    store_pack(w.sum + i, sum);
  }
}

template <int kRows>
void add_subsets(Bins& w, int from, int64_t bin) {
  const WideScale q(w.plan->scale);
  const Line<kRows> line(*w.plan, bin);
  const int64_t low = lowest_level(*w.plan, bin + kRows), high = highest_level(*w.plan, bin + kRows);
  for (int i = 0; i < kBlock; i += kTermLanes) {
    Terms weight[4] = {}, c[4];
    for (int s = 0; s < kRows; ++s) weight[s] = scaled_exp2(line.at(w, from, s, i), q);
    symmetric(weight, c);
    raise_levels(
        c, low, high, [&](int64_t j) { return load_pack<Doubles, kTermPack>(w.level_of(i, j)); },
        [&](int64_t j, const Terms& x) { store_pack(w.level_of(i, j), x); });
  }
}

template <int kRows>
void add_careful_subsets(Bins& w, int from, int64_t bin) {
  const Line<kRows> line(*w.plan, bin);
  for (int s = 0; s < kRows; ++s) {
    const int64_t low = lowest_level(*w.plan, bin + s + 1), high = highest_level(*w.plan, bin + s + 1);
    for (int i = 0; i < kBlock; i += kTermLanes) {
      const Terms a = line.at(w, from, s, i);
      for (int64_t j = high; j >= low; --j) {
        double* const level = w.level_of(i, j);
        const Terms below = load_pack<Doubles, kTermPack>(w.level_of(i, j - 1)) + a;
        store_pack(level, log_add(load_pack<Doubles, kTermPack>(level), below));
      }
    }
  }
}

template <int kRows>
void add_totals(Bins& w, int from) {
  for (int i = 0; i < kBlock; i += kTermLanes) {
    Terms total = load_pack<Doubles, kTermPack>(w.total + i);
    for (int s = 0; s < kRows; ++s) total = total + load_pack<Doubles, kTermPack>(w.z[from + s] + i);
    store_pack(w.total + i, total);
  }
}

template <int kRows>
void add_bins(Bins& w, int from, int64_t bin) {
  const AllocationShape& plan = *w.plan;
  if (plan.flipped) add_totals<kRows>(w, from);
  switch (plan.form) {
    case AllocationForm::linear:
      return;
    case AllocationForm::plain:
      return plan.quick ? add_sums_float<false, kRows>(w, from, bin) : add_sums<false, kRows>(w, from, bin);
    case AllocationForm::excess:
      return plan.quick ? add_sums_float<true, kRows>(w, from, bin) : add_sums<true, kRows>(w, from, bin);
    case AllocationForm::careful:
      return add_careful<kRows>(w, from, bin);
    case AllocationForm::subsets:
      return add_subsets<kRows>(w, from, bin);
    case AllocationForm::careful_subsets:
      return add_careful_subsets<kRows>(w, from, bin);
  }
}

void fill(double* to, double value) {
  for (int i = 0; i < kBlock; ++i) to[i] = value;
}

void begin_epoch(Bins& w) {
  const AllocationShape& plan = *w.plan;
  fill(w.sum, 0.0);
  if (plan.flipped) fill(w.total, 0.0);
  if (plan.form == AllocationForm::careful) fill(w.most, kNothing);
  if (plan.level < 2) return;
  const bool logs = plan.form == AllocationForm::careful_subsets;
  const int64_t size = (kLevelPad + plan.level + 1) * kTermLanes;
  for (int i = 0; i < kBlock; i += kTermLanes) {
    double* const levels = w.level_of(i, -kLevelPad);
    for (int64_t j = 0; j < size; ++j) levels[j] = logs ? kNothing : 0.0;
    for (int j = 0; j < kTermLanes; ++j) w.level_of(i, 0)[j] = logs ? 0.0 : 1.0;
  }
}

// What the epoch adds to L.
LEAKCORE_HD Terms epoch_ratio(const Bins& w, int i) {
  const AllocationShape& plan = *w.plan;
  const Terms sum = load_pack<Doubles, kTermPack>(w.sum + i);
  switch (plan.form) {
    case AllocationForm::linear:
      return sum;
    case AllocationForm::plain:
      return log_positive(sum);
    case AllocationForm::excess:
      return log1p_safe(sum);
    case AllocationForm::careful:
      return load_pack<Doubles, kTermPack>(w.most + i) + (log_positive(sum) - plan.log_count);
    case AllocationForm::subsets:
      return log_positive(load_pack<Doubles, kTermPack>(w.level_of(i, plan.level)));
    case AllocationForm::careful_subsets:
      return load_pack<Doubles, kTermPack>(w.level_of(i, plan.level)) - plan.log_count;
  }
  return sum;
}

void end_epoch(const Bins& w, double* out) {
  const AllocationShape& plan = *w.plan;
  for (int i = 0; i < kBlock; i += kTermLanes) {
    Terms ratio = epoch_ratio(w, i);
    if (plan.flipped) {
      ratio = ratio + madd(load_pack<Doubles, kTermPack>(w.total + i), plan.sum_slope, plan.sum_offset);
    }
    store_pack(out + i, load_pack<Doubles, kTermPack>(out + i) + ratio);
  }
}

void independent_ratios(const AllocationShape& plan, uint64_t seed, bool alternative, uint64_t first, double* out,
                        double* work) {
  Bins w;
  w.plan = &plan;
  w.levels = work;
  hoist(seed, stream_word(Purpose::allocation, alternative), first, &w.draws);
  fill(out, 0.0);
  begin_epoch(w);
  const int64_t draws = plan.bins * plan.epochs;
  int64_t bin = 0;
  for (int64_t d = 0; d < draws; d += 4) {
    const int rows = static_cast<int>(draws - d < 4 ? draws - d : 4);
    words(w.draws, static_cast<uint32_t>(d / 4), rows, w.word);
    if (plan.quick) {
      normals_float(w.word, rows, w.z32);
    } else {
      normals(w.word, rows, w.z);
    }
    for (int s = 0; s < rows;) {
      const int64_t left = plan.bins - bin;
      const int here = static_cast<int>(left < rows - s ? left : rows - s);
      (here == 4 ? add_bins<4> : here == 3 ? add_bins<3> : here == 2 ? add_bins<2> : add_bins<1>)(w, s, bin);
      s += here;
      bin += here;
      if (bin < plan.bins) continue;
      end_epoch(w, out);
      begin_epoch(w);
      bin = 0;
    }
  }
}

}  // namespace
}  // namespace leakcore
