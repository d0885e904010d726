// The elementary functions over arrays, for the tests that measure them. Compiled once per instruction tier (setup.py).
#include "core/simd/elementary_simd.h"

#include "core/rng/normal.h"

namespace leakcore {
namespace {

template <class Function>
LEAKCORE_HD void over(const double* x, double* y, int64_t count, Function f) {
  for (int64_t i = 0; i < count; i += kDoubles) {
    double in[kDoubles], out[kDoubles];
    for (int k = 0; k < kDoubles; ++k) in[k] = x[i + k < count ? i + k : count - 1];
    store(out, f(load<Doubles>(in)));
    for (int k = 0; k < kDoubles && i + k < count; ++k) y[i + k] = out[k];
  }
}

LEAKCORE_HD Longs words(Doubles x) {
  return __builtin_convertvector(x, Longs);
}

template <class Function>
LEAKCORE_HD Doubles narrow(Doubles x, Function f) {
  uint32_t in[kFloats] = {};
  for (int k = 0; k < kDoubles; ++k) in[k] = static_cast<uint32_t>(x[k]);
  Doubles low, high;
  widen(f(load<Ints>(in)), &low, &high);
  return low;
}

void elementary(Elementary function, const double* x, double* y, int64_t count) {
  switch (function) {
    case Elementary::exp:
      return over(x, y, count, [](Doubles v) { return exp_safe(v); });
    case Elementary::expm1:
      return over(x, y, count, [](Doubles v) { return expm1_safe(v); });
    case Elementary::log:
      return over(x, y, count, [](Doubles v) { return log_positive(v); });
    case Elementary::log1p:
      return over(x, y, count, [](Doubles v) { return log1p_safe(v); });
    case Elementary::exp2m1: {
      const WideScale one(1.0);
      return over(x, y, count, [&](Doubles v) { return scaled_exp2m1(v, one); });
    }
    case Elementary::cos_turn:
      return over(x, y, count, [](Doubles v) {
        Doubles c, s;
        cos_sin_turn(words(v) << 32, &c, &s);
        return c;
      });
    case Elementary::sin_turn:
      return over(x, y, count, [](Doubles v) {
        Doubles c, s;
        cos_sin_turn(words(v) << 32, &c, &s);
        return s;
      });
    case Elementary::radius:
      return over(x, y, count, [](Doubles v) { return root(minus_two_log_unit(words(v))); });
    case Elementary::cos_turn_float:
      return over(x, y, count, [](Doubles v) {
        return narrow(v, [](Ints w) {
          Floats c, s;
          cos_sin_turn_float(w, &c, &s);
          return c;
        });
      });
    case Elementary::sin_turn_float:
      return over(x, y, count, [](Doubles v) {
        return narrow(v, [](Ints w) {
          Floats c, s;
          cos_sin_turn_float(w, &c, &s);
          return s;
        });
      });
    case Elementary::radius_float:
      return over(x, y, count,
                  [](Doubles v) { return narrow(v, [](Ints w) { return root(minus_log_unit_float(w)); }); });
  }
}

constexpr ElementaryLoops kLoops = {elementary};

}  // namespace

#define LEAKCORE_JOIN(a, b) a##b
#define LEAKCORE_TABLE(tier) LEAKCORE_JOIN(elementary_loops_, tier)
const ElementaryLoops& LEAKCORE_TABLE(LEAKCORE_TIER)() {
  return kLoops;
}

}  // namespace leakcore
