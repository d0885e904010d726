// What the kernels use of CUDA, on the CPU: a test runs the .cu files where there is no GPU. Every thread of a block is
// a fiber that gives way at barriers and shuffles; "device memory" is host memory. Only emulation builds contain this
// (LEAKCORE_CUDA=emulate in setup.py). Overloads are CUDA's own, so that what compiles here compiles there.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define __host__
#define __device__
#define __global__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __shared__ static thread_local

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define LEAKCORE_VECTOR2(T, name)           \
  struct alignas(2 * sizeof(T)) name##2 {   \
    T x, y;                                 \
  };                                        \
  inline name##2 make_##name##2(T x, T y) { \
    return {x, y};                          \
  }
#define LEAKCORE_VECTOR4(T, name)                     \
  struct alignas(16) name##4 {                        \
    T x, y, z, w;                                     \
  };                                                  \
  inline name##4 make_##name##4(T x, T y, T z, T w) { \
    return {x, y, z, w};                              \
  }
LEAKCORE_VECTOR2(float, float)
LEAKCORE_VECTOR2(double, double)
LEAKCORE_VECTOR2(int, int)
LEAKCORE_VECTOR2(unsigned, uint)
LEAKCORE_VECTOR4(float, float)
LEAKCORE_VECTOR4(int, int)
LEAKCORE_VECTOR4(unsigned, uint)
#undef LEAKCORE_VECTOR2
#undef LEAKCORE_VECTOR4

#define LEAKCORE_INDEX extern __thread __attribute__((tls_model("initial-exec"))) uint3
LEAKCORE_INDEX threadIdx;
LEAKCORE_INDEX blockIdx;
LEAKCORE_INDEX blockDim;
LEAKCORE_INDEX gridDim;
#undef LEAKCORE_INDEX
constexpr int warpSize = 32;

// The runtime, as far as it is used.
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorInvalidDevice = 101,
  cudaErrorLaunchFailure = 719,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorStreamCaptureImplicit = 906,
};
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault,
};
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
};
using cudaStream_t = struct CUstream_st*;
struct cudaDeviceProp {
  char name[256];
  int major, minor;
  size_t totalGlobalMem;
};

cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaRuntimeGetVersion(int* version);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
const char* cudaGetErrorString(cudaError_t error);

namespace leakcore::emulation {

enum class Exchange { sync, from, exclusive_or, down, up, ballot };

// Where in the source a thread waits: threads that meet must meet at one place.
struct Site {
  const char* file;
  int line;
};

void block_barrier(Site site);
// The value deposited by the lane that `argument` selects, once every lane of the warp is there.
uint64_t warp_exchange(Exchange kind, Site site, unsigned mask, uint64_t value, int argument, int width);
void* dynamic_shared();

// Runs `body` once per thread of the grid.
cudaError_t run_grid(dim3 grid, dim3 block, size_t shared, void (*body)(void*), void* context);

template <class Body>
cudaError_t run(dim3 grid, dim3 block, size_t shared, Body&& body) {
  return run_grid(grid, block, shared, [](void* context) { (*static_cast<Body*>(context))(); }, &body);
}

template <class T>
T exchanged(Exchange kind, Site site, unsigned mask, T value, int argument, int width) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "CUDA shuffles 32 or 64 bits");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = warp_exchange(kind, site, mask, bits, argument, width);
  memcpy(&value, &bits, sizeof value);
  return value;
}

// CUDA's default for the width of a shuffle.
inline int width_of() {
  return 32;
}
inline int width_of(int width) {
  return width;
}

}  // namespace leakcore::emulation

#define LEAKCORE_SITE (::leakcore::emulation::Site{__FILE__, __LINE__})
#define LEAKCORE_SHUFFLE(kind, mask, value, argument, ...)                                                \
  ::leakcore::emulation::exchanged(::leakcore::emulation::Exchange::kind, LEAKCORE_SITE, (mask), (value), \
                                   static_cast<int>(argument), ::leakcore::emulation::width_of(__VA_ARGS__))
#define __syncthreads() ::leakcore::emulation::block_barrier(LEAKCORE_SITE)
#define __syncwarp(...)                                                                                        \
  static_cast<void>(::leakcore::emulation::warp_exchange(::leakcore::emulation::Exchange::sync, LEAKCORE_SITE, \
                                                         ::leakcore::emulation::mask_of(__VA_ARGS__), 0, 0, 32))
#define __shfl_sync(mask, value, ...) LEAKCORE_SHUFFLE(from, mask, value, __VA_ARGS__)
#define __shfl_xor_sync(mask, value, ...) LEAKCORE_SHUFFLE(exclusive_or, mask, value, __VA_ARGS__)
#define __shfl_down_sync(mask, value, ...) LEAKCORE_SHUFFLE(down, mask, value, __VA_ARGS__)
#define __shfl_up_sync(mask, value, ...) LEAKCORE_SHUFFLE(up, mask, value, __VA_ARGS__)
#define __ballot_sync(mask, predicate)                                                                               \
  static_cast<unsigned>(::leakcore::emulation::warp_exchange(::leakcore::emulation::Exchange::ballot, LEAKCORE_SITE, \
                                                             (mask), (predicate) ? 1 : 0, 0, 32))
#define __any_sync(mask, predicate) (__ballot_sync(mask, predicate) != 0)

namespace leakcore::emulation {
inline unsigned mask_of(unsigned mask = 0xffffffffu) {
  return mask;
}
}  // namespace leakcore::emulation

// Fibers of a block share one thread of the operating system, so plain updates are atomic.
#define LEAKCORE_ATOMIC(name, T, expression) \
  inline T name(T* address, T value) {       \
    const T old = *address;                  \
    *address = expression;                   \
    return old;                              \
  }
LEAKCORE_ATOMIC(atomicAdd, int, old + value)
LEAKCORE_ATOMIC(atomicAdd, unsigned, old + value)
LEAKCORE_ATOMIC(atomicAdd, unsigned long long, old + value)
LEAKCORE_ATOMIC(atomicAdd, float, old + value)
LEAKCORE_ATOMIC(atomicAdd, double, old + value)
LEAKCORE_ATOMIC(atomicMax, int, old > value ? old : value)
LEAKCORE_ATOMIC(atomicMax, unsigned, old > value ? old : value)
LEAKCORE_ATOMIC(atomicMax, unsigned long long, old > value ? old : value)
LEAKCORE_ATOMIC(atomicMin, int, old < value ? old : value)
LEAKCORE_ATOMIC(atomicMin, unsigned, old < value ? old : value)
LEAKCORE_ATOMIC(atomicMin, unsigned long long, old < value ? old : value)
LEAKCORE_ATOMIC(atomicOr, int, old | value)
LEAKCORE_ATOMIC(atomicOr, unsigned, old | value)
LEAKCORE_ATOMIC(atomicExch, int, value)
LEAKCORE_ATOMIC(atomicExch, unsigned, value)
#undef LEAKCORE_ATOMIC
#define LEAKCORE_CAS(T)                                 \
  inline T atomicCAS(T* address, T expected, T value) { \
    const T old = *address;                             \
    if (old == expected) *address = value;              \
    return old;                                         \
  }
LEAKCORE_CAS(int)
LEAKCORE_CAS(unsigned)
LEAKCORE_CAS(unsigned long long)
#undef LEAKCORE_CAS

inline void __threadfence() {}
template <class T>
T __ldg(const T* address) {
  return *address;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}
inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __clz(int x) {
  return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}
inline double __fma_rn(double a, double b, double c) {
  return fma(a, b, c);
}
inline float __fmaf_rn(float a, float b, float c) {
  return fmaf(a, b, c);
}
inline double __dmul_rn(double a, double b) {
  return a * b;
}
inline double __dadd_rn(double a, double b) {
  return a + b;
}
inline float __fmul_rn(float a, float b) {
  return a * b;
}
inline float __fadd_rn(float a, float b) {
  return a + b;
}
inline double rsqrt(double x) {
  return 1.0 / sqrt(x);
}
inline float rsqrtf(float x) {
  return 1.0f / sqrtf(x);
}
