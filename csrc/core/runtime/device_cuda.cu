#include "core/runtime/device.h"
#include "core/runtime/launch.cuh"

namespace leakcore {

Devices cuda_devices() {
  Devices out;
  int driver = 0, runtime = 0, count = 0;
  cudaRuntimeGetVersion(&runtime);
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    out.message = "no NVIDIA driver (libcuda.so.1) on this machine";
    return out;
  }
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    out.message = cudaGetErrorString(error);
    if (error == cudaErrorInsufficientDriver) {
      out.message += " (driver for CUDA " + std::to_string(driver / 1000) + "." + std::to_string(driver % 1000 / 10) +
                     ", built with " + std::to_string(runtime / 1000) + "." + std::to_string(runtime % 1000 / 10) + ")";
    }
    return out;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp p;
    if (cudaGetDeviceProperties(&p, i) != cudaSuccess) continue;
    out.all.push_back({p.name, p.major, p.minor, static_cast<long long>(p.totalGlobalMem)});
  }
  return out;
}

Status stream_status(const Device& device) {
  return DeviceGuard(device).status("leakcore.kernels");
}

}  // namespace leakcore
