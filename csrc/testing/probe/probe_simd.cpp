// Compiled once per instruction tier (setup.py). All but the table is in an anonymous namespace, and no library
// template is used, so that no inline function built for one tier can be linked into another.
#include "testing/probe/probe.h"

#include "core/runtime/line.h"
#include "core/simd/vec.h"

namespace leakcore {
namespace {

// Enough chains to cover a latency of four cycles on two pipes, few enough for sixteen registers.
constexpr int kChains = 10;

template <class V>
double fma_loop(int64_t count) {
  V chain[kChains];
  for (int k = 0; k < kChains; ++k) chain[k] = V{} + static_cast<decltype(V{}[0] + 0)>(k + 1);
  const V a = V{} + 0.5f, b = V{} + 0.25f;
  const int64_t rounds = count / (kChains * static_cast<int64_t>(sizeof(V) / sizeof(V{}[0]))) + 1;
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 16
    for (int k = 0; k < kChains; ++k) chain[k] = madd(chain[k], a, b);
  }
  double sum = 0;
  for (int k = 0; k < kChains; ++k) sum += static_cast<double>(chain[k][0]);
  return sum;
}

// e^x by the fewest operations that give a working accuracy: reduction, polynomial of degree 11 or 5, exponent.
inline Doubles exponential(Doubles x) {
  const double magic = 6755399441055744.0;
  const Doubles shifted = madd(x, 1.4426950408889634, magic);
  const Doubles r = madd(shifted - magic, -0.6931471805599453, x);
  Doubles p = doubles(1.0 / 39916800);
  const double factorials[] = {3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2, 1, 1};
#pragma GCC unroll 11
  for (int i = 0; i < 11; ++i) p = madd(p, r, 1.0 / factorials[i]);
  return p * real_of((bits_of(shifted) << 52) + 0x3ff0000000000000ull);
}
inline Floats exponential(Floats x) {
  const float magic = 12582912.0f;
  const Floats shifted = madd(x, 1.44269504f, magic);
  const Floats r = madd(shifted - magic, -0.693147181f, x);
  Floats p = floats(1.0f / 120);
  const float factorials[] = {24, 6, 2, 1, 1};
#pragma GCC unroll 5
  for (int i = 0; i < 5; ++i) p = madd(p, r, 1.0f / factorials[i]);
  return p * real_of((bits_of(shifted) << 23) + 0x3f800000u);
}

template <class V, class T>
double exp_loop(int64_t count) {
  constexpr int kLanes = static_cast<int>(sizeof(V) / sizeof(T));
  constexpr int kBuffer = 1024;
  LEAKCORE_ALIGNED T in[kBuffer];
  LEAKCORE_ALIGNED T out[kBuffer];
  for (int i = 0; i < kBuffer; ++i) in[i] = static_cast<T>(i) / kBuffer - static_cast<T>(0.5);
  double sum = 0;
  for (int64_t done = 0; done < count; done += kBuffer) {
#pragma GCC unroll 4
    for (int i = 0; i < kBuffer; i += kLanes) store(out + i, exponential(load<V>(in + i)));
    sum += static_cast<double>(out[done / kBuffer % kBuffer]);
    asm volatile("" : : "r"(in), "r"(out) : "memory");
  }
  return sum;
}

// Philox4x32-10 in 64-bit lanes, four words per lane; as many lanes at a time as the registers hold.
double philox_loop(int64_t count) {
  constexpr int kAtOnce = kVectorBytes == 64 ? 4 : 2;
  constexpr int64_t kWords = static_cast<int64_t>(4) * kDoubles * kAtOnce;
  Longs sum = {};
  Longs index[kAtOnce];
  for (int u = 0; u < kAtOnce; ++u) {
    for (int i = 0; i < kDoubles; ++i) index[u][i] = static_cast<uint64_t>(u * kDoubles + i);
  }
  for (int64_t done = 0; done < count; done += kWords) {
    Longs c0[kAtOnce], c1[kAtOnce], c2[kAtOnce], c3[kAtOnce];
    for (int u = 0; u < kAtOnce; ++u) {
      c0[u] = index[u];
      c1[u] = longs(1);
      c2[u] = longs(static_cast<uint64_t>(done & 0xffff));
      c3[u] = Longs{};
      index[u] += static_cast<uint64_t>(kDoubles) * kAtOnce;
    }
    uint64_t k0 = 0x1234567, k1 = 0x89abcde;
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 4
      for (int u = 0; u < kAtOnce; ++u) {
        const Longs a = multiply32(c0[u], 0xD2511F53u), b = multiply32(c2[u], 0xCD9E8D57u);
        c0[u] = (b >> 32) ^ c1[u] ^ k0;
        c1[u] = b;
        c2[u] = (a >> 32) ^ c3[u] ^ k1;
        c3[u] = a;
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    for (int u = 0; u < kAtOnce; ++u) sum += (c0[u] ^ c1[u]) + (c2[u] ^ c3[u]);
  }
  double total = 0;
  for (int i = 0; i < kDoubles; ++i) total += static_cast<double>(sum[i] & 0xff);
  return total;
}

// Four streams at a time; each one's pages are touched eight pages early.
uint64_t read_loop(const void* data, int64_t bytes) {
  constexpr int kStreams = 4, kVectors = static_cast<int>(kLine) / kVectorBytes;
  constexpr int64_t kPage = 4096;
  const int64_t part = bytes / kStreams;
  const char* from[kStreams];
  for (int s = 0; s < kStreams; ++s) from[s] = static_cast<const char*>(data) + s * part;
  Longs sum[kStreams] = {};
  for (int64_t at = 0; at < part; at += kLine) {
#pragma GCC unroll 4
    for (int s = 0; s < kStreams; ++s) {
      const char* p = from[s] + at;
      if (reinterpret_cast<uintptr_t>(p) % kPage < kLine) __builtin_prefetch(p + 8 * kPage);
      __builtin_prefetch(p + 1024, 0, 2);
#pragma GCC unroll 4
      for (int k = 0; k < kVectors; ++k) sum[s] += load<Longs>(p + k * kVectorBytes);
    }
  }
  uint64_t total = 0;
  for (int s = 0; s < kStreams; ++s) {
    for (int i = 0; i < kDoubles; ++i) total += sum[s][i];
  }
  return total;
}

constexpr ProbeLoops kLoops = {fma_loop<Doubles>,       fma_loop<Floats>, exp_loop<Doubles, double>,
                               exp_loop<Floats, float>, philox_loop,      read_loop};

}  // namespace

#define LEAKCORE_JOIN(a, b) a##b
#define LEAKCORE_TABLE(tier) LEAKCORE_JOIN(probe_loops_, tier)
const ProbeLoops& LEAKCORE_TABLE(LEAKCORE_TIER)() {
  return kLoops;
}

}  // namespace leakcore
