#include "core/probe.h"

#include "core/isa.h"

namespace leakcore {

const ProbeLoops& probe_loops() {
  return LEAKCORE_TIERED(probe_loops);
}

}  // namespace leakcore
