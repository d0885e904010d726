// clip_and_noise on the CPU: all norms first (so that a bad row stops it before anything is written), then the sum,
// tile of columns by tile of columns, each tile over the rows in order. The gradients are read twice and never copied.
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

void all_norms(const ClipArgs& args, const std::vector<Tile>& tiles, int threads) {
  const int64_t rows = args.num_runs * args.num_rows;
  const int64_t per_row = static_cast<int64_t>(tiles.size());
  const auto finish = [&](int64_t item, double squares) {
    args.norms[item] = norm_of(squares, args.grads, args.num_params, item / args.num_rows, item % args.num_rows);
  };
  if (rows >= 4 * threads || per_row <= 1) {
    const int64_t chunk =
        args.schedule.chunk > 0 ? args.schedule.chunk : std::clamp<int64_t>(rows / (8 * threads), 1, 1024);
    parallel_for(rows, chunk, threads, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        double squares = 0.0;
        for (const Tile& tile : tiles) squares += tile_squares(args, tile, item / args.num_rows, item % args.num_rows);
        finish(item, squares);
      }
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
    finish(item, squares);
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

// Rows per partial sum. Narrow gradients of large batches have too few tiles to share, so their rows are cut into
// blocks; the rule sees the sizes alone, never the threads.
int64_t block_rows(int64_t num_tiles, int64_t num_rows) {
  return num_tiles >= 16 ? std::max<int64_t>(num_rows, 1) : 2048;
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

  all_norms(args, tiles, threads);
  if (args.check_finite) {
    for (int64_t i = 0; i < total_rows; ++i) {
      if (!std::isfinite(args.norms[i]) && kept(args, i / args.num_rows, i % args.num_rows)) {
        return {Code::non_finite, "clip_and_noise", "", i};
      }
    }
  }

  const int64_t block = block_rows(num_tiles, args.num_rows);
  const int64_t blocks = std::max<int64_t>((args.num_rows + block - 1) / block, 1);
  const auto sum_block = [&](const Tile& tile, int64_t run, int64_t b, double* acc) {
    std::fill(acc, acc + tile.count, 0.0);
    add_kept_rows(args, tile, run, b * block, std::min(args.num_rows, (b + 1) * block), acc);
  };
  const auto finish = [&](const Tile& tile, int64_t run, double* acc) {
    if (args.noise_scale > 0.0) add_noise(args, tile, run, acc);
    store_tile(args.sum[tile.param], run, 0, tile.first, tile.count, acc);
  };
  const int64_t chunk = args.schedule.chunk > 0 ? args.schedule.chunk : 1;
  if (blocks == 1) {
    parallel_for(args.num_runs * num_tiles, chunk, threads, [&](int64_t begin, int64_t end) {
      double acc[kTile];
      for (int64_t i = begin; i < end; ++i) {
        const Tile& tile = tiles[static_cast<size_t>(i % num_tiles)];
        sum_block(tile, i / num_tiles, 0, acc);
        finish(tile, i / num_tiles, acc);
      }
    });
    return {};
  }
  const int64_t per_run = num_tiles * blocks;
  std::vector<double> partial(static_cast<size_t>(blocks * columns));
  for (int64_t run = 0; run < args.num_runs; ++run) {
    parallel_for(per_run, chunk, threads, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Tile& tile = tiles[static_cast<size_t>(i % num_tiles)];
        sum_block(tile, run, i / num_tiles, &partial[static_cast<size_t>(i / num_tiles * columns + tile.joint)]);
      }
    });
    for (const Tile& tile : tiles) {
      double acc[kTile] = {};
      for (int64_t b = 0; b < blocks; ++b) {
        const double* part = &partial[static_cast<size_t>(b * columns + tile.joint)];
        for (int64_t i = 0; i < tile.count; ++i) acc[i] += part[i];
      }
      finish(tile, run, acc);
    }
  }
  return {};
}

}  // namespace leakcore
