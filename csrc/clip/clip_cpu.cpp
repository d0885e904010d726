// clip_and_noise on the CPU. Short rows are read once: the norms of a group are taken while the group before it, still
// in the cache, is added to its block's partial sum. Long rows are read twice: all norms, then the sum by segments of
// columns. No row is copied, and nothing is written before every norm is known to be finite.
#include "clip/clip.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "clip/clip_plan.h"
#include "clip/norm_cpu.h"
#include "clip/prefetch.h"
#include "core/products/tile.h"
#include "core/rng/normal.h"
#include "core/rng/streams.h"
#include "core/runtime/line.h"
#include "core/runtime/parallel.h"
#include "core/runtime/scratch.h"

namespace leakcore {
namespace {

constexpr double kNanosecondsPerElement = 0.3;
constexpr double kNanosecondsPerDraw = 4.0;
constexpr double kNanosecondsPerRowSegment = 10.0;

// How far ahead of the norms memory is prefetched.
constexpr int64_t kAheadBytes = 12288;
// Rows of a pass for norms alone that are read at the same time.
constexpr int64_t kNormRows = 4;

// Columns of rows that do not lie in place; a thread's stack may be too small for them.
int64_t copies(const ClipArgs& args) {
  return rows_in_place(args) ? 0 : kPanelRows * kStripe;
}

bool counts(const ClipArgs& args, int64_t run, int64_t row) {
  return args.mask == nullptr || args.mask[run * args.mask_run_stride + row * args.mask_row_stride] != 0;
}

// Rows that count, by number, with their factors, in order.
struct Pending {
  std::vector<int64_t> rows;
  std::vector<double> factors;

  int64_t count() const { return static_cast<int64_t>(rows.size()); }
  void drop(int64_t n) {
    rows.erase(rows.begin(), rows.begin() + n);
    factors.erase(factors.begin(), factors.begin() + n);
  }
  void take(const ClipArgs& args, int64_t run, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (!counts(args, run, row)) continue;
      rows.push_back(row);
      factors.push_back(clip_factor(args.max_grad_norm, args.norms[run * args.num_rows + row]));
    }
  }
};

// squares[r·stride] of up to kPanelRows neighbouring rows of a segment.
void segment_squares(const ClipArgs& args, const Segment& s, int64_t run, int64_t row, int64_t num_rows, double* buffer,
                     double* squares, int64_t stride) {
  const Rows& rows = args.grads[s.param];
  // Of rows of a few steps the lanes need not go through memory.
  if (s.count >= kSquareLanes && s.count < kShort && in_place(rows)) {
    const void* pointers[kPanelRows];
    for (int64_t r = 0; r < num_rows; ++r) pointers[r] = row_in_place(rows, run, row + r, s.first);
    return loops_of(rows.dtype).sums_of_squares(pointers, num_rows, s.count, squares, stride);
  }
  alignas(kLine) double lanes[kPanelRows][kSquareLanes] = {};
  int64_t numbers[kPanelRows];
  for (int64_t r = 0; r < num_rows; ++r) numbers[r] = row + r;
  for_stripes(rows, run, numbers, num_rows, s.first, s.count, buffer,
              [&](const ClipLoops& loops, const void* const* pointers, int64_t, int64_t count) {
                loops.squares(pointers, num_rows, count, lanes[0]);
              });
  for (int64_t r = 0; r < num_rows; ++r) squares[r * stride] = fold_squares(lanes[r]);
}

// Norms of neighbouring rows of one run, from the squares of their segments, added in order.
void finish_norms(const ClipArgs& args, int64_t run, int64_t begin, int64_t end, const double* squares,
                  int64_t segments) {
  for (int64_t row = begin; row < end; ++row, squares += segments) {
    double sum = 0.0;
    for (int64_t s = 0; s < segments; ++s) sum += squares[s];
    args.norms[run * args.num_rows + row] = norm_of(sum, args.grads, args.num_params, run, row);
  }
}

// acc += the first `total` of the rows that count, in order.
void add_rows(const ClipArgs& args, const Segment& s, int64_t run, const Pending& pending, int64_t total,
              double* buffer, double* acc) {
  const int64_t together = beyond_floats(args) ? 1 : 12;
  for (int64_t r = 0; r < total; r += together) {
    const int64_t here = std::min(together, total - r);
    for_stripes(args.grads[s.param], run, pending.rows.data() + r, here, s.first, s.count, buffer,
                [&](const ClipLoops& loops, const void* const* pointers, int64_t offset, int64_t count) {
                  loops.add_rows(pointers, pending.factors.data() + r, here, count, acc + offset);
                });
  }
}

void all_norms(const ClipArgs& args, const ClipPlan& plan, int threads) {
  const int64_t group = rows_in_place(args) ? kNormRows : kPanelRows;
  const int64_t groups = (args.num_rows + group - 1) / group, per_row = plan.size();
  std::vector<double> squares(static_cast<size_t>(args.num_runs * args.num_rows * per_row));
  const int64_t items = args.num_runs * groups * per_row;
  const int64_t chunk =
      args.schedule.chunk > 0 ? args.schedule.chunk : std::clamp<int64_t>(items / (8 * threads), 1, 256);
  parallel_for(items, chunk, threads, [&](int64_t begin, int64_t end) {
    const Scratch buffer(copies(args));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t run = i / (groups * per_row), row = i / per_row % groups * group, s = i % per_row;
      segment_squares(args, plan.segments[static_cast<size_t>(s)], run, row, std::min(group, args.num_rows - row),
                      buffer.get(), squares.data() + (run * args.num_rows + row) * per_row + s, per_row);
    }
  });
  for (int64_t run = 0; run < args.num_runs; ++run) {
    finish_norms(args, run, 0, args.num_rows, squares.data() + run * args.num_rows * per_row, per_row);
  }
}

// The squares of a group's rows, and meanwhile as many first rows of `pending` into their sum.
void squares_during_sum(const ClipArgs& args, const ClipPlan& plan, const Group& group, Ahead& ahead, int64_t run,
                        const Pending& pending, double* squares, double* sum) {
  const int64_t per_row = plan.size(), together = plan.group;
  for (size_t turn = 0; turn < plan.segments.size(); ++turn) {
    const size_t k = group.segment(turn, plan.segments.size());
    const Segment& s = plan.segments[k];
    const Rows& rows = args.grads[s.param];
    const ClipLoops& loops = loops_of(rows.dtype);
    const int64_t size = size_of(rows.dtype);
    const char *read[kMostOverlap], *added[kMostOverlap];
    for (int64_t r = 0; r < together; ++r) {
      read[r] = static_cast<const char*>(row_in_place(rows, group.run, group.begin + r, s.first));
      added[r] = static_cast<const char*>(row_in_place(rows, run, pending.rows[static_cast<size_t>(r)], s.first));
    }
    const void* others[kMostOverlap];
    int64_t whole = 0;
    if (s.count < kShort) {
      ahead.bring(together * s.count * size);
      segment_squares(args, s, group.run, group.begin, together, nullptr, squares + k, per_row);
    } else {
      const int64_t step = loops.overlap_step;
      whole = s.count / step * step;
      const int64_t rest = s.count - whole;
      alignas(kLine) double lanes[kMostOverlap][kSquareLanes] = {};
      for (int64_t r = 0; r < together; ++r) {
        for (int64_t done = 0; done < whole;) {
          const int64_t here = std::clamp(ahead.left() / size / step * step, step, whole - done);
          const int64_t column = (r * whole + done) / together;
          for (int64_t o = 0; o < together; ++o) others[o] = added[o] + column * size;
          loops.squares_during_sum(read[r] + done * size, here, lanes[r], ahead.here(), others, pending.factors.data(),
                                   together, sum + s.slot + column);
          ahead.skip(here * size);
          done += here;
        }
        ahead.bring(rest * size);
      }
      if (rest > 0) {
        for (int64_t r = 0; r < together; ++r) others[r] = read[r] + whole * size;
        loops.squares(others, together, rest, lanes[0]);
      }
      for (int64_t r = 0; r < together; ++r) squares[r * per_row + static_cast<int64_t>(k)] = fold_squares(lanes[r]);
    }
    if (whole == s.count) continue;
    for (int64_t o = 0; o < together; ++o) others[o] = added[o] + whole * size;
    loops.add_rows(others, pending.factors.data(), together, s.count - whole, sum + s.slot + whole);
  }
}

// The groups of rows in blocks [from, to), in order.
std::vector<Group> groups_of(const ClipArgs& args, const ClipPlan& plan, int64_t from, int64_t to) {
  std::vector<Group> groups;
  for (int64_t i = from; i < to; ++i) {
    const int64_t start = i % plan.blocks * plan.block_rows, stop = std::min(args.num_rows, start + plan.block_rows);
    for (int64_t begin = start; begin < stop; begin += plan.group) {
      groups.push_back({i / plan.blocks, begin, std::min(stop, begin + plan.group), i, groups.size() % 2 == 1});
    }
  }
  return groups;
}

// partial[run·blocks + block][slot], and all norms. A group's rows are added while the next group's squares are taken,
// or, where the plan does not overlap them, right after their own.
void norms_and_partial_sums(const ClipArgs& args, const ClipPlan& plan, int threads, double* partial) {
  const int64_t per_row = plan.size(), items = args.num_runs * plan.blocks;
  const int64_t chunk = args.schedule.chunk > 0 ? args.schedule.chunk
                        : threads == 1          ? items
                                                : std::max<int64_t>(items / (2 * threads), 1);
  parallel_for(items, chunk, threads, [&](int64_t from, int64_t to) {
    const std::vector<Group> groups = groups_of(args, plan, from, to);
    const Scratch buffer(copies(args));
    std::vector<double> squares(static_cast<size_t>(plan.group * per_row));
    Ahead ahead(args.grads, plan.segments, groups);
    Pending pending;  // rows of one block whose norms are known and which are not yet added
    int64_t block = -1;
    const auto add_pending = [&](int64_t total) {
      for (const Segment& s : plan.segments) {
        if (total == 0) break;
        add_rows(args, s, block / plan.blocks, pending, total, buffer.get(), partial + block * plan.slots + s.slot);
      }
      pending.drop(total);
    };
    for (size_t g = 0; g < groups.size(); ++g) {
      const Group& group = groups[g];
      if (plan.overlapped && pending.count() >= plan.group && group.end - group.begin == plan.group) {
        ahead.start(g, kAheadBytes);
        squares_during_sum(args, plan, group, ahead, block / plan.blocks, pending, squares.data(),
                           partial + block * plan.slots);
        pending.drop(plan.group);
      } else {
        for (int64_t s = 0; s < per_row; ++s) {
          segment_squares(args, plan.segments[static_cast<size_t>(s)], group.run, group.begin, group.end - group.begin,
                          buffer.get(), squares.data() + s, per_row);
        }
      }
      finish_norms(args, group.run, group.begin, group.end, squares.data(), per_row);
      if (group.block != block) {
        add_pending(pending.count());
        block = group.block;
        std::fill(partial + block * plan.slots, partial + (block + 1) * plan.slots, 0.0);
      }
      pending.take(args, group.run, group.begin, group.end);
      if (!plan.overlapped) add_pending(pending.count() / kSumChain * kSumChain);
    }
    add_pending(pending.count());
  });
}

// acc[c] = parts[c] + parts[stride + c] + …, in order; both have room for whole eights.
void add_blocks(const double* parts, int64_t blocks, int64_t stride, int64_t count, double* acc) {
  constexpr int64_t kEight = 8;
  for (int64_t c = 0; c < count; c += kEight) {
    double sum[kEight] = {};
    for (int64_t b = 0; b < blocks; ++b) {
      for (int64_t k = 0; k < kEight; ++k) sum[k] += parts[b * stride + c + k];
    }
    std::copy_n(sum, kEight, acc + c);
  }
}

void add_noise(const ClipArgs& args, const Segment& s, int64_t run, double* acc) {
  double z[kStripe];
  for (int64_t offset = 0; offset < s.count; offset += kStripe) {
    const int64_t count = std::min(kStripe, s.count - offset);
    if (args.noise != nullptr) {
      load_tile(args.noise[s.param], run, 0, s.first + offset, count, z);
    } else {
      fill_normals(args.seed, stream_word(Purpose::clip_noise, args.step), args.first_run + static_cast<uint64_t>(run),
                   s.joint + offset, count, z);
    }
    for (int64_t i = 0; i < count; ++i) acc[offset + i] += args.noise_scale * z[i];
  }
}

// Where the caller's normals first are not finite, counted through all runs; -1: nowhere.
int64_t first_bad_noise(const ClipArgs& args, const ClipPlan& plan) {
  double z[kStripe];
  for (int64_t run = 0; run < args.num_runs; ++run) {
    for (const Segment& s : plan.pieces) {
      for (int64_t offset = 0; offset < s.count; offset += kStripe) {
        const int64_t count = std::min(kStripe, s.count - offset);
        load_tile(args.noise[s.param], run, 0, s.first + offset, count, z);
        for (int64_t i = 0; i < count; ++i) {
          if (!std::isfinite(z[i])) return run * plan.columns + s.joint + offset + i;
        }
      }
    }
  }
  return -1;
}

}  // namespace

Status clip_and_noise_cpu(const ClipArgs& args) {
  const ClipPlan plan(args);
  const int64_t total_rows = args.num_runs * args.num_rows, num_pieces = static_cast<int64_t>(plan.pieces.size());
  const double elements = static_cast<double>(plan.columns) * static_cast<double>(total_rows);
  const double draws =
      args.noise_scale > 0.0 ? static_cast<double>(plan.columns) * static_cast<double>(args.num_runs) : 0.0;
  const int threads = useful_threads(kNanosecondsPerElement * elements + kNanosecondsPerDraw * draws +
                                         kNanosecondsPerRowSegment * static_cast<double>(total_rows * num_pieces),
                                     args.schedule.num_threads);

  const Scratch partial(plan.once ? args.num_runs * plan.blocks * plan.slots : 0);
  if (plan.once) {
    norms_and_partial_sums(args, plan, threads, partial.get());
  } else {
    all_norms(args, plan, threads);
  }
  if (args.check_finite) {
    for (int64_t i = 0; i < total_rows; ++i) {
      if (!std::isfinite(args.norms[i]) && counts(args, i / args.num_rows, i % args.num_rows)) {
        return {Code::non_finite, "clip_and_noise", "", i};
      }
    }
    if (args.noise != nullptr && args.noise_scale > 0.0) {
      const int64_t bad = first_bad_noise(args, plan);
      if (bad >= 0) return {Code::non_finite, "clip_and_noise", "noise", bad};
    }
  }

  std::vector<Pending> pending(static_cast<size_t>(plan.once ? 0 : args.num_runs));
  for (size_t run = 0; run < pending.size(); ++run)
    pending[run].take(args, static_cast<int64_t>(run), 0, args.num_rows);
  const int64_t items = args.num_runs * num_pieces;
  const int64_t chunk =
      args.schedule.chunk > 0 ? args.schedule.chunk : std::max<int64_t>(items / (threads == 1 ? 1 : 8 * threads), 1);
  parallel_for(items, chunk, threads, [&](int64_t begin, int64_t end) {
    const Scratch sum(std::min(kPiece, plan.slots));
    double* acc = sum.get();
    const Scratch buffer(copies(args));
    for (int64_t i = begin; i < end; ++i) {
      const Segment& s = plan.pieces[static_cast<size_t>(i % num_pieces)];
      const int64_t run = i / num_pieces;
      if (plan.once) {
        add_blocks(partial.get() + run * plan.blocks * plan.slots + s.slot, plan.blocks, plan.slots, s.count, acc);
      } else {
        std::fill(acc, acc + s.count, 0.0);
        const Pending& rows = pending[static_cast<size_t>(run)];
        add_rows(args, s, run, rows, rows.count(), buffer.get(), acc);
      }
      if (args.noise_scale > 0.0) add_noise(args, s, run, acc);
      store_tile(args.sum[s.param], run, 0, s.first, s.count, acc);
    }
  });
  return {};
}

}  // namespace leakcore
