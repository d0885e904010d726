// All that a .cu file needs of CUDA: launches that return their error, the caller's device, shared memory. The same
// files compile for the emulation (csrc/emulation), where kernels run on the CPU; so they include no other CUDA header.
#pragma once

#ifdef LEAKCORE_EMULATION
#include "testing/cuda_emulation/cuda.h"
#else
#include <cuda_runtime.h>
#endif

#include <cstddef>
#include <tuple>
#include <utility>

#include "core/runtime/array.h"
#include "core/runtime/status.h"

namespace leakcore {

// LEAKCORE_LAUNCH(kernel, grid, block, dynamic_shared_bytes, stream, args...) is a cudaError_t. A kernel with several
// template arguments goes in parentheses.
#define LEAKCORE_LAUNCH(kernel, grid, block, shared, stream, ...)                    \
  ::leakcore::launch((kernel), dim3(grid), dim3(block), static_cast<size_t>(shared), \
                     static_cast<cudaStream_t>(stream), ##__VA_ARGS__)

// LEAKCORE_DYNAMIC_SHARED(T, name): name points at the block's dynamic shared memory.
#ifdef LEAKCORE_EMULATION
#define LEAKCORE_DYNAMIC_SHARED(T, name) T* const name = static_cast<T*>(::leakcore::emulation::dynamic_shared())
#else
#define LEAKCORE_DYNAMIC_SHARED(T, name)                                   \
  extern __shared__ __align__(16) unsigned char leakcore_dynamic_shared[]; \
  T* const name = reinterpret_cast<T*>(leakcore_dynamic_shared)
#endif

constexpr size_t kPlainSharedBytes = 48 * 1024;  // beyond it a kernel must be told

template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream, A&&... args) {
  std::tuple<P...> values(std::forward<A>(args)...);
#ifdef LEAKCORE_EMULATION
  (void)stream;
  return emulation::run(grid, block, shared, [&] { std::apply(kernel, values); });
#else
  if (shared > kPlainSharedBytes) {
    const cudaError_t error = cudaFuncSetAttribute(
        reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (error != cudaSuccess) return error;
  }
  return std::apply(
      [&](auto&... value) {
        void* pointers[] = {static_cast<void*>(&value)..., nullptr};
        return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, pointers, shared, stream);
      },
      values);
#endif
}

// A small table into scratch. Pageable host memory: the call returns once it has been read.
inline cudaError_t send_table(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream);
}

inline Status cuda_status(cudaError_t error, const char* kernel) {
  if (error == cudaSuccess) return {};
  if (error == cudaErrorStreamCaptureUnsupported || error == cudaErrorStreamCaptureImplicit) {
    return {Code::captured, kernel, kCaptured};
  }
  return {Code::cuda_error, kernel, cudaGetErrorString(error)};
}

// The caller's device is current until the end of the block, then the one from before. `status` is for the kernel to
// return before it launches anything: on the wrong device a launch would find the wrong memory, and a graph that is
// being captured on the stream would replay one seed's noise, and read small tables where they no longer are.
class DeviceGuard {
 public:
  explicit DeviceGuard(const Device& device) {
    error_ = cudaGetDevice(&before_);
    if (error_ == cudaSuccess && before_ != device.index) {
      error_ = cudaSetDevice(device.index);
      changed_ = error_ == cudaSuccess;
    }
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (error_ == cudaSuccess) error_ = cudaStreamIsCapturing(static_cast<cudaStream_t>(device.stream), &capture);
    if (capture != cudaStreamCaptureStatusNone) error_ = cudaErrorStreamCaptureUnsupported;
  }
  ~DeviceGuard() {
    if (changed_) static_cast<void>(cudaSetDevice(before_));
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

  Status status(const char* kernel) const { return cuda_status(error_, kernel); }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace leakcore
