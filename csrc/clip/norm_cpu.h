// Euclidean norms in double, with a shape fixed by the sizes: segments of kSegment columns, kSquareLanes lanes each,
// added in order.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "clip/panel.h"
#include "core/products/tile.h"

namespace leakcore {

// Columns whose squares are summed in one go: as many as a float32 row that is read once can have.
constexpr int64_t kSegment = 131072;

inline double fold_squares(double* lanes) {
  for (int half = kSquareLanes / 2; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  }
  return lanes[0];
}

// The norm from a sum of squares; where squares left the range of a double (only float64 input can) or of a float32 (so
// can bfloat16), from a second, scaled pass over the row, so that a finite gradient never looks infinite or zero. Below
// `least` the squares of 2⁴⁰ columns that vanished in float32 could show.
inline double norm_of(double squares, const Rows* params, int32_t num_params, int64_t run, int64_t row) {
  const double least = num_params > 0 && size_of(params->dtype) == 2 ? 1e-24 : 1e-280;
  if (squares > least && squares < 1e300) return std::sqrt(squares);
  double buffer[kStripe];
  double largest = 0.0;
  for (int32_t p = 0; p < num_params; ++p) {
    for (int64_t c = 0; c < params[p].numel; c += kStripe) {
      const int64_t count = std::min(kStripe, params[p].numel - c);
      load_tile(params[p], run, row, c, count, buffer);
      for (int64_t i = 0; i < count; ++i) {
        if (std::isnan(buffer[i])) return std::numeric_limits<double>::quiet_NaN();
        largest = std::max(largest, std::abs(buffer[i]));
      }
    }
  }
  if (largest == 0.0 || std::isinf(largest)) return largest;
  int exponent;
  std::frexp(largest, &exponent);
  double lanes[kSquareLanes] = {};
  for (int32_t p = 0; p < num_params; ++p) {
    for (int64_t c = 0; c < params[p].numel; c += kStripe) {
      const int64_t count = std::min(kStripe, params[p].numel - c);
      load_tile(params[p], run, row, c, count, buffer);
      for (int64_t i = 0; i < count; ++i) buffer[i] = std::ldexp(buffer[i], -exponent);
      const void* scaled = buffer;
      LEAKCORE_TIERED(clip_kernels).f64.squares(&scaled, 1, count, lanes);
    }
  }
  return std::ldexp(std::sqrt(fold_squares(lanes)), exponent);
}

// min(1, C/‖g‖), and 1 for a zero gradient. NaN where the norm is not finite, so that an unchecked bad row shows
// in every column of the sum.
inline double clip_factor(double max_grad_norm, double norm) {
  if (!std::isfinite(norm)) return std::numeric_limits<double>::quiet_NaN();
  return norm > max_grad_norm ? max_grad_norm / norm : 1.0;
}

}  // namespace leakcore
