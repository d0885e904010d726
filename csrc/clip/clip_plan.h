// How clip_and_noise on the CPU goes through its gradients: what depends on the sizes of rows, blocks and caches.
#pragma once

#include <algorithm>
#include <vector>

#include "clip/clip.h"
#include "clip/norm_cpu.h"
#include "clip/prefetch.h"
#include "core/runtime/machine.h"

namespace leakcore {

// Rows no wider than this are read once: four of them and their sum share a core's caches.
constexpr int64_t kOnceBytes = 512 * 1024;
// A block's partial sum takes as much room as 2 to 4 of its rows in float32, so blocks have many more.
constexpr int64_t kLeastBlock = 64;
constexpr int64_t kLeastRows = 32;  // fewer are read twice, by all threads
constexpr int64_t kMostBlocks = 16;
// Columns whose clipped sum stays in the second-level cache while the rows stream past it.
constexpr int64_t kPiece = 16384;
static_assert(kSegment % kPiece == 0, "a piece lies in one segment");
static_assert(kSegment * 4 >= kOnceBytes, "a row of floats that is read once is one segment");
// Bytes of a row and columns of a segment too short for the bookkeeping of overlapped norms and sums.
constexpr int64_t kShortRow = 2048;
constexpr int64_t kShort = 256;
// Pieces of a list's rows so long that four rows of them are enough to read in one go.
constexpr int64_t kLongPiece = 8192;
// Bytes of a group whose norms and sums take turns.
constexpr int64_t kGroupBytes = 256 * 1024;
// A second-level cache in which two rows of a list stay with their sum.
constexpr int64_t kLargeCache = 2 << 20;

// Four clipped rows of 16 bits could leave the range of float32: they are added singly, in double.
inline bool beyond_floats(const ClipArgs& args) {
  return args.num_params > 0 && size_of(args.grads->dtype) == 2 && args.max_grad_norm >= 0x1p120;
}

inline bool rows_in_place(const ClipArgs& args) {
  return std::all_of(args.grads, args.grads + args.num_params, in_place);
}

struct ClipPlan {
  std::vector<Segment> segments;  // for norms, and for the sums of rows that are read once
  std::vector<Segment> pieces;    // for sums
  int64_t columns = 0, slots = 0, row_bytes = 0;
  bool once = false;
  bool overlapped = false;             // rows read once: a group's sum goes on while the next group's squares are taken
  int64_t group = 1;                   // rows in a group: no bit depends on it
  int64_t block_rows = 1, blocks = 1;  // of one run; from the sizes alone, never from the threads

  explicit ClipPlan(const ClipArgs& args) {
    for (int32_t p = 0; p < args.num_params; ++p) {
      const Rows& rows = args.grads[p];
      for (int64_t c = 0; c < rows.numel; c += kSegment) {
        const int64_t count = std::min(kSegment, rows.numel - c);
        segments.push_back({p, c, count, columns + c, slots});
        for (int64_t k = 0; k < count; k += kPiece) {
          pieces.push_back({p, c + k, std::min(kPiece, count - k), columns + c + k, slots + k});
        }
        slots += segments.back().room();
      }
      columns += rows.numel;
      row_bytes += rows.numel * size_of(rows.dtype);
    }
    once = row_bytes <= kOnceBytes && args.num_rows >= (args.num_runs >= 4 ? kLeastRows / 2 : kLeastRows);
    overlapped = once && row_bytes >= kShortRow && rows_in_place(args) && !beyond_floats(args);
    group = overlapped ? overlapped_rows(args)
                       : std::clamp<int64_t>(kGroupBytes / std::max<int64_t>(row_bytes, 1) / kSumChain * kSumChain,
                                             kSumChain, kPanelRows);
    block_rows = std::max(kLeastBlock, (args.num_rows + kMostBlocks - 1) / kMostBlocks);
    blocks = std::max<int64_t>((args.num_rows + block_rows - 1) / block_rows, 1);
  }
  int64_t size() const { return static_cast<int64_t>(segments.size()); }

 private:
  // As many rows as fit the second-level cache together with the rows whose squares are taken and the sum; if none fit,
  // as many as are added fastest. Rows of 16 bits come in fours. In a list, four rows of long pieces suffice, and a
  // large cache counts room instead.
  int64_t overlapped_rows(const ClipArgs& args) const {
    if (segments.size() > 1 && second_level_cache() < kLargeCache) {
      const auto pieces_read =
          std::count_if(segments.begin(), segments.end(), [](const Segment& s) { return s.count >= kShort; });
      return row_bytes >= kLongPiece * pieces_read ? kMostOverlap / 2 : kMostOverlap;
    }
    const int64_t least = args.num_params > 0 && size_of(args.grads->dtype) == 2 ? kSumChain : kLeastOverlap;
    const int64_t room = second_level_cache() / 4 * 3 - slots * static_cast<int64_t>(sizeof(double));
    for (int64_t rows = kMostOverlap; rows >= least; rows /= 2) {
      if (2 * rows * row_bytes <= room) return rows;
    }
    return kMostOverlap;
  }
};

}  // namespace leakcore
