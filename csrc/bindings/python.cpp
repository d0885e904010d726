// The module leakcore._C: what the core says of itself and checks in itself, and the kernels, which have files of their
// own. Python has validated everything; what is checked again here is only what would crash.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdlib>
#include <string>

#include "bindings/arrays.h"
#include "bindings/kernels.h"
#include "bindings/released.h"
#include "bindings/selftest.h"
#include "c_table/table.h"
#include "core/products/exact_sum.h"
#include "core/rng/philox.h"
#include "core/rng/streams.h"
#include "core/runtime/device.h"
#include "core/simd/elementary_simd.h"
#include "core/simd/isa.h"
#include "leakcore_build.h"
#ifdef LEAKCORE_EMULATION
#include "testing/cuda_emulation/bindings.h"
#endif

namespace py = pybind11;
using namespace leakcore;

namespace {

// What os.environ holds (it hands every change on to the C library), read faster.
py::object environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return py::none();
  return py::reinterpret_steal<py::object>(PyUnicode_DecodeFSDefault(value));
}

py::tuple philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  const Words out = philox4x32_10(c[0], c[1], c[2], c[3], k[0], k[1]);
  return py::make_tuple(out.w[0], out.w[1], out.w[2], out.w[3]);
}

void elementary(const std::string& name, uint64_t in, uint64_t out, int64_t count) {
  int function = 0;
  for (const char* known : kElementaryNames) {
    if (name == known) {
      return LEAKCORE_TIERED(elementary_loops)
          .apply(static_cast<Elementary>(function), pointer<const double>(in), pointer<double>(out), count);
    }
    ++function;
  }
  throw py::value_error("no elementary function is called " + name);
}

py::dict build_info() {
  py::dict info;
  info["version"] = LEAKCORE_VERSION;
  info["compiler"] = LEAKCORE_COMPILER;
  info["simd"] = tier_name(tier());
  info["simd_available"] = available_tiers();
  info["cuda"] = static_cast<bool>(LEAKCORE_WITH_CUDA);
  info["cuda_archs"] = LEAKCORE_CUDA_ARCHS;
  Devices devices;
  {
    const Released released;
    devices = cuda_devices();
  }
  py::list listed;
  for (const DeviceInfo& d : devices.all) {
    py::dict entry;
    entry["name"] = d.name;
    entry["compute_capability"] = std::to_string(d.major) + "." + std::to_string(d.minor);
    entry["memory_bytes"] = d.memory;
    listed.append(entry);
  }
  info["devices"] = listed;
  info["device_message"] = devices.message;
  return info;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "leakcore's native core. Private: use leakcore.kernels, which validates.";
  m.attr("kernels") = py::capsule(&kernel_table(), LEAKCORE_KERNELS_CAPSULE);
  m.attr("with_cuda") = static_cast<bool>(LEAKCORE_WITH_CUDA);
  m.attr("sum_digits") = kSumDigits;
  m.attr("streams") = py::dict(py::arg("mixture") = static_cast<uint32_t>(Purpose::mixture),
                               py::arg("clip_noise") = static_cast<uint32_t>(Purpose::clip_noise),
                               py::arg("mixture_pick") = static_cast<uint32_t>(Purpose::mixture_pick),
                               py::arg("mixture_one") = static_cast<uint32_t>(Purpose::mixture_one),
                               py::arg("mixture_one_pick") = static_cast<uint32_t>(Purpose::mixture_one_pick),
                               py::arg("allocation") = static_cast<uint32_t>(Purpose::allocation),
                               py::arg("allocation_pick") = static_cast<uint32_t>(Purpose::allocation_pick));
  bind_arrays(m);
  bind_kernels(m);
  bind_ensemble(m);
  m.def("environment", &environment);
  m.def("philox4x32", &philox);
  m.def("elementary", &elementary);
  m.def("selftest", &selftest);
  m.def("chunk_dependent_sum", [](uint64_t x, int64_t count, int64_t chunk, int threads) {
    return chunk_dependent_sum(pointer<const double>(x), count, chunk, threads);
  });
  m.def("build_info", &build_info);
  m.def("require_stream", [](int32_t device, uint64_t stream) {
    outcome(stream_status({DeviceType::cuda, device, pointer<void>(stream)}));
  });
#ifdef LEAKCORE_EMULATION
  bind_emulation(m);
#endif
}
