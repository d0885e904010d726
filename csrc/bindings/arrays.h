// What every kernel takes from Python, as structs whose fields have names there too: the rows of an array, where they
// lie, and how many threads may work. Addresses cross the language border as integers.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "core/runtime/array.h"

namespace leakcore {

template <class T>
T* pointer(uint64_t address) {
  return reinterpret_cast<T*>(address);  // NOLINT: an integer is what Python has
}

// A device and its stream, and who allocates scratch there: bytes -> address; None on the CPU.
struct Place {
  Device device;
  pybind11::object scratch = pybind11::none();
};

// Rows, Place, Schedule; address and merge. Functions make the objects, not Python's constructors, through whose frames
// no exception may pass: memory can run out.
void bind_arrays(pybind11::module_& m);

}  // namespace leakcore
