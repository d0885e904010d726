// A native call: keyword arguments, all of them required, become the fields of a struct by a table of their names.
// pybind11 would do it in several times the time, which calls on small arrays notice.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/arrays.h"

namespace leakcore {

inline void read(pybind11::handle value, double* field) {
  *field = PyFloat_AsDouble(value.ptr());
}
inline void read(pybind11::handle value, int32_t* field) {
  *field = static_cast<int32_t>(PyLong_AsLongLong(value.ptr()));
}
inline void read(pybind11::handle value, bool* field) {
  *field = PyObject_IsTrue(value.ptr()) == 1;
}
inline void read(pybind11::handle value, int64_t* field) {
  *field = PyLong_AsLongLong(value.ptr());
}
inline void read(pybind11::handle value, uint64_t* field) {
  *field = PyLong_AsUnsignedLongLong(value.ptr());
}
inline void read(pybind11::handle value, uint32_t* field) {
  *field = static_cast<uint32_t>(PyLong_AsUnsignedLongLong(value.ptr()));
}
template <class T>
void read(pybind11::handle address, T** field) {
  *field = pointer<T>(PyLong_AsUnsignedLongLong(address.ptr()));
}
inline void read(pybind11::handle value, pybind11::handle* field) {
  *field = value;
}
// An enumeration's number, or a struct that Python got from another call.
template <class T>
void read(pybind11::handle value, T* field) {
  if constexpr (std::is_enum_v<T>) {
    *field = static_cast<T>(PyLong_AsLongLong(value.ptr()));
  } else {
    *field = value.cast<const T&>();
  }
}
template <class T>
void read(pybind11::handle list, std::vector<T>* field) {
  const Py_ssize_t count = PyList_Size(list.ptr());
  for (Py_ssize_t i = 0; i < count; ++i) {
    T item;
    read(PyList_GET_ITEM(list.ptr(), i), &item);
    field->push_back(item);
  }
}

template <class Args>
struct Field {
  const char* name;
  void (*read)(Args& args, pybind11::handle value);
};

template <class Args, auto Member>
Field<Args> field(const char* name) {
  return {name, [](Args& args, pybind11::handle value) { read(value, &(args.*Member)); }};
}

// A field whose name in Python is that in the struct.
#define LEAKCORE_FIELD(Args, name) ::leakcore::field<Args, &Args::name>(#name)

template <class Args>
class Call {
 public:
  using Run = pybind11::object (*)(Args& args);

  // As a function of a module, or a static one of a class; for the life of the process.
  static void define(pybind11::object& owner, const char* name, Run run, std::vector<Field<Args>> fields) {
    auto* const call = new Call(name, run, std::move(fields));
    const pybind11::capsule self(call, [](void*) {});
    owner.attr(name) =
        pybind11::reinterpret_steal<pybind11::object>(PyCFunction_NewEx(&call->method_, self.ptr(), nullptr));
  }

 private:
  Call(const char* name, Run run, std::vector<Field<Args>> fields)
      : run_(run),
        fields_(std::move(fields)),
        method_{name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&Call::enter)),
                METH_FASTCALL | METH_KEYWORDS, nullptr} {
    for (const Field<Args>& f : fields_) names_.push_back(PyUnicode_InternFromString(f.name));
  }

  static PyObject* enter(PyObject* self, PyObject* const* values, Py_ssize_t positional, PyObject* names) {
    try {
      const auto* const call = static_cast<const Call*>(PyCapsule_GetPointer(self, nullptr));
      return call->convert(values, positional, names).release().ptr();
    } catch (pybind11::error_already_set& error) {
      error.restore();
    } catch (const pybind11::builtin_exception& error) {
      error.set_error();
    } catch (const std::bad_alloc&) {
      PyErr_NoMemory();
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
  }

  pybind11::object convert(PyObject* const* values, Py_ssize_t positional, PyObject* names) const {
    const Py_ssize_t count = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    if (positional != 0 || count != static_cast<Py_ssize_t>(fields_.size())) return refuse("takes its fields by name");
    Args args;
    for (Py_ssize_t i = 0; i < count; ++i) {
      const size_t at = place_of(PyTuple_GET_ITEM(names, i), static_cast<size_t>(i));
      if (at == fields_.size()) return refuse("has no such field");
      fields_[at].read(args, values[i]);
      if (PyErr_Occurred() != nullptr) throw pybind11::error_already_set();
    }
    return run_(args);
  }

  // Callers name the fields in the table's order, by strings that Python keeps once: two pointers agree at once. As
  // many different names as fields, all of them known, are all fields.
  size_t place_of(PyObject* name, size_t guess) const {
    if (names_[guess] == name) return guess;
    for (size_t k = 0; k < names_.size(); ++k) {
      if (names_[k] == name || PyUnicode_Compare(names_[k], name) == 0) return k;
    }
    return names_.size();
  }

  pybind11::object refuse(const char* why) const {
    std::string text = std::string(method_.ml_name) + " " + why + "; it has";
    for (const Field<Args>& f : fields_) text += std::string(" ") + f.name;
    throw pybind11::type_error(text);
  }

  Run run_;
  std::vector<Field<Args>> fields_;
  std::vector<PyObject*> names_;
  PyMethodDef method_;
};

}  // namespace leakcore
