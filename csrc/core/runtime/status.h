// How native code says no: a code, the kernel's name and the place. Kernels never print, exit or know Python;
// module.cpp turns a status into an exception.
#pragma once

#include <cstdint>

namespace leakcore {

enum class Code : int32_t {
  ok = 0,
  non_finite,     // row `index` of the input has a non-finite norm, or entry `index` of what `detail` names is none
  no_cuda_build,  // CUDA memory was passed, but this build has no CUDA kernels
  captured,       // the stream is being captured into a CUDA graph; `detail` says so
  cuda_error,     // a launch failed; `detail` is the runtime's message
};

constexpr const char* kCaptured =
    "the stream is being captured into a CUDA graph, which would replay one call's random numbers and tables; call "
    "outside the capture";

struct Status {
  Code code = Code::ok;
  const char* kernel = "";
  const char* detail = "";
  int64_t index = -1;

  bool ok() const { return code == Code::ok; }
};

}  // namespace leakcore
