// The GIL given up for a scope. Where a daemon thread wants it back from an interpreter that is ending, Python before
// 3.14 unwinds the thread, through destructors that must not throw or need the GIL: the process would abort. Such a
// thread waits for the process's end instead, as Python has it from 3.14 on.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <thread>

namespace leakcore {

class Released {
 public:
  Released() : state_(PyEval_SaveThread()) {}
  ~Released() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace leakcore
