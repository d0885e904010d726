// clip_and_noise on the CPU: all norms first (so that a bad row stops it before anything is written), then the sum,
// tile of columns by tile of columns, each tile over the rows in order. Short rows are read once, and stay in the cache
// between norm and sum; long ones are read twice. None is ever copied.
#include "clip/clip.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "clip/norm_cpu.h"
#include "core/normal.h"
#include "core/parallel.h"
#include "core/streams.h"
#include "core/tile.h"

namespace leakcore {
namespace {

constexpr double kNanosecondsPerElement = 0.5;

// One tile of one parameter, and where its columns stand in the joint gradient.
struct Tile {
  int32_t param;
  int64_t first;
  int64_t count;
  int64_t joint;
};

std::vector<Tile> tiles_of(const Rows* params, int32_t num_params) {
  std::vector<Tile> tiles;
  int64_t joint = 0;
  for (int32_t p = 0; p < num_params; ++p) {
    for (int64_t c = 0; c < params[p].numel; c += kTile) {
      tiles.push_back({p, c, std::min(kTile, params[p].numel - c), joint + c});
    }
    joint += params[p].numel;
  }
  return tiles;
}

double tile_squares(const ClipArgs& args, const Tile& tile, int64_t run, int64_t row) {
  double buffer[kTile];
  const Panel panel(args.grads[tile.param], run, &row, 1, tile.first, tile.count, buffer);
  return panel.loops->squares(panel.row[0], tile.count);
}

void finish_norm(const ClipArgs& args, int64_t item, double squares) {
  args.norms[item] = norm_of(squares, args.grads, args.num_params, item / args.num_rows, item % args.num_rows);
}

void row_norm(const ClipArgs& args, const std::vector<Tile>& tiles, int64_t item) {
  double squares = 0.0;
  for (const Tile& tile : tiles) squares += tile_squares(args, tile, item / args.num_rows, item % args.num_rows);
  finish_norm(args, item, squares);
}

void all_norms(const ClipArgs& args, const std::vector<Tile>& tiles, int threads) {
  const int64_t rows = args.num_runs * args.num_rows;
  const int64_t per_row = static_cast<int64_t>(tiles.size());
  if (rows >= 4 * threads || per_row <= 1) {
    const int64_t chunk =
        args.schedule.chunk > 0 ? args.schedule.chunk : std::clamp<int64_t>(rows / (8 * threads), 1, 1024);
    parallel_for(rows, chunk, threads, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) row_norm(args, tiles, item);
    });
    return;
  }
  // Few long rows: the workers share a row's tiles, whose sums are then added in the same order as above.
  std::vector<double> partial(static_cast<size_t>(rows * per_row));
  const int64_t chunk = args.schedule.chunk > 0 ? args.schedule.chunk : 16;
  parallel_for(rows * per_row, chunk, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t item = i / per_row;
      partial[static_cast<size_t>(i)] =
          tile_squares(args, tiles[static_cast<size_t>(i % per_row)], item / args.num_rows, item % args.num_rows);
    }
  });
  for (int64_t item = 0; item < rows; ++item) {
    double squares = 0.0;
    for (int64_t t = 0; t < per_row; ++t) squares += partial[static_cast<size_t>(item * per_row + t)];
    finish_norm(args, item, squares);
  }
}

bool kept(const ClipArgs& args, int64_t run, int64_t row) {
  return args.mask == nullptr || args.mask[run * args.mask_run_stride + row * args.mask_row_stride] != 0;
}

// acc += the clipped rows [begin, end) that count, in order.
void add_kept_rows(const ClipArgs& args, const Tile& tile, int64_t run, int64_t begin, int64_t end, double* acc) {
  double buffer[kPanelRows * kTile];
  int64_t numbers[kPanelRows];
  double factors[kPanelRows];
  int64_t found = 0;
  for (int64_t row = begin; row < end; ++row) {
    if (kept(args, run, row)) {
      numbers[found] = row;
      factors[found++] = clip_factor(args.max_grad_norm, args.norms[run * args.num_rows + row]);
    }
    if (found == kPanelRows || (row + 1 == end && found > 0)) {
      const Panel panel(args.grads[tile.param], run, numbers, found, tile.first, tile.count, buffer);
      panel.loops->add_rows(panel.row, factors, found, tile.count, acc);
      found = 0;
    }
  }
}

void add_noise(const ClipArgs& args, const Tile& tile, int64_t run, double* acc) {
  double z[kTile];
  if (args.noise != nullptr) {
    load_tile(args.noise[tile.param], run, 0, tile.first, tile.count, z);
  } else {
    fill_normals(args.seed, stream_word(Purpose::clip_noise, args.step), args.first_run + static_cast<uint64_t>(run),
                 tile.joint, tile.count, z);
  }
  for (int64_t i = 0; i < tile.count; ++i) acc[i] += args.noise_scale * z[i];
}

// Rows that fit in the second-level cache are read once: a few norms, then the same rows into a partial sum of their
// block. How rows are cut into blocks follows from the sizes alone, never from the threads.
constexpr int64_t kNarrow = 32768;
constexpr int64_t kLeastBlock = 16;
constexpr int64_t kMostBlocks = 16;

struct Blocks {
  int64_t rows, per_run;

  explicit Blocks(const ClipArgs& args)
      : rows(std::max(kLeastBlock, (args.num_rows + kMostBlocks - 1) / kMostBlocks)),
        per_run(std::max<int64_t>((args.num_rows + rows - 1) / rows, 1)) {}
};

// partial[run·per_run + block][column], and all norms.
void norms_and_partial_sums(const ClipArgs& args, const std::vector<Tile>& tiles, const Blocks& blocks, int64_t columns,
                            int threads, double* partial) {
  const int64_t group = std::clamp<int64_t>(kNarrow / std::max<int64_t>(columns, 1), 4, kPanelRows * 4);
  const int64_t chunk = args.schedule.chunk > 0 ? args.schedule.chunk : 1;
  parallel_for(args.num_runs * blocks.per_run, chunk, threads, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const int64_t run = i / blocks.per_run, start = i % blocks.per_run * blocks.rows;
      const int64_t stop = std::min(args.num_rows, start + blocks.rows);
      for (int64_t begin = start; begin < stop; begin += group) {
        const int64_t end = std::min(stop, begin + group);
        for (int64_t row = begin; row < end; ++row) row_norm(args, tiles, run * args.num_rows + row);
        for (const Tile& tile : tiles) add_kept_rows(args, tile, run, begin, end, partial + i * columns + tile.joint);
      }
    }
  });
}

}  // namespace

Status clip_and_noise_cpu(const ClipArgs& args) {
  const std::vector<Tile> tiles = tiles_of(args.grads, args.num_params);
  const int64_t num_tiles = static_cast<int64_t>(tiles.size());
  int64_t columns = 0;
  for (const Tile& tile : tiles) columns += tile.count;
  const int64_t total_rows = args.num_runs * args.num_rows;
  const double reads = kNanosecondsPerElement * static_cast<double>(columns) * static_cast<double>(total_rows);
  const double draws =
      args.noise_scale > 0.0 ? 8.0 * static_cast<double>(columns) * static_cast<double>(args.num_runs) : 0.0;
  const int threads =
      useful_threads(reads + draws + 5.0 * static_cast<double>(total_rows * num_tiles), args.schedule.num_threads);

  const bool once = columns <= kNarrow && args.num_rows >= kLeastBlock;
  const Blocks blocks(args);
  std::vector<double> partial(once ? static_cast<size_t>(args.num_runs * blocks.per_run * columns) : 0);
  if (once) {
    norms_and_partial_sums(args, tiles, blocks, columns, threads, partial.data());
  } else {
    all_norms(args, tiles, threads);
  }
  if (args.check_finite) {
    for (int64_t i = 0; i < total_rows; ++i) {
      if (!std::isfinite(args.norms[i]) && kept(args, i / args.num_rows, i % args.num_rows)) {
        return {Code::non_finite, "clip_and_noise", "", i};
      }
    }
  }

  const int64_t chunk = args.schedule.chunk > 0 ? args.schedule.chunk : 1;
  parallel_for(args.num_runs * num_tiles, chunk, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double acc[kTile] = {};
      const Tile& tile = tiles[static_cast<size_t>(i % num_tiles)];
      const int64_t run = i / num_tiles;
      if (once) {
        for (int64_t b = 0; b < blocks.per_run; ++b) {
          const double* part = partial.data() + (run * blocks.per_run + b) * columns + tile.joint;
          for (int64_t c = 0; c < tile.count; ++c) acc[c] += part[c];
        }
      } else {
        add_kept_rows(args, tile, run, 0, args.num_rows, acc);
      }
      if (args.noise_scale > 0.0) add_noise(args, tile, run, acc);
      store_tile(args.sum[tile.param], run, 0, tile.first, tile.count, acc);
    }
  });
  return {};
}

}  // namespace leakcore
