// The elementary functions of the tier that runs, for the tests that measure their error.
#pragma once

#include <cstdint>

#include "core/simd/isa.h"

namespace leakcore {

// exp2m1 is scaled_exp2m1 at q = 1. The last six take a word as a double: cosine and
// sine of the turn, and the radius, of Box-Muller.
enum class Elementary {
  exp,
  expm1,
  log,
  log1p,
  exp2m1,
  cos_turn,
  sin_turn,
  radius,
  cos_turn_float,
  sin_turn_float,
  radius_float
};
constexpr const char* kElementaryNames[] = {"exp",         "expm1",    "log",    "log1p",          "exp2m1",
                                            "cos_turn",    "sin_turn", "radius", "cos_turn_float", "sin_turn_float",
                                            "radius_float"};

struct ElementaryLoops {
  void (*apply)(Elementary function, const double* x, double* y, int64_t count);
};

const ElementaryLoops& elementary_loops_baseline();
#if LEAKCORE_X86_TIERS
const ElementaryLoops& elementary_loops_avx2();
const ElementaryLoops& elementary_loops_avx512();
#endif

}  // namespace leakcore
