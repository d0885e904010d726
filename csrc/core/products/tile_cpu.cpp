#include "core/products/tile.h"

#include <algorithm>

#include "core/simd/half.h"

namespace leakcore {
namespace {

// visit(pointer to first element, stride, count) over the runs of equal stride that make up columns [first, first +
// count).
template <class T, class Visit>
void runs(const Rows& rows, int64_t run, int64_t row, int64_t first, int64_t count, Visit&& visit) {
  T* base = static_cast<T*>(rows.data) + run * rows.run_stride + row * rows.row_stride;
  if (rows.ndim <= 1) {
    const int64_t stride = rows.ndim ? rows.stride[0] : 1;
    visit(base + first * stride, stride, count);
    return;
  }
  const int last = rows.ndim - 1;
  while (count > 0) {
    int64_t rest = first;
    const int64_t inner = rest % rows.size[last];
    rest /= rows.size[last];
    T* start = base + inner * rows.stride[last];
    for (int k = last - 1; k >= 0; --k) {
      start += rest % rows.size[k] * rows.stride[k];
      rest /= rows.size[k];
    }
    const int64_t here = std::min(count, rows.size[last] - inner);
    visit(start, rows.stride[last], here);
    first += here;
    count -= here;
  }
}

template <class T, class Out>
void load(const Rows& rows, int64_t run, int64_t row, int64_t first, int64_t count, Out* out) {
  runs<const T>(rows, run, row, first, count, [&](const T* in, int64_t stride, int64_t n) {
    if (stride == 1) {
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Out>(widen(in[i]));
    } else {
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Out>(widen(in[i * stride]));
    }
    out += n;
  });
}

template <class T>
void store(const Rows& rows, int64_t run, int64_t row, int64_t first, int64_t count, const double* in) {
  runs<T>(rows, run, row, first, count, [&](T* out, int64_t stride, int64_t n) {
    if (stride == 1) {
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(in[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) out[i * stride] = static_cast<T>(in[i]);
    }
    in += n;
  });
}

template <class Out>
void load_any(const Rows& rows, int64_t run, int64_t row, int64_t first, int64_t count, Out* out) {
  switch (rows.dtype) {
    case DType::f16:
      return load<Half>(rows, run, row, first, count, out);
    case DType::bf16:
      return load<Brain>(rows, run, row, first, count, out);
    case DType::f32:
      return load<float>(rows, run, row, first, count, out);
    case DType::f64:
      return load<double>(rows, run, row, first, count, out);
  }
}

}  // namespace

void load_tile(const Rows& rows, int64_t run, int64_t row, int64_t first, int64_t count, double* out) {
  load_any(rows, run, row, first, count, out);
}
void load_tile(const Rows& rows, int64_t run, int64_t row, int64_t first, int64_t count, float* out) {
  load_any(rows, run, row, first, count, out);
}
void load_tile(const Rows& rows, int64_t run, int64_t row, int64_t first, int64_t count, uint16_t* out) {
  runs<const uint16_t>(rows, run, row, first, count, [&](const uint16_t* in, int64_t stride, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = in[i * stride];
    out += n;
  });
}

void store_tile(const Rows& rows, int64_t run, int64_t row, int64_t first, int64_t count, const double* in) {
  if (rows.dtype == DType::f32) {
    store<float>(rows, run, row, first, count, in);
  } else {
    store<double>(rows, run, row, first, count, in);
  }
}

}  // namespace leakcore
