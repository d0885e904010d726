#include "core/probe.h"

#include "core/isa.h"

namespace leakcore {

const ProbeLoops& probe_loops() {
#if LEAKCORE_X86_TIERS
  switch (tier()) {
    case Tier::avx512:
      return probe_loops_avx512();
    case Tier::avx2:
      return probe_loops_avx2();
    default:
      break;
  }
#endif
  return probe_loops_baseline();
}

}  // namespace leakcore
