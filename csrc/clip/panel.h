// Rows as the loops of clip_simd want them: in place where their columns are contiguous, else in a buffer. Elements of
// 16 bits stay as they are, others are widened. Results do not depend on the layout: float32 is added in double.
#pragma once

#include <cstdint>

#include "clip/clip_simd.h"
#include "core/products/tile.h"
#include "core/runtime/array.h"
#include "core/simd/isa.h"

namespace leakcore {

// Columns of a strided row that are copied at a time, a multiple of 64, and rows side by side: neighbours of a
// transposed array share cache lines.
constexpr int64_t kStripe = 1024;
constexpr int64_t kPanelRows = 16;

inline bool in_place(const Rows& rows) {
  return rows.ndim == 0 || (rows.ndim == 1 && (rows.stride[0] == 1 || rows.numel <= 1));
}

// The loops for rows that lie in place.
inline const ClipLoops& loops_of(DType dtype) {
  const ClipKernels& k = LEAKCORE_TIERED(clip_kernels);
  switch (dtype) {
    case DType::f16:
      return k.f16;
    case DType::bf16:
      return k.bf16;
    case DType::f32:
      return k.f32;
    case DType::f64:
      return k.f64;
  }
  return k.f64;
}

inline const void* row_in_place(const Rows& rows, int64_t run, int64_t row, int64_t first) {
  return static_cast<const char*>(rows.data) +
         size_of(rows.dtype) * (run * rows.run_stride + row * rows.row_stride + first);
}

// body(loops, pointers, offset, count): columns [first, first + count) of up to kPanelRows rows, by number, whole where
// they lie in place, else stripe by stripe from `buffer`, which has room for num_rows·Stripe.
template <int64_t Stripe = kStripe, class Real, class Body>
void for_stripes(const Rows& rows, int64_t run, const int64_t* numbers, int64_t num_rows, int64_t first, int64_t count,
                 Real* buffer, Body&& body) {
  const void* pointers[kPanelRows];
  if (in_place(rows)) {
    for (int64_t r = 0; r < num_rows; ++r) pointers[r] = row_in_place(rows, run, numbers[r], first);
    body(loops_of(rows.dtype), pointers, int64_t{0}, count);
    return;
  }
  const auto body_of = [&](const ClipLoops& loops, auto* copies) {
    for (int64_t r = 0; r < num_rows; ++r) pointers[r] = copies + r * Stripe;
    for (int64_t offset = 0; offset < count; offset += Stripe) {
      const int64_t here = count - offset < Stripe ? count - offset : Stripe;
      for (int64_t r = 0; r < num_rows; ++r) {
        load_tile(rows, run, numbers[r], first + offset, here, copies + r * Stripe);
      }
      body(loops, pointers, offset, here);
    }
  };
  if (size_of(rows.dtype) == 2) return body_of(loops_of(rows.dtype), reinterpret_cast<uint16_t*>(buffer));
  body_of(loops_of(sizeof(Real) == 8 ? DType::f64 : DType::f32), buffer);
}

}  // namespace leakcore
