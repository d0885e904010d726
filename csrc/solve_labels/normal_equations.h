// Label solving by normal equations, where a proven condition estimate allows it: CᵀC = RᵀR, e = R⁻¹R⁻ᵀCᵀb corrected
// once or more from the residual b − C·e (corrected semi-normal equations: Björck, Stability analysis of the method of
// seminormal equations, 1987, §3), leverages as the squared row norms of R⁻¹. Shared by host and device: what is
// accepted, and the bound on the error.
//
// With D = diag(‖c_r‖) and v = Σ_r ‖c_r‖²·leverage_r (the sum of the variance inflation factors), every quantity below
// is measured by κ' = √(N·v) = ‖C·D⁻¹‖_F·‖(C·D⁻¹)⁺‖_F, since neither Gram matrix nor Cholesky factor knows the scale of
// a column: |δG_rs| <= (d + N + 1)·u·‖c_r‖·‖c_s‖ for both together (Higham, Accuracy and Stability, §3.1 and Theorem
// 10.3), so R⁻ᵀ·δG·R⁻¹ has norm at most (d + N + 1)·u·κ'². The two triangular products add 2N·u·κ'² and lower terms.
#pragma once

#include <cmath>

#include "core/simd/hd.h"
#include "solve_labels/solve_labels.h"

namespace leakcore {

constexpr double kUnitRoundoff = 1.1102230246251565e-16;  // unit roundoff of double

// Above this bound of R⁻¹R⁻ᵀ's relative error another route solves. True errors are some 1e-3 of the bound.
constexpr double kInverseErrorLimit = 9.5367431640625e-07;  // 2^-20

// A pivot below this share of its column's square has a variance inflation factor beyond any that is accepted.
constexpr double kSmallPivot = 1e-12;

// Squares of columns outside [1/this, this] are left to the route that scales.
constexpr double kSquareRange = 3.1217485503159922e+144;  // 2^480

LEAKCORE_HD double inverse_error(double n, double d, double inflation) {
  return (d + 5.0 * n + 10.0) * kUnitRoundoff * n * inflation;
}

// Squared condition in Frobenius norms, below 1/rcond² by a margin for its own rounding: no singular value is at or
// below the cut.
LEAKCORE_HD bool normal_accepted(double n, double d, double inflation, double squared_condition, double rcond) {
  return inverse_error(n, d, inflation) <= kInverseErrorLimit && squared_condition * rcond * rcond < 0.999;
}

// |e − truth|_r <= √leverage_r·(what this returns) + unit·|e_r|. `spread` = ‖|C|·|e|‖, `outside` = ‖b − C·e‖ as
// computed before the last correction, `last` = ‖R⁻ᵀs‖ of that correction. The input's rounding moves the solution by
// C⁺(δb − δC·e) + (CᵀC)⁻¹·δCᵀ·rest; forming the residual errs by (N + 2)·u·(‖b‖ + spread), projecting it by
// (d + 2)·u·κ'·outside, and a correction is known to inverse_error of its length.
LEAKCORE_HD double normal_error(double n, double d, double inflation, double input, double spread, double outside,
                                double last) {
  const double condition = sqrt(n * inflation);
  return input * (spread + condition * outside) + (n + 5.0) * kUnitRoundoff * (2.0 * spread + outside) +
         (d + 5.0) * kUnitRoundoff * condition * outside + inverse_error(n, d, inflation) * last;
}

// What is said of a residual that the caller's type does not hold.
LEAKCORE_HD double shown_error(double residual, double error, double largest) {
  return fabs(residual) <= largest ? error : INFINITY;
}

// Correct again while the last correction's error shows next to that of forming the residual.
LEAKCORE_HD bool correct_again(double n, double d, double inflation, double spread, double outside, double last) {
  return inverse_error(n, d, inflation) * last > kUnitRoundoff * (spread + outside);
}

constexpr int kMostCorrections = 4;

// The entries of a Jacobian and a gradient may each be off by this times the magnitudes that made them.
LEAKCORE_HD double input_error(double n, double unit) {
  return (20.0 + 2.0 * sqrt(n)) * unit;
}

// The routes by orthogonal factors (solve_labels_cpu.cpp, jacobi_cuda.cuh), for which conditions and norms are
// Frobenius's.
//
// A label counts as determined only if its row of the null space is at most this: beyond 1e-3 the label moves visibly
// while the gradient stays. What is below enters the error bound in full.
LEAKCORE_HD double null_limit(double rcond, double condition) {
  const double limit = rcond * condition;
  return limit < 1e-3 ? limit : 1e-3;
}

// As normal_error, for a backward stable factorisation: `weight` = Σ ‖c_r‖·|e_r|.
LEAKCORE_HD double residual_error(double n, double d, double unit, double condition, double spread, double weight,
                                  double outside) {
  const double input = input_error(n, unit), own = (20.0 + sqrt(n * d)) * kUnitRoundoff;
  return input * spread + own * weight + (input + own) * condition * outside;
}

}  // namespace leakcore
