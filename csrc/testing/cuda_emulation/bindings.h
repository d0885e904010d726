// What the emulated build of the module has beyond the shipped one.
#pragma once

#include <pybind11/pybind11.h>

namespace leakcore {

void bind_emulation(pybind11::module_& m);

}  // namespace leakcore
