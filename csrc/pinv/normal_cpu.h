// One problem at a time by normal equations, on scratch that is allocated once per worker.
#pragma once

#include <vector>

#include "pinv/pinv.h"
#include "pinv/pinv_simd.h"

namespace leakcore {

class NormalRoute {
 public:
  explicit NormalRoute(const SolveLabelsArgs& args);

  // Writes all results of the problem; false, with nothing written, when another route must solve it: rank-deficient
  // or ill-conditioned, extremely scaled, or not finite.
  bool solve(int64_t index);

 private:
  double* take(int64_t count);
  bool factorise(int64_t index);
  bool solve_output(int64_t index, int64_t output);

  const SolveLabelsArgs& args_;
  const PinvKernels& loops_;
  const int64_t n_, d_, ld_, stripe_step_;
  const bool possible_, direct_, one_block_;
  std::vector<double> scratch_;
  int64_t taken_ = 0;
  std::vector<const double*> rows_;
  std::vector<double> residual_, error_;
  double *buffer_ = nullptr, *stripes_ = nullptr, *r_ = nullptr, *m_ = nullptr, *leverage_ = nullptr, *s_ = nullptr,
         *work_ = nullptr, *step_ = nullptr, *e_ = nullptr, *b_ = nullptr, *rest_ = nullptr;
  double inflation_ = 0.0;
};

}  // namespace leakcore
