#include "core/runtime/machine.h"

#include <unistd.h>

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

}  // namespace leakcore
