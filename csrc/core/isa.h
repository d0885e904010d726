// The instruction tier that the kernels of *_simd.cpp run in: the widest that this processor has, or the one that the
// environment variable LEAKCORE_ISA names. Integers do not depend on it. Floating results agree between AVX2 and
// AVX-512 bit for bit, as both add the same lanes in the same order and fuse the same products; baseline x86-64 rounds
// those products, within a bound that the tests state.
#pragma once

#include <string>
#include <vector>

namespace leakcore {

enum class Tier : int { baseline = 0, avx2 = 1, avx512 = 2 };

// Throws std::invalid_argument when LEAKCORE_ISA names a tier that this processor or this build does not have. Asked
// once: the answer does not change while the process lives.
Tier tier();
const char* tier_name(Tier tier);
std::vector<std::string> available_tiers();

}  // namespace leakcore
