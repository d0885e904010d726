// Rows of any layout and element type on the device, a pack of neighbouring columns per thread: one 16-byte load (two
// for float64) where alignment allows, else element by element. Values do not depend on which.
#pragma once

#include "core/runtime/array.h"
#include "core/runtime/launch.cuh"
#include "core/simd/arith.h"
#include "core/simd/half.h"

namespace leakcore {

constexpr int kWarp = 32;
constexpr unsigned kFullWarp = 0xffffffffu;

struct HalfElement {
  using Raw = uint16_t;
  static constexpr int kPack = 8;
  static LEAKCORE_HD double widen(Raw x) { return float_of_half(x); }
};
struct BrainElement {
  using Raw = uint16_t;
  static constexpr int kPack = 8;
  static LEAKCORE_HD double widen(Raw x) { return float_of_brain(x); }
};
struct FloatElement {
  using Raw = float;
  static constexpr int kPack = 4;
  static LEAKCORE_HD double widen(Raw x) { return x; }
};
struct DoubleElement {
  using Raw = double;
  static constexpr int kPack = 4;
  static LEAKCORE_HD double widen(Raw x) { return x; }
};

// visit(Element{}) for the element type that `dtype` names.
template <class Visit>
auto with_element(DType dtype, Visit&& visit) {
  switch (dtype) {
    case DType::f16:
      return visit(HalfElement{});
    case DType::bf16:
      return visit(BrainElement{});
    case DType::f32:
      return visit(FloatElement{});
    case DType::f64:
      break;
  }
  return visit(DoubleElement{});
}

// Whether every row starts on 16 bytes and runs on from there.
inline bool aligned_rows(const Rows& rows) {
  if (rows.ndim > 1 || (rows.ndim == 1 && rows.stride[0] != 1)) return false;
  const int64_t size = size_of(rows.dtype);
  return reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.row_stride * size % 16 == 0 &&
         rows.run_stride * size % 16 == 0;
}

LEAKCORE_HD int64_t row_offset(const Rows& rows, int64_t run, int64_t row) {
  return run * rows.run_stride + row * rows.row_stride;
}

LEAKCORE_HD int64_t column_offset(const Rows& rows, int64_t column) {
  if (rows.ndim == 0) return 0;
  int64_t offset = 0;
  for (int k = rows.ndim - 1; k > 0; --k) {
    offset += column % rows.size[k] * rows.stride[k];
    column /= rows.size[k];
  }
  return offset + column * rows.stride[0];
}

template <class E>
struct alignas(16) Packet {
  typename E::Raw raw[E::kPack];

  LEAKCORE_HD double value(int k) const { return E::widen(raw[k]); }
};

// load_pack where columns do not lie in line. Not inlined: divisions of 64 bits are a hundred instructions each.
template <class E>
__device__ __noinline__ Packet<E> load_scattered(const Rows& rows, int64_t offset, int64_t column, int64_t end) {
  const typename E::Raw* base = static_cast<const typename E::Raw*>(rows.data) + offset;
  Packet<E> pack;
  for (int k = 0; k < E::kPack; ++k) {
    pack.raw[k] = typename E::Raw{};
    if (column + k < end) pack.raw[k] = base[column_offset(rows, column + k)];
  }
  return pack;
}

// From 16 aligned bytes (32 in float64).
template <class E>
__device__ __forceinline__ Packet<E> load_aligned(const typename E::Raw* from) {
  constexpr int kLoads = static_cast<int>(sizeof(Packet<E>) / 16);
  uint4 words[kLoads];
  for (int k = 0; k < kLoads; ++k) words[k] = reinterpret_cast<const uint4*>(from)[k];
  Packet<E> pack;
  memcpy(&pack, words, sizeof pack);
  return pack;
}

// Columns [column, column + kPack) of the row at `offset`; those from `end` on are zero. column is a multiple of kPack.
template <class E>
__device__ __forceinline__ Packet<E> load_packet(const Rows& rows, bool aligned, int64_t offset, int64_t column,
                                                 int64_t end) {
  const typename E::Raw* base = static_cast<const typename E::Raw*>(rows.data) + offset;
  if (aligned && column + E::kPack <= end) return load_aligned<E>(base + column);
  if (rows.ndim > 1) return load_scattered<E>(rows, offset, column, end);
  Packet<E> pack;
  const int64_t stride = rows.ndim == 0 ? 0 : rows.stride[0];
  for (int k = 0; k < E::kPack; ++k) {
    pack.raw[k] = typename E::Raw{};
    if (column + k < end) pack.raw[k] = base[(column + k) * stride];
  }
  return pack;
}

// One element of a type known only at run time.
LEAKCORE_HD double load_element(const Rows& rows, int64_t offset) {
  switch (rows.dtype) {
    case DType::f16:
      return float_of_half(static_cast<const uint16_t*>(rows.data)[offset]);
    case DType::bf16:
      return float_of_brain(static_cast<const uint16_t*>(rows.data)[offset]);
    case DType::f32:
      return static_cast<const float*>(rows.data)[offset];
    case DType::f64:
      break;
  }
  return static_cast<const double*>(rows.data)[offset];
}

// Rounds once; float32 and float64 only.
LEAKCORE_HD void store_element(const Rows& rows, int64_t offset, double x) {
  if (rows.dtype == DType::f32) {
    static_cast<float*>(rows.data)[offset] = static_cast<float>(x);
  } else {
    static_cast<double*>(rows.data)[offset] = x;
  }
}

// The same sum in every lane, its shape fixed.
__device__ inline double warp_sum(double x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kFullWarp, x, step);
  return x;
}

// min(1, C/‖g‖), and 1 for a zero gradient; NaN where the norm is not finite (∞ − ∞ and NaN − NaN are NaN).
LEAKCORE_HD double device_clip_factor(double max_grad_norm, double norm) {
  if (!(norm - norm == 0.0)) return norm - norm;
  return norm > max_grad_norm ? max_grad_norm / norm : 1.0;
}

// A power of two by which a row is scaled when its sum of squares left the range of a double.
LEAKCORE_HD double norm_scale(double squares) {
  if (squares > 1e-280 && squares < 1e300) return 1.0;
  return squares <= 1e-280 ? 0x1p600 : 0x1p-600;
}

// Likewise for elements E. Squares of narrower types than double stay in its range: a sum that is 0, infinite or NaN is
// just that, and need not be formed again.
template <class E>
LEAKCORE_HD double norm_scale_of(double squares) {
  if constexpr (sizeof(typename E::Raw) == 8) return norm_scale(squares);
  return 1.0;
}

// A grid-stride loop's grid: enough blocks for `items` of `per_block` each.
inline unsigned grid_for(int64_t items, int64_t per_block) {
  const int64_t blocks = (items + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < (int64_t{1} << 30) ? blocks : int64_t{1} << 30);
}

}  // namespace leakcore
