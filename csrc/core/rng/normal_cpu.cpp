// Rows of normals and uniforms on the CPU: any stretch of draws, cut into the whole blocks that the loops of
// normal_simd make.
#include <algorithm>
#include <cstring>

#include "core/products/tile.h"
#include "core/rng/normal.h"
#include "core/rng/normal_simd.h"
#include "core/runtime/parallel.h"
#include "core/simd/isa.h"

namespace leakcore {
namespace {

constexpr int64_t kTile = 4 * kRandomBlocks;

const RandomLoops& random_loops() {
  return LEAKCORE_TIERED(random_loops);
}

void fill(void (*loop)(uint64_t, uint32_t, uint64_t, uint32_t, double*), uint64_t seed, uint32_t stream,
          uint64_t sample, int64_t first, int64_t count, double* out) {
  double whole[kTile];
  for (int64_t done = 0; done < count;) {
    const int64_t skip = (first + done) % 4;
    const int64_t here = std::min(kTile - skip, count - done);
    const uint32_t block = static_cast<uint32_t>((first + done) / 4);
    if (here == kTile) {
      loop(seed, stream, sample, block, out + done);
    } else {
      loop(seed, stream, sample, block, whole);
      std::memcpy(out + done, whole + skip, static_cast<size_t>(here) * sizeof(double));
    }
    done += here;
  }
}

}  // namespace

void fill_normals(uint64_t seed, uint32_t stream, uint64_t sample, int64_t first, int64_t count, double* out) {
  fill(random_loops().normals, seed, stream, sample, first, count, out);
}

void fill_uniforms(uint64_t seed, uint32_t stream, uint64_t sample, int64_t first, int64_t count, double* out) {
  fill(random_loops().uniforms, seed, stream, sample, first, count, out);
}

void fill_random_rows(Fill fill, const Rows& out, int64_t num_rows, uint64_t seed, uint32_t stream, uint64_t first_row,
                      const Schedule& schedule) {
  const int64_t tiles = (out.numel + kTile - 1) / kTile;
  const bool in_place = out.dtype == DType::f64 && (out.ndim == 0 || (out.ndim == 1 && out.stride[0] == 1));
  const int threads = useful_threads(2.0 * kTile * static_cast<double>(num_rows * tiles), schedule.num_threads);
  parallel_for(num_rows * tiles, schedule.chunk > 0 ? schedule.chunk : 16, threads, [&](int64_t begin, int64_t end) {
    double values[kTile];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / tiles, column = i % tiles * kTile;
      const int64_t count = std::min(kTile, out.numel - column);
      if (in_place) {
        fill(seed, stream, first_row + static_cast<uint64_t>(row), column, count,
             static_cast<double*>(out.data) + row * out.row_stride + column);
        continue;
      }
      fill(seed, stream, first_row + static_cast<uint64_t>(row), column, count, values);
      store_tile(out, 0, row, column, count, values);
    }
  });
}

}  // namespace leakcore
