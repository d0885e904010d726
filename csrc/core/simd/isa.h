// The instruction tier that the kernels of *_simd.cpp run in: the widest that this processor has, or the one that the
// environment variable LEAKCORE_ISA names. Every tier adds the same lanes in the same order, and those that fuse
// multiply and add do so in the same places, so they agree to the bit; the baseline, which cannot, agrees to a bound.
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

// The table of the tier that runs, out of the functions that return each tier's: LEAKCORE_TIERED(clip_kernels).
#if LEAKCORE_X86_TIERS
#define LEAKCORE_TIERED(name)                                       \
  (::leakcore::tier() == ::leakcore::Tier::avx512 ? name##_avx512() \
   : ::leakcore::tier() == ::leakcore::Tier::avx2 ? name##_avx2()   \
                                                  : name##_baseline())
#else
#define LEAKCORE_TIERED(name) (::leakcore::tier(), name##_baseline())
#endif

}  // namespace leakcore
