#include "bindings/arrays.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/call.h"

namespace py = pybind11;

namespace leakcore {
namespace {

using Numbers = std::vector<int64_t>;

// By the buffer protocol, which is faster than __array_interface__.
std::unique_ptr<Py_buffer, void (*)(Py_buffer*)> layout(const py::buffer& array, Py_buffer* buffer) {
  if (PyObject_GetBuffer(array.ptr(), buffer, PyBUF_STRIDES) != 0) throw py::error_already_set();
  return {buffer, PyBuffer_Release};
}

// Where an array's first element lies.
uint64_t address(const py::buffer& array) {
  Py_buffer buffer;
  const auto release = layout(array, &buffer);
  return reinterpret_cast<uint64_t>(buffer.buf);  // NOLINT: as pointer()
}

// Neighbouring dimensions that lie in line as one; none left for a single element.
std::pair<Numbers, Numbers> merge(const Numbers& sizes, const Numbers& strides) {
  if (sizes.size() != strides.size()) throw py::value_error("sizes and strides differ in length");
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return {{0}, {1}};
  Numbers out_sizes, out_strides;
  for (size_t k = 0; k < sizes.size(); ++k) {
    if (sizes[k] == 1) continue;
    if (!out_sizes.empty() && out_strides.back() == strides[k] * sizes[k]) {
      out_sizes.back() *= sizes[k];
      out_strides.back() = strides[k];
    } else {
      out_sizes.push_back(sizes[k]);
      out_strides.push_back(strides[k]);
    }
  }
  return {out_sizes, out_strides};
}

// Inner dimensions are merged where they lie in line; an error if more than kMaxDims are left.
Rows with_dimensions(Rows rows, const Numbers& inner_sizes, const Numbers& inner_strides) {
  const auto [sizes, strides] = merge(inner_sizes, inner_strides);
  if (sizes.size() > static_cast<size_t>(kMaxDims)) {
    throw py::value_error("more than " + std::to_string(kMaxDims) +
                          " dimensions that do not lie in line: pass a contiguous copy");
  }
  rows.ndim = static_cast<int32_t>(sizes.size());
  rows.numel = 1;
  for (size_t k = 0; k < sizes.size(); ++k) {
    rows.size[k] = sizes[k];
    rows.stride[k] = strides[k];
    rows.numel *= sizes[k];
  }
  return rows;
}

// Of an array whose first dimensions are runs and rows, where it has them, and whose others make up the columns.
Rows rows_of(const py::buffer& array, int32_t dtype, bool runs, bool rows) {
  Py_buffer buffer;
  const auto release = layout(array, &buffer);
  const int lead = static_cast<int>(runs) + static_cast<int>(rows);
  if (buffer.ndim < lead) throw py::value_error("an array has fewer dimensions than runs and rows");
  Numbers strides;
  for (int k = 0; k < buffer.ndim; ++k) strides.push_back(buffer.strides[k] / buffer.itemsize);
  Rows result;
  result.data = buffer.buf;
  result.dtype = static_cast<DType>(dtype);
  result.run_stride = runs ? strides[0] : 0;
  result.row_stride = rows ? strides[static_cast<size_t>(lead - 1)] : 0;
  return with_dimensions(result, {buffer.shape + lead, buffer.shape + buffer.ndim},
                         {strides.begin() + lead, strides.end()});
}

// By strides in elements, with one inner dimension.
struct RowsByStride : Rows {
  int64_t columns, column_stride;
};

py::object rows_by_stride(RowsByStride& fields) {
  return py::cast(with_dimensions(fields, {fields.columns}, {fields.column_stride}));
}

// Less the first `runs` runs.
Rows after(Rows rows, int64_t runs) {
  rows.data = static_cast<char*>(rows.data) + runs * rows.run_stride * size_of(rows.dtype);
  return rows;
}

Place on_cuda(int32_t device, uint64_t stream, py::object scratch) {
  return {{DeviceType::cuda, device, pointer<void>(stream)}, std::move(scratch)};
}

Schedule schedule_of(int num_threads, int64_t chunk) {
  return {num_threads, chunk};
}

}  // namespace

void bind_arrays(py::module_& m) {
  using py::arg;
  m.def("address", &address);
  m.def("merge", &merge);
  py::class_<Rows> rows_class(m, "Rows");
  rows_class.def_static("of", &rows_of).def("after", &after, arg("runs"));
  Call<RowsByStride>::define(rows_class, "by_stride", rows_by_stride,
                             {
                                 LEAKCORE_FIELD(RowsByStride, data),
                                 LEAKCORE_FIELD(RowsByStride, dtype),
                                 LEAKCORE_FIELD(RowsByStride, run_stride),
                                 LEAKCORE_FIELD(RowsByStride, row_stride),
                                 LEAKCORE_FIELD(RowsByStride, columns),
                                 LEAKCORE_FIELD(RowsByStride, column_stride),
                             });
  py::class_<Place>(m, "Place")
      .def_static("cpu", [] { return Place(); })
      .def_static("cuda", &on_cuda, py::kw_only(), arg("device"), arg("stream"), arg("scratch"))
      .def_readonly("scratch", &Place::scratch);
  py::class_<Schedule>(m, "Schedule")
      .def_static("of", &schedule_of, py::kw_only(), arg("num_threads"), arg("chunk"))
      .def_readonly("num_threads", &Schedule::num_threads)
      .def_readonly("chunk", &Schedule::chunk);
}

}  // namespace leakcore
