// The kernels that other extensions may call: the table of leakcore/kernels.h, which module.cpp hands out as a capsule.
#pragma once

#include "leakcore/kernels.h"

namespace leakcore {

const leakcore_kernels& kernel_table();

}  // namespace leakcore
