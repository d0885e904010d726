// What a kernel sees of an array: pointer, element type, sizes and *element* strides (64 bits throughout, negative ones
// included), and on which device and stream. Validation happened in Python, once.
#pragma once

#include <cstdint>

namespace leakcore {

enum class DType : int32_t { f16 = 0, bf16 = 1, f32 = 2, f64 = 3 };

// Bytes of an element.
inline int64_t size_of(DType dtype) {
  return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2;
}

enum class DeviceType : int32_t { cpu = 0, cuda = 1 };

struct Device {
  DeviceType type = DeviceType::cpu;
  int32_t index = 0;
  void* stream = nullptr;
};

constexpr int kMaxDims = 6;

// A stack of rows: element (run, row, i_1 … i_ndim) sits at run·run_stride + row·row_stride + Σ i_k·stride[k]. The
// inner dimensions are flattened, last one fastest, into `numel` columns; Python has already merged those that lie in
// line.
struct Rows {
  void* data = nullptr;
  DType dtype = DType::f64;
  int32_t ndim = 0;
  int64_t run_stride = 0;
  int64_t row_stride = 0;
  int64_t numel = 0;
  int64_t size[kMaxDims] = {};
  int64_t stride[kMaxDims] = {};
};

// How to run, never what to compute: no result depends on it.
struct Schedule {
  int num_threads = 1;
  int64_t chunk = 0;  // work items a worker takes at a time; 0 lets the kernel choose
};

}  // namespace leakcore
