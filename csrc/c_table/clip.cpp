#include "clip/clip.h"

#include <vector>

#include "c_table/checks.h"
#include "c_table/table.h"
#include "core/rng/streams.h"

namespace leakcore::c_table {
namespace {

constexpr int32_t kMostParams = 1 << 20;
const char* const kNotFinite = "`grads` must be finite in every row";

const char* check(const leakcore_clip_and_noise_args& args) {
  if (const char* bad = first({
          check_place(args.place),
          unless(args.num_runs >= 0, "`num_runs` must be at least 0"),
          unless(args.num_rows >= 0, "`num_rows` must be at least 0"),
          unless(args.num_params >= 1 && args.num_params <= kMostParams, "`num_params` must be in [1, 2^20]"),
          unless(args.grads != nullptr, "`grads` must not be NULL"),
          unless(args.sum != nullptr, "`sum` must not be NULL"),
          unless(args.norms != nullptr || !any(args.num_runs, args.num_rows), "`norms` must not be NULL"),
          unless(positive(args.max_grad_norm), "`max_grad_norm` must be in (0, inf)"),
          unless(finite_from_zero(args.noise_multiplier), "`noise_multiplier` must be in [0, inf)"),
          unless(std::isfinite(args.noise_multiplier * args.max_grad_norm),
                 "`noise_multiplier` times `max_grad_norm` must be within double"),
          // A step beyond would have the noise of another.
          unless(args.step >> kStepBits == 0, "`step` must be in [0, 2^24)"),
          unless(args.first_run <= uint64_t{1} << 63, "`first_run` must be at most 2^63"),
      })) {
    return bad;
  }
  int64_t columns = 0;
  for (int32_t k = 0; k < args.num_params; ++k) {
    const leakcore_rows &grads = args.grads[k], &sum = args.sum[k];
    if (const char* bad = first({
            unless(is_type(grads.dtype), "the `dtype` of `grads` must be one of the four"),
            unless(grads.dtype == args.grads[0].dtype, "all `grads` must have one `dtype`"),
            unless(grads.columns >= 0, "the `columns` of `grads` must be at least 0"),
            unless(present(grads, args.num_runs, args.num_rows), "the `data` of `grads` must not be NULL"),
            unless(is_wide(sum.dtype), "the `dtype` of `sum` must be float32 or float64"),
            unless(sum.columns == grads.columns, "`sum` must have the `columns` of `grads`"),
            unless(present(sum, args.num_runs), "the `data` of `sum` must not be NULL"),
        })) {
      return bad;
    }
    if (args.noise != nullptr) {
      const leakcore_rows& noise = args.noise[k];
      if (const char* bad = first({
              unless(is_type(noise.dtype), "the `dtype` of `noise` must be one of the four"),
              unless(noise.columns == grads.columns, "`noise` must have the `columns` of `grads`"),
              unless(present(noise, args.num_runs), "the `data` of `noise` must not be NULL"),
          })) {
        return bad;
      }
    }
    if (columns > std::numeric_limits<int64_t>::max() - grads.columns) return "`columns` must add up to less than 2^63";
    columns += grads.columns;
  }
  return unless(args.noise_multiplier == 0.0 || args.noise != nullptr || columns <= kMostDraws,
                "`columns` must add up to at most 2^34 with noise of a seed");
}

std::vector<Rows> all_rows(const leakcore_rows* rows, int32_t count) {
  std::vector<Rows> out;
  for (int32_t k = 0; rows != nullptr && k < count; ++k) out.push_back(rows_of(rows[k]));
  return out;
}

}  // namespace

leakcore_status clip_and_noise(const leakcore_clip_and_noise_args* given) {
  if (given == nullptr) return refuse("`args` must not be NULL");
  if (const char* bad = check(*given)) return refuse(bad);
  try {
    const std::vector<Rows> grads = all_rows(given->grads, given->num_params);
    const std::vector<Rows> sums = all_rows(given->sum, given->num_params);
    const std::vector<Rows> noise = all_rows(given->noise, given->num_params);
    ClipArgs args;
    args.num_runs = given->num_runs;
    args.num_rows = given->num_rows;
    args.num_params = given->num_params;
    args.grads = grads.data();
    args.sum = sums.data();
    args.norms = given->norms;
    args.mask = given->mask;
    args.mask_run_stride = given->mask_run_stride;
    args.mask_row_stride = given->mask_row_stride;
    args.max_grad_norm = given->max_grad_norm;
    args.noise_scale = given->noise_multiplier * given->max_grad_norm;
    args.noise = noise.empty() ? nullptr : noise.data();
    args.seed = given->seed;
    args.step = given->step;
    args.first_run = given->first_run;
    return run(args, given->place, clip_and_noise_cpu, clip_and_noise_cuda, clip_and_noise_cuda_scratch,
               noise.empty() ? kNotFinite : "`grads` must be finite in every row, and `noise` in every column");
  } catch (const std::bad_alloc&) {
    return {LEAKCORE_OUT_OF_MEMORY, -1, "out of memory"};
  }
}

leakcore_status clip_scores(const leakcore_clip_scores_args* given) {
  if (given == nullptr) return refuse("`args` must not be NULL");
  const leakcore_rows &grads = given->grads, &observed = given->observed;
  if (const char* bad = first({
          check_place(given->place),
          unless(given->num_runs >= 0, "`num_runs` must be at least 0"),
          unless(given->num_rows >= 0, "`num_rows` must be at least 0"),
          unless(given->num_observed >= 0, "`num_observed` must be at least 0"),
          unless(is_type(grads.dtype), "the `dtype` of `grads` must be one of the four"),
          unless(is_type(observed.dtype), "the `dtype` of `observed` must be one of the four"),
          unless(grads.columns >= 0, "the `columns` of `grads` must be at least 0"),
          unless(observed.columns == grads.columns, "`observed` must have the `columns` of `grads`"),
          unless(positive(given->max_grad_norm), "`max_grad_norm` must be in (0, inf)"),
          unless(given->float_products == 0 || (grads.dtype != LEAKCORE_FLOAT64 && observed.dtype != LEAKCORE_FLOAT64),
                 "`float_products` must be 0 with a float64 array"),
          unless(present(grads, given->num_runs, given->num_rows), "the `data` of `grads` must not be NULL"),
          unless(present(observed, given->num_runs, given->num_observed), "the `data` of `observed` must not be NULL"),
          unless(given->norms != nullptr || !any(given->num_runs, given->num_rows), "`norms` must not be NULL"),
          unless(given->dots != nullptr || !any(given->num_runs, given->num_rows, given->num_observed),
                 "`dots` must not be NULL"),
      })) {
    return refuse(bad);
  }
  ClipScoresArgs args;
  args.num_runs = given->num_runs;
  args.num_rows = given->num_rows;
  args.num_observed = given->num_observed;
  args.grads = rows_of(grads);
  args.observed = rows_of(observed);
  args.dots = given->dots;
  args.norms = given->norms;
  args.max_grad_norm = given->max_grad_norm;
  args.float_products = given->float_products != 0;
  return run(args, given->place, clip_scores_cpu, clip_scores_cuda, clip_scores_cuda_scratch, kNotFinite);
}

}  // namespace leakcore::c_table
