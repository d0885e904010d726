// The inner loops of clipping over contiguous columns, one table per instruction tier. Every tier adds in the same
// order: squares in kSquareLanes lanes and inner products in kDotLanes, folded in halves; a clipped sum row after row,
// column by column. Elements of 16 bits are first added in float32, kSquareChain squares of a lane and kSumChain rows
// at a time, where float32 holds all four factors. Inner products in float32 run in chains of kChain terms a lane,
// added in double. AVX2 and AVX-512 fuse products with additions and agree bit for bit; baseline x86-64 rounds once
// more per term.
#pragma once

#include <cstdint>

#include "core/runtime/array.h"

namespace leakcore {

constexpr int kSquareLanes = 16;
constexpr int kDotLanes = 8;
constexpr int64_t kLeastOverlap = 2, kMostOverlap = 8;  // rows that are added during the squares of as many
constexpr int64_t kOverlapStep = 64;                    // columns of one row's squares in a step, at least
constexpr int kSquareChain = 4;                         // squares of 16-bit elements that are added in float32
constexpr int kSumChain = 4;                            // rows of them that are added in float32
constexpr int64_t kChain = 32;                          // terms of an inner product that are added in float32
constexpr int64_t kMostObserved = 16;                   // observations in one call

struct ClipLoops {
  // lanes[16·r …] += rows[r][i]², in 16 lanes: rows may come in pieces, all but the last a multiple of 64 long.
  void (*squares)(const void* const* rows, int64_t num_rows, int64_t count, double* lanes);
  // sums[r·stride] = what `squares` makes of row r, its lanes folded in halves: for short rows, whose lanes would cost
  // more than their squares.
  void (*sums_of_squares)(const void* const* rows, int64_t num_rows, int64_t count, double* sums, int64_t stride);
  // acc[i] = (acc[i] + factor[0]·rows[0][i]) + factor[1]·rows[1][i] + …: rows may come in groups, all but the last a
  // multiple of kSumChain long. Of 16-bit rows no sum of four may leave the range of float32.
  void (*add_rows)(const void* const* rows, const double* factors, int64_t num_rows, int64_t count, double* acc);
  // `squares` of count columns of one row x, a multiple of overlap_step, and meanwhile `add_rows` of 2 (not of 16
  // bits), 4 or 8 rows over count / num_rows columns. As many bytes as x has are brought into the second-level cache
  // from `ahead` on.
  void (*squares_during_sum)(const void* x, int64_t count, double* lanes, const void* ahead, const void* const* rows,
                             const double* factors, int64_t num_rows, double* acc);
  // dots[r·dots_stride + m] += Σ_i rows[r][i]·observed[m·observed_stride + i], for at least one m; unless lanes is
  // null, also `squares` of row r into lanes[r·kSquareLanes]. next: the bytes from the end of these columns to those
  // that are read afterwards, the same for each row; the cache is asked for them.
  void (*add_dots)(const void* const* rows, int64_t num_rows, int64_t count, int64_t next, const double* observed,
                   int64_t observed_stride, int64_t num_observed, double* dots, int64_t dots_stride, double* lanes);
  // The same with inner products in float32, for rows of at most 32 bits and at most kMostObserved observations; the
  // squares equal the squares of `add_dots`. Null for doubles.
  void (*add_float_dots)(const void* const* rows, int64_t num_rows, int64_t count, int64_t next, const float* observed,
                         int64_t observed_stride, int64_t num_observed, double* dots, int64_t dots_stride,
                         double* lanes);
  int64_t overlap_step;  // a multiple of kOverlapStep
};

struct ClipKernels {
  ClipLoops f16, bf16, f32, f64;
};

const ClipKernels& clip_kernels_baseline();
#if LEAKCORE_X86_TIERS
const ClipKernels& clip_kernels_avx2();
const ClipKernels& clip_kernels_avx512();
#endif

}  // namespace leakcore
