#include "core/simd/isa.h"

#include <cstdlib>
#include <stdexcept>

namespace leakcore {
namespace {

constexpr Tier kTiers[] = {Tier::baseline, Tier::avx2, Tier::avx512};

bool available(Tier wanted) {
#if LEAKCORE_X86_TIERS
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (wanted == Tier::avx2) return avx2;
  if (wanted == Tier::avx512) {
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
#endif
  return wanted == Tier::baseline;
}

Tier choose() {
  const char* wish = std::getenv("LEAKCORE_ISA");
  const std::string name = wish == nullptr ? "" : wish;
  Tier widest = Tier::baseline;
  std::string known;
  for (const Tier t : kTiers) {
    if (!available(t)) continue;
    if (name == tier_name(t)) return t;
    widest = t;
    known += (known.empty() ? "" : ", ") + std::string(tier_name(t));
  }
  if (name.empty()) return widest;
  throw std::invalid_argument("`LEAKCORE_ISA` must be one of what this processor and build have (" + known +
                              "), or unset for the widest, got '" + name + "'");
}

}  // namespace

Tier tier() {
  static const Tier chosen = choose();
  return chosen;
}

const char* tier_name(Tier t) {
  return t == Tier::avx512 ? "avx512" : t == Tier::avx2 ? "avx2" : "baseline";
}

std::vector<std::string> available_tiers() {
  std::vector<std::string> names;
  for (const Tier t : kTiers) {
    if (available(t)) names.emplace_back(tier_name(t));
  }
  return names;
}

}  // namespace leakcore
