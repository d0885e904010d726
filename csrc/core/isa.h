// The instruction tier that the kernels of *_simd.cpp run in: the widest that this processor has, or the one that the
// environment variable LEAKCORE_ISA names. No result depends on it: every tier adds the same lanes in the same order
// and none fuses a multiply and an add.
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
