// A copy past the caches, for results larger than these: a line written whole need not be read first, and what the
// caches hold stays. Such stores are not ordered with others: `stream_fence` before another thread is told of them.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "core/line.h"

namespace leakcore {

// Results that no cache is expected to hold.
constexpr int64_t kStreamBytes = int64_t{32} << 20;

#if defined(__SSE2__)
inline void stream_copy(void* to, const void* from, int64_t bytes) {
  constexpr int64_t kWord = sizeof(__m128i);
  char* out = static_cast<char*>(to);
  const char* in = static_cast<const char*>(from);
  const int64_t head = -static_cast<int64_t>(reinterpret_cast<uintptr_t>(to)) & (kLine - 1);
  const int64_t first = head < bytes ? head : bytes, whole = (bytes - first) / kLine * kLine;
  memcpy(out, in, static_cast<size_t>(first));
  for (int64_t i = first; i < first + whole; i += kWord) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(out + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
  }
  memcpy(out + first + whole, in + first + whole, static_cast<size_t>(bytes - first - whole));
}
inline void stream_fence() {
  _mm_sfence();
}
#else
inline void stream_copy(void* to, const void* from, int64_t bytes) {
  memcpy(to, from, static_cast<size_t>(bytes));
}
inline void stream_fence() {}
#endif

}  // namespace leakcore
