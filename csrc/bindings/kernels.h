// The kernels as functions of keyword arguments.
#pragma once

#include <pybind11/pybind11.h>

#include "core/runtime/status.h"

namespace leakcore {

// None; of input that is not finite (index, detail), which Python words with the argument's name; an exception for all
// else.
pybind11::object outcome(const Status& status);

void bind_kernels(pybind11::module_& m);
void bind_ensemble(pybind11::module_& m);

}  // namespace leakcore
