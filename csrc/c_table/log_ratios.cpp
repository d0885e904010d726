#include <algorithm>

#include "allocation/allocation.h"
#include "c_table/checks.h"
#include "c_table/table.h"
#include "core/rng/normal.h"
#include "mixture/mixture.h"

namespace leakcore::c_table {
namespace {

constexpr int64_t kMostSteps = int64_t{1} << 24, kMostBins = int64_t{1} << 24, kMostLevel = 4096;
constexpr int64_t kMostInTail = (int64_t{1} << 31) - (int64_t{1} << 20);  // summands that the digits have room for
constexpr int64_t kMostConfigs = int64_t{1} << 32, kMostConfigsOnDevice = 4 * 65535;
constexpr double kLargest = 1e300;  // exponents up to here can be added up over bins and epochs

const char* check_samples(int64_t count, uint64_t first_sample) {
  return first({
      unless(count >= 0, "`num_samples` must be at least 0"),
      unless(count < 0 || first_sample <= UINT64_MAX - static_cast<uint64_t>(count),
             "`first_sample` plus `num_samples` must be below 2^64"),
  });
}

const char* check(const leakcore_mixture& m, const leakcore_place& place) {
  if (const char* bad = first({
          check_place(place),
          check_samples(m.num_samples, m.first_sample),
          unless(m.configs >= 0 && m.configs <= kMostConfigs, "`configs` must be in [0, 2^32]"),
          unless(place.cuda == 0 || m.configs <= kMostConfigsOnDevice, "`configs` must be at most 262140 on a device"),
          unless(m.steps >= 0 && m.steps <= kMostSteps, "`steps` must be in [0, 2^24]"),
          unless(!any(m.configs, m.steps) || m.noise_multiplier != nullptr, "`noise_multiplier` must not be NULL"),
          unless(!any(m.configs, m.steps) || m.sample_rate != nullptr, "`sample_rate` must not be NULL"),
      })) {
    return bad;
  }
  for (int64_t t = 0; t < m.configs * m.steps; ++t) {
    if (!finite_from_zero(m.noise_multiplier[t])) return "`noise_multiplier` must be in [0, inf)";
    if (!(m.sample_rate[t] >= 0.0 && m.sample_rate[t] <= 1.0)) return "`sample_rate` must be in [0, 1]";
  }
  return nullptr;
}

// A bound of |y_j - G_jj/2|/sigma^2 for every bin, as leakcore/kernels/allocation.py has it.
double largest_exponent(const leakcore_allocation& a) {
  double size = a.columns == 0 ? 1.0 : 0.0;
  for (int64_t j = 0; a.columns > 0 && j < a.bins; ++j) {
    double sum = 0.0;
    for (int64_t i = a.row_start[j]; i < a.row_start[j + 1]; ++i) sum += std::fabs(a.values[i]);
    size = std::max(size, sum);
  }
  const double slope = size / a.noise_multiplier;
  return kNormalLimit * slope + 1.5 * slope * slope;
}

const char* check_factor(const leakcore_allocation& a) {
  if (a.row_column == nullptr || a.row_start == nullptr) return "`row_column` and `row_start` must not be NULL";
  if (a.row_start[0] != 0) return "`row_start` must begin with 0";
  for (int64_t j = 0; j < a.bins; ++j) {
    const int64_t length = a.row_start[j + 1] - a.row_start[j];
    if (length < 0) return "`row_start` must ascend";
    if (a.row_column[j] < 0 || length > a.columns - a.row_column[j]) return "each row must lie within `columns`";
  }
  if (a.row_start[a.bins] > 0 && a.values == nullptr) return "`values` must not be NULL";
  for (int64_t i = 0; i < a.row_start[a.bins]; ++i) {
    if (!std::isfinite(a.values[i])) return "`values` must be finite";
  }
  return nullptr;
}

const char* check(const leakcore_allocation& a, const leakcore_place& place) {
  if (const char* bad = first({
          check_place(place),
          check_samples(a.num_samples, a.first_sample),
          unless(positive(a.noise_multiplier), "`noise_multiplier` must be in (0, inf)"),
          unless(a.bins >= 1 && a.bins <= kMostBins, "`bins` must be in [1, 2^24]"),
          unless(a.columns >= 0 && a.columns <= kMostBins, "`columns` must be in [0, 2^24]"),
      })) {
    return bad;
  }
  if (const char* bad = first({
          unless(a.chosen >= 1 && a.chosen <= a.bins, "`chosen` must be in [1, bins]"),
          unless(a.columns == 0 || a.chosen == 1, "`chosen` must be 1 with a factor"),
          unless(std::min(a.chosen, a.bins - a.chosen) <= kMostLevel, "`chosen` or bins - chosen must be at most 4096"),
          unless(a.epochs >= 1 && a.epochs <= kMostDraws / (a.columns == 0 ? a.bins : a.columns),
                 "`epochs` times `bins`, or times `columns`, must be in [1, 2^34]"),
          a.columns == 0 ? nullptr : check_factor(a),
      })) {
    return bad;
  }
  const double most = kLargest / static_cast<double>(a.bins) / static_cast<double>(a.epochs);
  return unless(largest_exponent(a) < most, "`noise_multiplier` must be so large that log ratios stay within 1e300");
}

const char* check(const leakcore_tail& tail, int64_t configs, int64_t num_samples) {
  if (tail.num_thresholds < 0) return "`num_thresholds` must be at least 0";
  if (num_samples > kMostInTail) return "`num_samples` must be at most 2^31 - 2^20";
  if (!any(configs, tail.num_thresholds)) return nullptr;
  if (tail.thresholds == nullptr || tail.counts == nullptr || tail.sums == nullptr) {
    return "`thresholds`, `counts` and `sums` must not be NULL";
  }
  for (int64_t c = 0; c < configs; ++c) {
    const double* t = tail.thresholds + c * tail.num_thresholds;
    for (int64_t j = 0; j < tail.num_thresholds; ++j) {
      if (std::isnan(t[j]) || (j > 0 && !(t[j - 1] < t[j]))) return "`thresholds` must ascend, and not be NaN";
    }
  }
  return nullptr;
}

void fill(MixtureArgs& args, const leakcore_mixture& m) {
  args.seed = m.seed;
  args.first_sample = m.first_sample;
  args.num_samples = m.num_samples;
  args.alternative = m.alternative != 0;
  args.single = m.single != 0;
  args.configs = m.configs;
  args.steps = m.steps;
  args.noise_multiplier = m.noise_multiplier;
  args.sample_rate = m.sample_rate;
}

// Subsets of the bins, on a logarithmic scale: exact for k = 1, else correct to the last bit or two.
double log_subsets(int64_t bins, int64_t chosen) {
  const int64_t level = std::min(chosen, bins - chosen);
  if (level == 1) return std::log(static_cast<double>(bins));
  long double sum = 0.0L;
  for (int64_t j = 1; j <= level; ++j) {
    sum += std::log(static_cast<long double>(bins - level + j)) - std::log(static_cast<long double>(j));
  }
  return static_cast<double>(sum);
}

void fill(AllocationArgs& args, const leakcore_allocation& a) {
  args.seed = a.seed;
  args.first_sample = a.first_sample;
  args.num_samples = a.num_samples;
  args.alternative = a.alternative != 0;
  args.single = a.single != 0;
  args.noise_multiplier = a.noise_multiplier;
  args.bins = a.bins;
  args.epochs = a.epochs;
  args.chosen = a.chosen;
  args.log_subsets = log_subsets(a.bins, a.chosen);
  args.columns = a.columns;
  args.row_column = a.row_column;
  args.row_start = a.row_start;
  args.values = a.values;
}

void fill(TailArgs& args, const leakcore_tail& tail) {
  args.num_thresholds = tail.num_thresholds;
  args.thresholds = tail.thresholds;
  args.counts = tail.counts;
  args.sums = tail.sums;
}

}  // namespace

leakcore_status mixture_log_ratio(const leakcore_mixture_log_ratio_args* given) {
  if (given == nullptr) return refuse("`args` must not be NULL");
  const leakcore_mixture& m = given->mixture;
  if (const char* bad = check(m, given->place)) return refuse(bad);
  if (given->out == nullptr && any(m.configs, m.num_samples)) return refuse("`out` must not be NULL");
  MixtureLogRatioArgs args;
  fill(args, m);
  args.out = given->out;
  args.config_stride = m.num_samples;
  return run(args, given->place, mixture_log_ratio_cpu, mixture_log_ratio_cuda, mixture_log_ratio_cuda_scratch);
}

leakcore_status mixture_tail(const leakcore_mixture_tail_args* given) {
  if (given == nullptr) return refuse("`args` must not be NULL");
  const leakcore_mixture& m = given->mixture;
  if (const char* bad = first({check(m, given->place), check(given->tail, m.configs, m.num_samples)})) {
    return refuse(bad);
  }
  MixtureTailArgs args;
  fill(args, m);
  fill(args, given->tail);
  return run(args, given->place, mixture_tail_cpu, mixture_tail_cuda, mixture_tail_cuda_scratch);
}

leakcore_status allocation_log_ratio(const leakcore_allocation_log_ratio_args* given) {
  if (given == nullptr) return refuse("`args` must not be NULL");
  if (const char* bad = check(given->allocation, given->place)) return refuse(bad);
  if (given->out == nullptr && given->allocation.num_samples > 0) return refuse("`out` must not be NULL");
  AllocationLogRatioArgs args;
  fill(args, given->allocation);
  args.out = given->out;
  return run(args, given->place, allocation_log_ratio_cpu, allocation_log_ratio_cuda,
             allocation_log_ratio_cuda_scratch);
}

leakcore_status allocation_tail(const leakcore_allocation_tail_args* given) {
  if (given == nullptr) return refuse("`args` must not be NULL");
  if (const char* bad = first({
          check(given->allocation, given->place),
          check(given->tail, 1, given->allocation.num_samples),
      })) {
    return refuse(bad);
  }
  AllocationTailArgs args;
  fill(args, given->allocation);
  fill(args, given->tail);
  return run(args, given->place, allocation_tail_cpu, allocation_tail_cuda, allocation_tail_cuda_scratch);
}

}  // namespace leakcore::c_table
