// clip_scores on the CPU: norm and inner products of a row from the same tile of it, so that the gradients are read
// once. The observed rows are converted once per block of rows and stay in the second-level cache.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "clip/clip.h"
#include "clip/norm_cpu.h"
#include "core/products/tile.h"
#include "core/runtime/machine.h"
#include "core/runtime/parallel.h"

namespace leakcore {
namespace {

constexpr int64_t kTile = 4096;  // columns whose inner products are summed in one go
// Tiles of rows that are read side by side: the longer the better, as long as the observations fill a quarter of the
// second-level cache.
constexpr int64_t kMostTiles = 16;
constexpr int64_t kGroup = 4;       // rows whose tiles are read together
constexpr int64_t kMostRows = 256;  // that share observations converted once

// The bytes from the end of `count` columns from `column` of the rows from `row` to those that are read afterwards: of
// the next rows the same columns, after the last rows the first ones' next columns.
int64_t to_next_rows(const Rows& grads, int64_t run, int64_t begin, int64_t end, int64_t row, int64_t column,
                     int64_t count) {
  if (!in_place(grads)) return 0;
  const auto address = [&](int64_t r, int64_t c) { return reinterpret_cast<intptr_t>(row_in_place(grads, run, r, c)); };
  const bool last = row + kGroup >= end;
  return (last ? address(begin, column + count) : address(row + kGroup, column)) - address(row, column + count);
}

// What left the range of float32 on the way, in double.
double dot_in_double(const ClipScoresArgs& args, int64_t run, int64_t row, int64_t m) {
  double x[kStripe], o[kStripe], sum = 0.0;
  for (int64_t c = 0; c < args.grads.numel; c += kStripe) {
    const int64_t count = std::min(kStripe, args.grads.numel - c);
    load_tile(args.grads, run, row, c, count, x);
    load_tile(args.observed, run, m, c, count, o);
    for (int64_t i = 0; i < count; ++i) sum += x[i] * o[i];
  }
  return sum;
}

// The loop for observations stored as Real.
template <class Real>
auto dots_loop(const ClipLoops& loops) {
  if constexpr (std::is_same_v<Real, float>) {
    return loops.add_float_dots;
  } else {
    return loops.add_dots;
  }
}

template <class Real>
void score_rows(const ClipScoresArgs& args, int64_t run, int64_t begin, int64_t end) {
  const int64_t rows = end - begin, observed_here = std::min(kMostObserved, args.num_observed);
  std::vector<double> lanes(static_cast<size_t>(rows * kSquareLanes));
  std::vector<double> dots(static_cast<size_t>(rows * args.num_observed));
  const int64_t vectors = std::max<int64_t>(args.num_observed, 1);
  const int64_t room = second_level_cache() / 4 / (vectors * kTile * static_cast<int64_t>(sizeof(Real)));
  const int64_t stretch = kTile * std::clamp<int64_t>(room, 1, kMostTiles);
  std::vector<Real> observed(static_cast<size_t>(observed_here * stretch));
  std::vector<Real> buffer(static_cast<size_t>(in_place(args.grads) ? 0 : kGroup * kTile));
  for (int64_t c = 0; c < args.grads.numel; c += stretch) {
    const int64_t count = std::min(stretch, args.grads.numel - c);
    for (int64_t first = 0; first == 0 || first < args.num_observed; first += kMostObserved) {
      const int64_t last = std::min(args.num_observed, first + kMostObserved);
      for (int64_t m = first; m < last; ++m) {
        load_tile(args.observed, run, m, c, count, &observed[static_cast<size_t>((m - first) * stretch)]);
      }
      for (int64_t r = 0; r < rows; r += kGroup) {
        int64_t numbers[kGroup];
        const int64_t here = std::min(kGroup, rows - r);
        for (int64_t k = 0; k < here; ++k) numbers[k] = begin + r + k;
        double* squares = first == 0 ? lanes.data() + r * kSquareLanes : nullptr;
        const int64_t next = to_next_rows(args.grads, run, begin, end, begin + r, c, count);
        for (int64_t t = 0; t < count; t += kTile) {
          for_stripes<kTile>(args.grads, run, numbers, here, c + t, std::min(kTile, count - t), buffer.data(),
                             [&](const ClipLoops& loops, const void* const* rows_here, int64_t, int64_t columns) {
                               if (args.num_observed == 0) return loops.squares(rows_here, here, columns, squares);
                               dots_loop<Real>(loops)(rows_here, here, columns, t + columns < count ? 0 : next,
                                                      observed.data() + t, stretch, last - first,
                                                      dots.data() + r * args.num_observed + first, args.num_observed,
                                                      squares);
                             });
        }
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const double squares = fold_squares(lanes.data() + r * kSquareLanes);
    const double norm = norm_of(squares, &args.grads, 1, run, begin + r);
    const double factor = clip_factor(args.max_grad_norm, norm);
    args.norms[run * args.num_rows + begin + r] = norm;
    for (int64_t m = 0; m < args.num_observed; ++m) {
      double dot = dots[static_cast<size_t>(r * args.num_observed + m)];
      if (std::is_same_v<Real, float> && !std::isfinite(dot)) dot = dot_in_double(args, run, begin + r, m);
      args.dots[(run * args.num_observed + m) * args.num_rows + begin + r] = factor * dot;
    }
  }
}

}  // namespace

Status clip_scores_cpu(const ClipScoresArgs& args) {
  const double per_element = 0.3 + 0.15 * static_cast<double>(args.num_observed);
  const int64_t total = args.num_runs * args.num_rows;
  const double elements = static_cast<double>(args.grads.numel) * static_cast<double>(total);
  const int threads = useful_threads(per_element * elements, args.schedule.num_threads);
  const int64_t rows =
      std::min(args.num_rows, args.schedule.chunk > 0 ? args.schedule.chunk
                                                      : std::clamp<int64_t>(total / (4 * threads), 1, kMostRows));
  const int64_t blocks = rows > 0 ? (args.num_rows + rows - 1) / rows : 0;
  parallel_for(args.num_runs * blocks, 1, threads, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const int64_t begin = i % blocks * rows;
      const auto score = args.float_products ? score_rows<float> : score_rows<double>;
      score(args, i / blocks, begin, std::min(args.num_rows, begin + rows));
    }
  });
  if (args.check_finite) {
    for (int64_t i = 0; i < total; ++i) {
      if (!std::isfinite(args.norms[i])) return {Code::non_finite, "clip_scores", "", i};
    }
  }
  return {};
}

}  // namespace leakcore
