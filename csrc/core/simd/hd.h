// One source for host and device: maths marked LEAKCORE_HD compiles under g++ and nvcc alike, so that a kernel's CPU
// and CUDA twins cannot drift apart.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define LEAKCORE_HD __host__ __device__ __forceinline__
#else
#define LEAKCORE_HD inline __attribute__((always_inline))
#endif
