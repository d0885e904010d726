// A few rows' columns [first, first + count) as contiguous memory for the loops of clip_simd: in place where they lie
// so, else widened into a buffer. The widening is exact, so no result depends on layout.
#pragma once

#include <cstdint>

#include "clip/clip_simd.h"
#include "core/array.h"
#include "core/isa.h"
#include "core/tile.h"

namespace leakcore {

constexpr int64_t kTile = 1024;
constexpr int64_t kPanelRows = 16;

inline const ClipKernels& clip_kernels() {
#if LEAKCORE_X86_TIERS
  const Tier t = tier();
  if (t == Tier::avx512) return clip_kernels_avx512();
  if (t == Tier::avx2) return clip_kernels_avx2();
#else
  tier();
#endif
  return clip_kernels_baseline();
}

// The loops for rows that lie contiguous in a type they know; null: widen first.
inline const ClipLoops* direct_loops(const Rows& rows) {
  if (rows.ndim > 1 || (rows.ndim == 1 && rows.stride[0] != 1 && rows.numel > 1)) return nullptr;
  const ClipKernels& k = clip_kernels();
  switch (rows.dtype) {
    case DType::bf16:
      return &k.bf16;
    case DType::f32:
      return &k.f32;
    case DType::f64:
      return &k.f64;
    case DType::f16:
      return nullptr;
  }
  return nullptr;
}

inline const void* direct_row(const Rows& rows, int64_t run, int64_t row, int64_t first) {
  const int64_t size = rows.dtype == DType::f64 ? 8 : rows.dtype == DType::f32 ? 4 : 2;
  return static_cast<const char*>(rows.data) + size * (run * rows.run_stride + row * rows.row_stride + first);
}

// Up to kPanelRows rows of one run, by number, at most kTile columns each.
struct Panel {
  const ClipLoops* loops = nullptr;
  const void* row[kPanelRows] = {};

  // `buffer` has room for kPanelRows·kTile; it is touched only where rows must be widened.
  Panel(const Rows& rows, int64_t run, const int64_t* numbers, int64_t num_rows, int64_t first, int64_t count,
        double* buffer)
      : loops(direct_loops(rows)) {
    const bool direct = loops != nullptr;
    if (!direct) loops = &clip_kernels().f64;
    for (int64_t r = 0; r < num_rows; ++r) {
      if (!direct) load_tile(rows, run, numbers[r], first, count, buffer + r * kTile);
      row[r] = direct ? direct_row(rows, run, numbers[r], first) : buffer + r * kTile;
    }
  }
};

}  // namespace leakcore
