// Counting ratios into brackets and adding e^{−L} exactly on the device, for every kernel that draws them.
#pragma once

#include "core/products/rows.cuh"
#include "core/runtime/launch.cuh"
#include "mixture/steps.h"
#include "mixture/tail.h"

namespace leakcore {
namespace {

constexpr int kTailBlocks = 1056;  // each adds its sums to the total once
// Per configuration and threshold, in shared memory: a count and the digits of one sum.
constexpr int kCell = 1 + kSumDigits;
constexpr int kTogether = 4;  // so many lanes in a bracket are worth adding up before they go there

__device__ inline void atomic_add(uint64_t* to, uint64_t value) {
  if (value != 0) atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}

// As exact_add_at and exact_add, from many threads at once: integer additions commute.
__device__ inline void atomic_exact_add_at(uint64_t* digits, uint64_t value, uint32_t place) {
  const uint32_t shift = place & 31;
  const uint64_t upper = value >> (32 - shift);
  uint64_t* d = digits + (place >> 5);
  atomic_add(d, (value << shift) & 0xffffffffu);
  atomic_add(d + 1, upper & 0xffffffffu);
  atomic_add(d + 2, upper >> 32);
}

__device__ inline void atomic_exact_add(uint64_t* digits, double value) {
  uint32_t place;
  const uint64_t mantissa = exact_parts(value, &place);
  atomic_exact_add_at(digits, mantissa, place);
}

struct TailSums {
  const double* thresholds;  // [configs][count], ascending
  int64_t count;
  int64_t* counts;
  uint64_t* sums;
  bool shared;  // a block's cells fit its shared memory
};

// |ratio| > kExpSafe, at or above the first `low` thresholds. Not inlined: it is rare, and its registers would cost the
// loop before it warps.
__device__ __noinline__ void tally_far(const TailSums& t, double ratio, int64_t config, int64_t low) {
  const double* thresholds = t.thresholds + config * t.count;
  const int64_t at = config * t.count + low - 1;
  uint64_t* counts = reinterpret_cast<uint64_t*>(t.counts);
  atomic_add(counts + 2 * at, 1);
  atomic_add(counts + 2 * at + 1, 1);
  atomic_exact_add(t.sums + (at * kTailSums + 1) * kSumDigits, exp_wide(-ratio));
  for (int64_t j = 0; j < low; ++j) {
    atomic_exact_add(t.sums + ((config * t.count + j) * kTailSums + 2) * kSumDigits, far_excess(thresholds[j], ratio));
  }
}

// The ratios of a warp, all of whose lanes come here together; `counts` is false where a lane has none. Lanes whose
// ratios lie in one bracket add up among themselves first: in shared memory, too, a 64-bit addition is a loop that they
// would go through one after the other.
__device__ inline void tally(const TailSums& t, bool counts, double ratio, int64_t config, uint64_t* cells) {
  const double* thresholds = t.thresholds + config * t.count;
  int64_t low = 0, high = counts ? t.count : 0;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (thresholds[middle] <= ratio) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const bool far = low > 0 && (ratio < -kExpSafe || ratio > kExpSafe);
  if (far) tally_far(t, ratio, config, low);
  const bool near = low > 0 && !far;
  const double inverse = exp_safe(near ? -ratio : 0.0);
  uint32_t place;
  const uint64_t mantissa = exact_parts(inverse, &place);
  const int64_t at = config * t.count + low - 1;
  uint64_t* const count = t.shared ? cells + (low - 1) * kCell : reinterpret_cast<uint64_t*>(t.counts) + 2 * at;
  uint64_t* const sum = t.shared ? count + 1 : t.sums + at * kTailSums * kSumDigits;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  bool alone = near;
  for (unsigned left = __ballot_sync(kFullWarp, near); left != 0;) {
    const int leader = __ffs(static_cast<int>(left)) - 1;
    const int bracket = __shfl_sync(kFullWarp, static_cast<int>(low), leader);
    const bool mine = near && low == bracket;
    const unsigned group = __ballot_sync(kFullWarp, mine);
    left &= ~group;
    if (__popc(group) < kTogether) continue;
    // Mantissas at places base … base + 32 fit two integers, the sum of the whole warp; the rest go alone.
    uint32_t top = mine ? place : 0;
    for (int step = kWarp / 2; step > 0; step /= 2) {
      const uint32_t other = __shfl_xor_sync(kFullWarp, top, step);
      top = other > top ? other : top;
    }
    const uint32_t base = top > 32 ? top - 32 : 0;
    const bool inside = mine && place >= base;
    const uint32_t shift = inside ? place - base : 0;
    unsigned long long lower = inside ? mantissa << shift & 0xffffffffu : 0,
                       upper = inside ? mantissa >> (32 - shift) : 0;
    for (int step = kWarp / 2; step > 0; step /= 2) {
      lower += __shfl_xor_sync(kFullWarp, lower, step);
      upper += __shfl_xor_sync(kFullWarp, upper, step);
    }
    if (inside) alone = false;
    if (lane == leader) {
      atomic_exact_add_at(sum, lower, base);
      atomic_exact_add_at(sum, upper, base + 32);
      atomic_add(count, static_cast<uint64_t>(__popc(group)));
    }
    if (mine && !inside) {
      atomic_exact_add_at(sum, mantissa, place);
      alone = false;
    }
  }
  if (alone) {
    atomic_add(count, 1);
    atomic_exact_add_at(sum, mantissa, place);
  }
}

// The shared memory of a block's cells for so many configurations; none where they do not fit.
inline int64_t share_cells(TailSums* t, int configs) {
  const int64_t bytes = configs * t->count * kCell * static_cast<int64_t>(sizeof(uint64_t));
  t->shared = bytes <= static_cast<int64_t>(kPlainSharedBytes);
  return t->shared ? bytes : 0;
}

// A block's cells before its first sample and after its last one; all its threads come here.
__device__ inline void begin_cells(const TailSums& t, int configs, uint64_t* cells) {
  if (t.shared) {
    for (int64_t i = threadIdx.x; i < configs * t.count * kCell; i += blockDim.x) cells[i] = 0;
  }
  __syncthreads();
}
__device__ inline void give_cells(const TailSums& t, int64_t config, int64_t configs, uint64_t* cells) {
  __syncthreads();
  if (!t.shared) return;
  // Carried first, so that the totals have room for 2^32 blocks.
  for (int64_t i = threadIdx.x; i < configs * t.count; i += blockDim.x) exact_carry(cells + i * kCell + 1);
  __syncthreads();
  for (int64_t i = threadIdx.x; i < configs * t.count * kCell; i += blockDim.x) {
    const int64_t cell = i / kCell, part = i % kCell;
    const int64_t at = config * t.count + cell;
    if (part == 0) {
      atomic_add(reinterpret_cast<uint64_t*>(t.counts) + 2 * at, cells[i]);
    } else {
      atomic_add(t.sums + at * kTailSums * kSumDigits + part - 1, cells[i]);
    }
  }
}

__global__ void carry_kernel(uint64_t* sums, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) exact_carry(sums + i * kSumDigits);
}

// The sums of so many brackets, after all kernels that added to them.
inline cudaError_t carry_sums(uint64_t* sums, int64_t brackets, void* stream) {
  constexpr int kCarryThreads = 256;
  const int64_t count = brackets * kTailSums;
  return LEAKCORE_LAUNCH(carry_kernel, static_cast<unsigned>((count + kCarryThreads - 1) / kCarryThreads),
                         kCarryThreads, 0, stream, sums, count);
}

}  // namespace
}  // namespace leakcore
