// What every function of the table does: refuse what is out of range, choose the device, turn errors into a status.
#pragma once

#include <cmath>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <limits>
#include <new>

#include "core/runtime/array.h"
#include "core/runtime/status.h"
#include "leakcore/kernels.h"

namespace leakcore::c_table {

constexpr int64_t kMostDraws = int64_t{1} << 34;  // four to a 32-bit draw block
constexpr int kMostThreads = 4096;

inline leakcore_status refuse(const char* message) {
  return {LEAKCORE_BAD_ARGUMENT, -1, message};
}

// The first complaint of several, NULL if there is none.
inline const char* first(std::initializer_list<const char*> complaints) {
  for (const char* complaint : complaints) {
    if (complaint != nullptr) return complaint;
  }
  return nullptr;
}

inline const char* unless(bool holds, const char* complaint) {
  return holds ? nullptr : complaint;
}

inline bool finite_from_zero(double value) {
  return value >= 0.0 && !std::isinf(value);
}

inline bool positive(double value) {
  return value > 0.0 && !std::isinf(value);
}

inline const char* check_place(const leakcore_place& place) {
  if (place.cuda == 0)
    return unless(place.threads >= 1 && place.threads <= kMostThreads, "`threads` must be in [1, 4096]");
  return first({unless(place.cuda == 1, "`cuda` must be 0 or 1"),
                unless(place.device >= 0, "`device` must be at least 0"),
                unless(place.allocate != nullptr, "`allocate` must not be NULL on a device")});
}

inline bool is_type(int32_t dtype) {
  return dtype >= LEAKCORE_FLOAT16 && dtype <= LEAKCORE_FLOAT64;
}

inline bool is_wide(int32_t dtype) {
  return dtype == LEAKCORE_FLOAT32 || dtype == LEAKCORE_FLOAT64;
}

inline Rows rows_of(const leakcore_rows& rows) {
  Rows out;
  out.data = rows.data;
  out.dtype = static_cast<DType>(rows.dtype);
  out.ndim = 1;
  out.run_stride = rows.run_stride;
  out.row_stride = rows.row_stride;
  out.numel = out.size[0] = rows.columns;
  out.stride[0] = rows.column_stride;
  return out;
}

// Whether an array of these sizes has elements. Products of sizes could leave 64 bits.
template <class... Sizes>
bool any(Sizes... sizes) {
  return ((sizes > 0) && ...);
}

// Whether the rows are there, if there are any.
template <class... Sizes>
bool present(const leakcore_rows& rows, Sizes... sizes) {
  return rows.data != nullptr || !any(rows.columns, sizes...);
}

inline leakcore_status status_of(const Status& status, const char* non_finite) {
  switch (status.code) {
    case Code::ok:
      return {LEAKCORE_OK, -1, ""};
    case Code::non_finite:
      return {LEAKCORE_NON_FINITE, status.index, non_finite};
    case Code::no_cuda_build:
      return {LEAKCORE_NO_CUDA, -1, "this leakcore was built without CUDA"};
    case Code::captured:
    case Code::cuda_error:
      break;
  }
  return {LEAKCORE_CUDA_ERROR, -1, status.detail};
}

// Place and schedule into the kernel's arguments, and the call on the CPU or the device.
template <class Args>
leakcore_status run(Args& args, const leakcore_place& place, Status (*cpu)(const Args&), Status (*cuda)(const Args&),
                    int64_t (*cuda_scratch)(const Args&), const char* non_finite = "") {
  try {
    args.schedule.num_threads = place.threads;
    if (place.cuda == 0) return status_of(cpu(args), non_finite);
    args.device = {DeviceType::cuda, place.device, place.stream};
    if (const int64_t bytes = cuda_scratch(args); bytes > 0) {
      args.scratch = place.allocate(place.context, bytes);
      if (args.scratch == nullptr) return {LEAKCORE_OUT_OF_MEMORY, -1, "`allocate` gave no memory"};
    }
    return status_of(cuda(args), non_finite);
  } catch (const std::bad_alloc&) {
    return {LEAKCORE_OUT_OF_MEMORY, -1, "out of memory"};
  } catch (const std::exception&) {
    return {LEAKCORE_CUDA_ERROR, -1, "the kernel failed"};
  }
}

}  // namespace leakcore::c_table
