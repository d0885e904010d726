#include "core/runtime/machine.h"

#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace leakcore {

int64_t second_level_cache() {
  static const int64_t bytes = [] {
#if defined(_SC_LEVEL2_CACHE_SIZE)
    const long said = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (said > 0) return static_cast<int64_t>(said);
#endif
    return int64_t{1} << 20;
  }();
  return bytes;
}

bool intel() {
  static const bool is = [] {
    const char* const wish = std::getenv("LEAKCORE_TUNED_FOR");
    const std::string name = wish == nullptr ? "" : wish;
    if (name == "intel" || name == "other") return name == "intel";
    if (!name.empty()) {
      throw std::invalid_argument("LEAKCORE_TUNED_FOR='" + name + "': must be intel or other, or unset");
    }
#if LEAKCORE_X86_TIERS
    __builtin_cpu_init();
    return __builtin_cpu_is("intel") != 0;
#else
    return false;
#endif
  }();
  return is;
}

}  // namespace leakcore
