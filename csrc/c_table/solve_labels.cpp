#include "solve_labels/solve_labels.h"

#include <algorithm>

#include "c_table/checks.h"
#include "c_table/table.h"

namespace leakcore::c_table {
namespace {

// Spacing of a type at 1, and the largest number that it rounds to 0 (of float64 the next that a double holds).
constexpr double kSpacing[] = {0x1p-10, 0x1p-7, 0x1p-23, 0x1p-52};
constexpr double kVanishing[] = {0x1p-25, 0x1p-134, 0x1p-150, 0x1p-1074};

}  // namespace

leakcore_status solve_labels(const leakcore_solve_labels_args* given) {
  if (given == nullptr) return refuse("`args` must not be NULL");
  const leakcore_rows &jacobian = given->jacobian, &gradient = given->gradient;
  const bool samples = any(given->num_problems, given->num_samples);
  const bool values = samples && given->num_outputs > 0;
  if (const char* bad = first({
          check_place(given->place),
          unless(given->num_problems >= 0, "`num_problems` must be at least 0"),
          unless(given->num_samples >= 0, "`num_samples` must be at least 0"),
          unless(given->num_outputs >= 0, "`num_outputs` must be at least 0"),
          unless(is_type(jacobian.dtype), "the `dtype` of `jacobian` must be one of the four"),
          unless(is_type(gradient.dtype), "the `dtype` of `gradient` must be one of the four"),
          unless(jacobian.columns >= 0, "the `columns` of `jacobian` must be at least 0"),
          unless(gradient.columns == jacobian.columns, "`gradient` must have the `columns` of `jacobian`"),
          unless(given->rcond < 1.0, "`rcond` must be below 1"),  // and not NaN
          unless(present(jacobian, given->num_problems, given->num_samples),
                 "the `data` of `jacobian` must not be NULL"),
          unless(present(gradient, given->num_problems, given->num_outputs),
                 "the `data` of `gradient` must not be NULL"),
          unless(!values || given->residual != nullptr, "`residual` must not be NULL"),
          unless(!values || given->error != nullptr, "`error` must not be NULL"),
          unless(!samples || given->leverage != nullptr, "`leverage` must not be NULL"),
          unless(!samples || given->identifiable != nullptr, "`identifiable` must not be NULL"),
          unless(given->num_problems == 0 || given->rank != nullptr, "`rank` must not be NULL"),
      })) {
    return refuse(bad);
  }
  const double n = static_cast<double>(given->num_samples), d = static_cast<double>(jacobian.columns);
  SolveLabelsArgs args;
  args.num_problems = given->num_problems;
  args.num_samples = given->num_samples;
  args.num_outputs = given->num_outputs;
  args.jacobian = rows_of(jacobian);
  args.gradient = rows_of(gradient);
  args.rcond =
      given->rcond >= 0.0 ? given->rcond : std::min(std::max(kSpacing[jacobian.dtype], 0x1p-52 * std::max(n, d)), 0.5);
  args.unit = 0.5 * std::max(kSpacing[jacobian.dtype], kSpacing[gradient.dtype]);
  args.lost = n * (n + 2.0) * std::sqrt(d) * std::max(kVanishing[jacobian.dtype], kVanishing[gradient.dtype]);
  args.residual = given->residual;
  args.error = given->error;
  args.leverage = given->leverage;
  args.identifiable = given->identifiable;
  args.rank = given->rank;
  return run(args, given->place, solve_labels_cpu, solve_labels_cuda, solve_labels_cuda_scratch,
             "`jacobian` and `gradient` must be finite in every problem");
}

}  // namespace leakcore::c_table
