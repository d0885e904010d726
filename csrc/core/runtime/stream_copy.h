// A copy past the caches, in stores as wide as the tier's vectors, for results that no cache holds: a line written
// whole need not be read first. Such stores are not ordered with others: `stream_fence` before another thread is told
// of them.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/runtime/line.h"
#include "core/simd/vec.h"

namespace leakcore {

#if defined(__AVX512F__)
LEAKCORE_HD void stream(void* to, Ints x) {
  _mm512_stream_si512(static_cast<__m512i*>(to), reinterpret_cast<__m512i>(x));
}
#elif defined(__AVX2__)
LEAKCORE_HD void stream(void* to, Ints x) {
  _mm256_stream_si256(static_cast<__m256i*>(to), reinterpret_cast<__m256i>(x));
}
#elif defined(__SSE2__)
LEAKCORE_HD void stream(void* to, Ints x) {
  _mm_stream_si128(static_cast<__m128i*>(to), reinterpret_cast<__m128i>(x));
}
#else
LEAKCORE_HD void stream(void* to, Ints x) {
  store(static_cast<char*>(to), x);
}
#endif

LEAKCORE_HD void stream_copy(void* to, const void* from, int64_t bytes) {
  char* out = static_cast<char*>(to);
  const char* in = static_cast<const char*>(from);
  const int64_t head = -static_cast<int64_t>(reinterpret_cast<uintptr_t>(to)) & (kLine - 1);
  const int64_t first = head < bytes ? head : bytes, whole = (bytes - first) / kLine * kLine;
  memcpy(out, in, static_cast<size_t>(first));
  for (int64_t i = first; i < first + whole; i += kVectorBytes) stream(out + i, load<Ints>(in + i));
  memcpy(out + first + whole, in + first + whole, static_cast<size_t>(bytes - first - whole));
}

LEAKCORE_HD void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace leakcore
