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

namespace leakcore {

LEAKCORE_HD uint64_t bits_of(double x) {
  uint64_t b;
  memcpy(&b, &x, sizeof b);
  return b;
}

LEAKCORE_HD double double_of(uint64_t b) {
  double x;
  memcpy(&x, &b, sizeof x);
  return x;
}

// Exact, and without the branch of a general conversion, so that baseline x86-64 vectorises it; x < 2^52.
LEAKCORE_HD double exact_double(uint64_t x) {
  return double_of(x | 0x4330000000000000ull) - 4503599627370496.0;
}

}  // namespace leakcore
