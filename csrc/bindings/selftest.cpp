#include "bindings/selftest.h"

#include <cmath>
#include <cstdio>
#include <vector>

#include "core/products/exact_sum.h"
#include "core/rng/normal.h"
#include "core/runtime/parallel.h"

namespace leakcore {
namespace {

struct KnownAnswer {
  uint32_t counter[4], key[2], expected[4];
};

// Random123 1.14, tests/kat_vectors, the lines "philox4x32 10".
constexpr KnownAnswer kPhilox[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

std::string check_philox() {
  for (const KnownAnswer& k : kPhilox) {
    const Words got = philox4x32_10(k.counter[0], k.counter[1], k.counter[2], k.counter[3], k.key[0], k.key[1]);
    for (int i = 0; i < 4; ++i) {
      if (got.w[i] == k.expected[i]) continue;
      char text[96];
      std::snprintf(text, sizeof text, "philox4x32-10 gives %08x where %08x is published", got.w[i], k.expected[i]);
      return text;
    }
  }
  return "";
}

std::string check_elementary() {
  for (double x = -690.0; x < 690.0; x += 0.37) {
    if (std::abs(exp_safe(x) / std::exp(x) - 1.0) > 1e-15) return "exp is off at " + std::to_string(x);
    if (std::abs(log_positive(std::exp(x)) - x) > 1e-15 * std::abs(x) + 1e-15)
      return "log is off at exp(" + std::to_string(x) + ")";
  }
  return "";
}

std::string check_exact_sum() {
  uint64_t forwards[kSumDigits] = {}, backwards[kSumDigits] = {};
  for (int i = 0; i < 200; ++i) {
    exact_add(forwards, std::ldexp(1.0 / 3.0, 5 * i - 500));
    exact_add(backwards, std::ldexp(1.0 / 3.0, 5 * (199 - i) - 500));
  }
  exact_carry(forwards);
  exact_carry(backwards);
  for (int i = 0; i < kSumDigits; ++i) {
    if (forwards[i] != backwards[i]) return "the exact sum depends on the order";
  }
  return "";
}

}  // namespace

std::string selftest() {
  for (auto check : {check_philox, check_elementary, check_exact_sum}) {
    if (std::string wrong = check(); !wrong.empty()) return wrong;
  }
  return "";
}

double chunk_dependent_sum(const double* x, int64_t count, int64_t chunk, int num_threads) {
  std::vector<double> partial(static_cast<size_t>((count + chunk - 1) / chunk));
  parallel_for(count, chunk, chunk, num_threads, [&](int64_t begin, int64_t end) {
    double sum = 0.0;
    for (int64_t i = begin; i < end; ++i) sum += x[i];
    partial[static_cast<size_t>(begin / chunk)] = sum;
  });
  double total = 0.0;
  for (double p : partial) total += p;
  return total;
}

}  // namespace leakcore
