// One problem at a time by normal equations, on scratch that is allocated once per worker.
#pragma once

#include <vector>

#include "solve_labels/solve_labels.h"
#include "solve_labels/solve_labels_simd.h"

namespace leakcore {

class NormalRoute {
 public:
  explicit NormalRoute(const SolveLabelsArgs& args);

  // Writes all results of the problem; false, with nothing written, when another route must solve it: rank-deficient
  // or ill-conditioned, extremely scaled, or not finite.
  bool solve(int64_t index);

 private:
  double* take(int64_t count);
  template <class Entry>
  bool solve_with(const SampleKernels<Entry>& loops, int64_t index, const Entry* const* rows);
  template <class Entry>
  bool factorise(const SampleKernels<Entry>& loops, int64_t index, const Entry* const* rows);
  // d entries of a row: where they are, or `copy`, into which they were converted.
  const double* doubles_of(const Rows& rows, int64_t index, int64_t row, double* copy) const;
  // b_ = N times an output's gradient, the right side; false where another route must take it.
  bool read_output(int64_t index, int64_t output);
  // From b_ and s_ = Cᵀ·b_.
  template <class Entry>
  void solve_output(const SampleKernels<Entry>& loops, int64_t output, const Entry* const* rows);

  const SolveLabelsArgs& args_;
  const SolveLabelsKernels& loops_;
  const int64_t n_, d_, ld_;
  const bool possible_, one_block_;
  std::vector<double> scratch_;
  int64_t taken_ = 0;
  // Of float32 rows rows32_, with copies_ where they become doubles on the way; of others rows64_.
  std::vector<const double*> rows64_;
  std::vector<const float*> rows32_;
  std::vector<double*> copies_;
  std::vector<double> residual_, error_;
  double *buffer_ = nullptr, *r_ = nullptr, *m_ = nullptr, *leverage_ = nullptr, *square_ = nullptr, *s_ = nullptr,
         *work_ = nullptr, *step_ = nullptr, *e_ = nullptr, *b_ = nullptr, *rest_ = nullptr;
  double inflation_ = 0.0;
};

}  // namespace leakcore
