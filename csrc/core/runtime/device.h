// What this build and this machine have of CUDA, asked by `build_info` and `leakcore doctor`; and of a stream, asked by
// Python before a call. Used by no kernel.
#pragma once

#include <string>
#include <vector>

#include "core/runtime/array.h"
#include "core/runtime/status.h"

namespace leakcore {

struct DeviceInfo {
  std::string name;
  int major = 0, minor = 0;
  long long memory = 0;
};

// Devices, and why there are none. Never throws: a machine without a driver is an answer, not an error.
struct Devices {
  std::vector<DeviceInfo> all;
  std::string message;
};

// What kernels will say of the stream, before the caller gives it any work of its own.
#if LEAKCORE_WITH_CUDA
Devices cuda_devices();
Status stream_status(const Device& device);
#else
inline Status stream_status(const Device&) {
  return {};
}
inline Devices cuda_devices() {
  return {{}, "this build has no CUDA kernels"};
}
#endif

}  // namespace leakcore
