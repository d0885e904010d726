// Standard normals by Box-Muller from four words at a time: a fixed number of draws per output, so that any of them can
// be computed alone.
//
// With u = (word + 1/2)·2^-32, words (a, b) give r·cos(2πu_b) and r·sin(2πu_b), r = sqrt(-2 log u_a); words (c, d)
// likewise. The law is that of a 2^32 × 2^32 grid, not quite the normal's: |z| <= sqrt(66 log 2) = 6.7637, beyond which
// a normal puts 1.35e-11, and every probability of an interval is right to 2^-31. Seeing the difference takes more than
// 1e10 draws of the tail or 1e18 of the bulk, beyond every simulation here; noise for a model to be *released* should
// come from a secure source in any case.
#pragma once

#ifndef __CUDACC__
#include <cmath>
#endif

#include "core/array.h"
#include "core/elementary.h"
#include "core/philox.h"

namespace leakcore {

constexpr double kNormalLimit = 6.7637;

LEAKCORE_HD double unit_open(uint32_t word) {
  return (exact_double(word) + 0.5) * 2.3283064365386962890625e-10;
}

LEAKCORE_HD void box_muller(uint32_t a, uint32_t b, double* z0, double* z1) {
  double c, s;
  cos_sin_turn(b, &c, &s);
#ifdef __CUDACC__
  const double r = sqrt(-2.0 * log_positive(unit_open(a)));
#else
  const double r = std::sqrt(-2.0 * log_positive(unit_open(a)));
#endif
  *z0 = r * c;
  *z1 = r * s;
}

// Normals of `sample` in `stream`, draws [first, first + count).
void fill_normals(uint64_t seed, uint32_t stream, uint64_t sample, int64_t first, int64_t count, double* out);

// Uniforms in (0, 1), one word each, likewise.
void fill_uniforms(uint64_t seed, uint32_t stream, uint64_t sample, int64_t first, int64_t count, double* out);

// One of the above into every row of an array: row r is sample first_row + r.
using Fill = void (*)(uint64_t seed, uint32_t stream, uint64_t sample, int64_t first, int64_t count, double* out);
void fill_random_rows(Fill fill, const Rows& out, int64_t num_rows, uint64_t seed, uint32_t stream, uint64_t first_row,
                      const Schedule& schedule);

}  // namespace leakcore
