#include "testing/cuda_emulation/bindings.h"

#include <string>

#include "bindings/arrays.h"
#include "bindings/kernels.h"
#include "testing/cuda_emulation/selfcheck.h"

namespace leakcore {

void bind_emulation(pybind11::module_& m) {
  m.attr("emulated") = true;
  m.def("emulation_schedule", [](uint64_t number) { emulation::set_schedule(number); });
  m.def("emulation_capture", [](bool now) { emulation::set_captured(now); });
  m.def("emulation_check", [](const std::string& kernel, uint64_t data, int64_t count) {
    return outcome(emulation_check(kernel, pointer<double>(data), count));
  });
}

}  // namespace leakcore
