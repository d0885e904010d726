#include "allocation/plan.h"

#include <algorithm>
#include <cmath>

#include "core/rng/normal.h"

namespace leakcore {
namespace {

constexpr double kSumRange = 690.0;                      // |log| of all that a plain sum or product may reach
const double kExcessFloor = std::log(16.0);              // as the mixture's product less 1
constexpr double kQuickReach = 16.5, kQuickTiny = 80.0;  // as the mixture's

// max over j <= level of log C(b, j) − j/level·log C(b, level): how far scaled levels are above e^{j·exponent}.
double level_excess(int64_t bins, int64_t level, double log_count) {
  double most = 0.0, log_choose = 0.0;
  for (int64_t j = 1; j <= level; ++j) {
    log_choose += std::log(static_cast<double>(bins - j + 1) / static_cast<double>(j));
    most = std::max(most, log_choose - log_count * static_cast<double>(j) / static_cast<double>(level));
  }
  return most;
}

// The largest |exponent| of a factor's rows: Σ|F|·|z| + G_jj/2σ², and what the alternative adds, |G_jJ| <= |F_j||F_J|.
double reach_of(const AllocationArgs& args) {
  double longest = 0.0, farthest = 0.0;
  for (int64_t j = 0; j < args.bins; ++j) {
    double square = 0.0;
    for (int64_t i = args.row_start[j]; i < args.row_start[j + 1]; ++i) square += args.values[i] * args.values[i];
    longest = std::max(longest, std::sqrt(square));
  }
  const double sigma = args.noise_multiplier;
  for (int64_t j = 0; j < args.bins; ++j) {
    double size = 0.0, square = 0.0;
    for (int64_t i = args.row_start[j]; i < args.row_start[j + 1]; ++i) {
      size += std::abs(args.values[i]);
      square += args.values[i] * args.values[i];
    }
    const double shift = args.alternative ? std::sqrt(square) * longest : 0.0;
    farthest = std::max(farthest, kNormalLimit * size / sigma + (0.5 * square + shift) / sigma / sigma);
  }
  return farthest;
}

}  // namespace

AllocationPlan::AllocationPlan(const AllocationArgs& args) {
  bins = args.bins;
  epochs = args.epochs;
  chosen = args.chosen;
  draws = args.columns > 0 ? args.columns : bins;
  const double sigma = args.noise_multiplier, b = static_cast<double>(bins), k = static_cast<double>(chosen);
  if (args.columns > 0) {
    log_count = std::log(b);
    choose(args, reach_of(args));
    make_tiles(args);
    return;
  }
  level = std::min(chosen, bins - chosen);
  flipped = chosen > bins - chosen;
  slope = 1.0 / sigma;
  offset = -0.5 / sigma / sigma;
  lifted = args.alternative ? 0.5 / sigma / sigma : offset;
  sum_slope = slope;
  sum_offset = (args.alternative ? k - 0.5 * b : -0.5 * b) / sigma / sigma;
  log_count = args.log_subsets;
  choose(args, kNormalLimit * slope - offset);
  const double unit = (scaled() ? kLog2e : 1.0) * (flipped ? -1.0 : 1.0);
  for (double* x : {&slope, &offset, &lifted}) *x *= unit;
}

void AllocationPlan::choose(const AllocationArgs& args, double reach) {
  const double levels = static_cast<double>(level);
  if (level == 0) {
    form = AllocationForm::linear;
  } else if (level == 1) {
    form = reach + log_count > kSumRange ? AllocationForm::careful
           : reach <= kExcessFloor       ? AllocationForm::excess
                                         : AllocationForm::plain;
    scale = 1.0 / static_cast<double>(bins);
    quick = args.single && args.columns == 0 && !flipped && reach <= kQuickReach && reach + log_count <= kQuickTiny;
  } else {
    // A group of four bins has products of four weights, whatever level there is.
    const double top = std::max(levels, 4.0) * reach + std::max(log_count, level_excess(bins, level, log_count));
    form = top <= kSumRange ? AllocationForm::subsets : AllocationForm::careful_subsets;
    scale = std::exp(-log_count / levels);
  }
}

void AllocationPlan::make_tiles(const AllocationArgs& args) {
  const double sigma = args.noise_multiplier, unit = scaled() ? kLog2e : 1.0;
  offsets_.resize(static_cast<size_t>((bins + kTileRows - 1) / kTileRows * kTileRows));
  shifts_.resize(static_cast<size_t>(args.row_start[bins]));
  for (size_t i = 0; i < shifts_.size(); ++i) shifts_[i] = args.values[i] / sigma;
  for (int64_t j = 0; j < bins; j += kTileRows) {
    const int64_t rows = std::min<int64_t>(kTileRows, bins - j);
    Tile tile = {args.columns, 0, static_cast<int64_t>(coefficients_.size())};
    for (int64_t r = j; r < j + rows; ++r) {
      const int64_t length = args.row_start[r + 1] - args.row_start[r];
      if (length == 0) continue;
      tile.begin = std::min(tile.begin, args.row_column[r]);
      tile.end = std::max(tile.end, args.row_column[r] + length);
    }
    tile.begin = std::min(tile.begin, tile.end);
    coefficients_.resize(coefficients_.size() + static_cast<size_t>((tile.end - tile.begin) * kTileRows));
    for (int64_t r = j; r < j + rows; ++r) {
      double square = 0.0;
      for (int64_t i = args.row_start[r]; i < args.row_start[r + 1]; ++i) {
        const int64_t column = args.row_column[r] + i - args.row_start[r];
        coefficients_[static_cast<size_t>(tile.start + (column - tile.begin) * kTileRows + r - j)] =
            args.values[i] / sigma * unit;
        square += (args.values[i] / sigma) * (args.values[i] / sigma);
      }
      offsets_[static_cast<size_t>(r)] = -0.5 * square * unit;
    }
    tiles_.push_back(tile);
  }
  factor = {tiles_.data(),        static_cast<int64_t>(tiles_.size()),
            coefficients_.data(), offsets_.data(),
            shifts_.data(),       args.row_column,
            args.row_start};
}

int64_t AllocationPlan::work_per_sample() const {
  if (factor.tiles != nullptr) return draws;
  return level > 1 ? level + 1 + kLevelPad : 0;
}

}  // namespace leakcore
