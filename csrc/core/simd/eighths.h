// q·2^(n/8) for integers n: one of eight multiples q·2^(j/8), and an addition to its exponent. Where vectors take it,
// the multiples are a table in registers; a number's is multiplied out when it is asked for, to the same bits.
#pragma once

#include "core/simd/arith.h"

namespace leakcore {

// 2^(j/8).
LEAKCORE_HD const double* eighths() {
  static constexpr double kPowers[8] = {1.0,
                                        1.0905077326652577,
                                        1.189207115002721,
                                        1.2968395546510096,
                                        1.4142135623730951,
                                        1.5422108254079407,
                                        1.681792830507429,
                                        1.8340080864093424};
  return kPowers;
}

struct Scale {
  double q;
};

// The bits of q·2^(n/8), for an n of at most 15 bits, whatever the rest of it holds.
LEAKCORE_HD uint64_t scaled(Scale s, uint64_t n) {
  return bits_of(s.q * eighths()[n & 7]) + ((n >> 3) << 52);
}

#ifdef LEAKCORE_TIER
struct WideScale {
  double q;
  Eight multiples;  // less j at the place in the exponent where an n shifted there has it

  explicit WideScale(double factor) : q(factor) {
    uint64_t bits[8];
    for (uint64_t j = 0; j < 8; ++j) bits[j] = bits_of(factor * eighths()[j]) - (j << 49);
    multiples = eight(bits);
  }
};

LEAKCORE_HD Longs scaled(const WideScale& s, Longs n) {
  return (n << 49) + look_up(s.multiples, n);
}
template <int K>
LEAKCORE_HD Pack<Longs, K> scaled(const WideScale& s, const Pack<Longs, K>& n) {
  Pack<Longs, K> r;
  for (int k = 0; k < K; ++k) r.v[k] = scaled(s, n.v[k]);
  return r;
}
#endif

}  // namespace leakcore
