// Rows of normals and uniforms on the CPU, in blocks of counters: words first, then the transcendental functions, each
// in a loop of its own, so that the compiler vectorises both.
#include <algorithm>

#include "core/normal.h"
#include "core/parallel.h"
#include "core/tile.h"

namespace leakcore {
namespace {

constexpr int kBlocks = 64;

struct Block {
  uint32_t w[4][kBlocks];
  double z[4][kBlocks];
};

void draw(Block& k, int blocks, uint64_t seed, uint32_t stream, uint64_t sample, uint32_t first_block) {
  for (int i = 0; i < blocks; ++i) {
    const Words words = draw_words(seed, stream, sample, first_block + static_cast<uint32_t>(i));
    for (int j = 0; j < 4; ++j) k.w[j][i] = words.w[j];
  }
}

// transform(block, blocks) turns words w into numbers z; then draws [first, first + count) are copied out.
template <class Transform>
void fill(uint64_t seed, uint32_t stream, uint64_t sample, int64_t first, int64_t count, double* out,
          Transform transform) {
  Block k;
  for (int64_t done = 0; done < count;) {
    const int64_t block = (first + done) / 4;
    const int64_t skip = (first + done) % 4;
    const int blocks = static_cast<int>(std::min<int64_t>((skip + count - done + 3) / 4, kBlocks));
    draw(k, blocks, seed, stream, sample, static_cast<uint32_t>(block));
    transform(k, blocks);
    const int64_t here = std::min<int64_t>(4 * kBlocks - skip, count - done);
    for (int64_t i = 0; i < here; ++i) out[done + i] = k.z[(skip + i) % 4][(skip + i) / 4];
    done += here;
  }
}

}  // namespace

void fill_normals(uint64_t seed, uint32_t stream, uint64_t sample, int64_t first, int64_t count, double* out) {
  fill(seed, stream, sample, first, count, out, [](Block& k, int blocks) {
    for (int half = 0; half < 4; half += 2) {
      for (int i = 0; i < blocks; ++i) box_muller(k.w[half][i], k.w[half + 1][i], &k.z[half][i], &k.z[half + 1][i]);
    }
  });
}

void fill_uniforms(uint64_t seed, uint32_t stream, uint64_t sample, int64_t first, int64_t count, double* out) {
  fill(seed, stream, sample, first, count, out, [](Block& k, int blocks) {
    for (int j = 0; j < 4; ++j) {
      for (int i = 0; i < blocks; ++i) k.z[j][i] = unit_open(k.w[j][i]);
    }
  });
}

void fill_random_rows(Fill fill, const Rows& out, int64_t num_rows, uint64_t seed, uint32_t stream, uint64_t first_row,
                      const Schedule& schedule) {
  constexpr int64_t kTile = 4 * kBlocks;
  const int64_t tiles = (out.numel + kTile - 1) / kTile;
  const int threads = useful_threads(4.0 * kTile * static_cast<double>(num_rows * tiles), schedule.num_threads);
  parallel_for(num_rows * tiles, schedule.chunk > 0 ? schedule.chunk : 16, threads, [&](int64_t begin, int64_t end) {
    double values[kTile];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / tiles, column = i % tiles * kTile;
      const int64_t count = std::min(kTile, out.numel - column);
      fill(seed, stream, first_row + static_cast<uint64_t>(row), column, count, values);
      store_tile(out, 0, row, column, count, values);
    }
  });
}

}  // namespace leakcore
