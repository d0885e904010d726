// Standard normals by Box-Muller from four words at a time: a fixed number of draws per output, so that any of them can
// be computed alone.
//
// With u = (word + 1/2)·2^-32, words (a, b) give r·cos(2πu_b) and r·sin(2πu_b), r = sqrt(-2 log u_a); words (c, d)
// likewise. The law is that of a 2^32 × 2^32 grid, not quite the normal's: |z| <= sqrt(66 log 2) = 6.7637, beyond which
// a normal puts 1.35e-11, and every probability of an interval is right to 2^-31. Seeing the difference takes more than
// 1e10 draws of the tail or 1e18 of the bulk, beyond every simulation here; noise for a model to be *released* should
// come from a secure source in any case.
#pragma once

#include "core/rng/philox.h"
#include "core/runtime/array.h"
#include "core/runtime/status.h"
#include "core/simd/elementary.h"

namespace leakcore {

constexpr double kNormalLimit = 6.7637;

LEAKCORE_HD double unit_open(uint32_t word) {
  return exact_double(static_cast<uint64_t>(word), 0.5) * 2.3283064365386962890625e-10;
}

// From words in 64-bit lanes, their upper halves zero.
template <class L, class D>
LEAKCORE_HD void box_muller(L a, L b, D* z0, D* z1) {
  D c, s;
  cos_sin_turn(b << 32, &c, &s);
  const D r = root(minus_two_log_unit(a));
  *z0 = r * c;
  *z1 = r * s;
}

// From words in 32-bit lanes, in float32: 2e-7·max(1, |z|) from the above.
template <class I, class F>
LEAKCORE_HD void box_muller_float(I a, I b, F* z0, F* z1) {
  F c, s;
  cos_sin_turn_float(b, &c, &s);
#ifdef __CUDA_ARCH__
  const F r = root_of_normal(minus_log_unit_float(a));
#else
  const F r = root(minus_log_unit_float(a));
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

// Likewise on a device, normals or uniforms: equal to the CPU's tiers with fused multiply-add, bit for bit.
#if LEAKCORE_WITH_CUDA
Status fill_random_rows_cuda(bool normal, const Rows& out, int64_t num_rows, uint64_t seed, uint32_t stream,
                             uint64_t first_row, const Device& device);
#else
inline Status fill_random_rows_cuda(bool normal, const Rows&, int64_t, uint64_t, uint32_t, uint64_t, const Device&) {
  return {Code::no_cuda_build, normal ? "standard_normal" : "uniform"};
}
#endif

}  // namespace leakcore
