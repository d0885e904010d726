// Kernels that prove the emulation: one that is right, and one for each mistake that it must find.
#pragma once

#include <cstdint>
#include <string>

#include "core/runtime/status.h"

namespace leakcore {

// data: `count` numbers; "sum" and "race" leave the sum of each block of 256 in data[0], data[1], …
Status emulation_check(const std::string& kernel, double* data, int64_t count);

namespace emulation {

// The order in which blocks and threads take their turns from the next launch on, in every thread.
void set_schedule(uint64_t number);
// As if the stream were being captured into a graph.
void set_captured(bool now);

}  // namespace emulation
}  // namespace leakcore
