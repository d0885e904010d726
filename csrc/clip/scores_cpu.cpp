// clip_scores on the CPU: norm and inner products of a row from the same tile of it, so that the gradients are read
// once. The observed rows are converted once per block of rows and stay in the second-level cache.
#include <algorithm>
#include <cmath>
#include <vector>

#include "clip/clip.h"
#include "clip/norm_cpu.h"
#include "core/parallel.h"
#include "core/tile.h"

namespace leakcore {
namespace {

constexpr int64_t kTile = 4096;  // columns whose inner products are summed in one go
constexpr int64_t kObservedBlock = 16;
constexpr int64_t kGroup = 4;  // rows whose tiles are in the first-level cache together

void score_rows(const ClipScoresArgs& args, int64_t begin, int64_t end) {
  const int64_t rows = end - begin;
  std::vector<double> lanes(static_cast<size_t>(rows * kSquareLanes));
  std::vector<double> squares(static_cast<size_t>(rows));
  std::vector<double> dots(static_cast<size_t>(rows * args.num_observed));
  std::vector<double> observed(static_cast<size_t>(std::min(kObservedBlock, args.num_observed) * kTile));
  std::vector<double> buffer(static_cast<size_t>(in_place(args.grads) ? 0 : kGroup * kTile));
  for (int64_t c = 0; c < args.grads.numel; c += kTile) {
    const int64_t count = std::min(kTile, args.grads.numel - c);
    for (int64_t first = 0; first == 0 || first < args.num_observed; first += kObservedBlock) {
      const int64_t last = std::min(args.num_observed, first + kObservedBlock);
      for (int64_t m = first; m < last; ++m)
        load_tile(args.observed, 0, m, c, count, &observed[static_cast<size_t>((m - first) * kTile)]);
      for (int64_t r = 0; r < rows; r += kGroup) {
        int64_t numbers[kGroup];
        const int64_t here = std::min(kGroup, rows - r);
        for (int64_t k = 0; k < here; ++k) numbers[k] = begin + r + k;
        for_stripes<kTile>(args.grads, 0, numbers, here, c, count, buffer.data(),
                           [&](const ClipLoops& loops, const void* const* pointers, int64_t, int64_t columns) {
                             for (int64_t k = 0; first == 0 && k < here; ++k) {
                               loops.squares(pointers[k], columns, &lanes[static_cast<size_t>((r + k) * kSquareLanes)]);
                             }
                             loops.add_dots(pointers, here, columns, observed.data(), kTile, last - first,
                                            dots.data() + r * args.num_observed + first, args.num_observed);
                           });
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    squares[static_cast<size_t>(r)] = fold_squares(&lanes[static_cast<size_t>(r * kSquareLanes)]);
    const double norm = norm_of(squares[static_cast<size_t>(r)], &args.grads, 1, 0, begin + r);
    const double factor = clip_factor(args.max_grad_norm, norm);
    args.norms[begin + r] = norm;
    for (int64_t m = 0; m < args.num_observed; ++m) {
      args.dots[m * args.num_rows + begin + r] = factor * dots[static_cast<size_t>(r * args.num_observed + m)];
    }
  }
}

}  // namespace

Status clip_scores_cpu(const ClipScoresArgs& args) {
  const double per_element = 0.5 + 0.3 * static_cast<double>(args.num_observed);
  const double elements = static_cast<double>(args.grads.numel) * static_cast<double>(args.num_rows);
  const int threads = useful_threads(per_element * elements, args.schedule.num_threads);
  const int64_t chunk =
      args.schedule.chunk > 0 ? args.schedule.chunk : std::clamp<int64_t>(args.num_rows / (4 * threads), 1, 64);
  parallel_for(args.num_rows, chunk, threads, [&](int64_t begin, int64_t end) { score_rows(args, begin, end); });
  if (args.check_finite) {
    for (int64_t i = 0; i < args.num_rows; ++i) {
      if (!std::isfinite(args.norms[i])) return {Code::non_finite, "clip_scores", "", i};
    }
  }
  return {};
}

}  // namespace leakcore
