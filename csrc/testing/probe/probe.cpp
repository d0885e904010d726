#include "testing/probe/probe.h"

#include "core/simd/isa.h"

namespace leakcore {

const ProbeLoops& probe_loops() {
  return LEAKCORE_TIERED(probe_loops);
}

}  // namespace leakcore
