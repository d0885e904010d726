// What this build and this machine have of CUDA: asked by `build_info` and `leakcore doctor`, used by no kernel.
#pragma once

#include <string>
#include <vector>

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

#if LEAKCORE_WITH_CUDA
Devices cuda_devices();
#else
inline Devices cuda_devices() {
  return {{}, "this build has no CUDA kernels"};
}
#endif

}  // namespace leakcore
