// Short stretches of a row, from any layout and element type into doubles and back: the one place where strides and
// dtypes are dealt with.
#pragma once

#include <cstdint>

#include "core/runtime/array.h"

namespace leakcore {

// Columns [first, first + count) of row (run, row); into floats exact for types of at most 32 bits.
void load_tile(const Rows& rows, int64_t run, int64_t row, int64_t first, int64_t count, double* out);
void load_tile(const Rows& rows, int64_t run, int64_t row, int64_t first, int64_t count, float* out);
// Of a 16-bit type, as it is.
void load_tile(const Rows& rows, int64_t run, int64_t row, int64_t first, int64_t count, uint16_t* out);

// Rounds once to the array's type (float32 or float64).
void store_tile(const Rows& rows, int64_t run, int64_t row, int64_t first, int64_t count, const double* in);

}  // namespace leakcore
