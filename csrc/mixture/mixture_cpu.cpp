// The mixture on the CPU: threads over chunks of blocks; the work is mixture_simd's.
#include <algorithm>
#include <mutex>
#include <optional>
#include <vector>

#include "core/runtime/parallel.h"
#include "core/runtime/scratch.h"
#include "core/simd/isa.h"
#include "mixture/mixture.h"
#include "mixture/mixture_simd.h"
#include "mixture/plan.h"

namespace leakcore {
namespace {

constexpr int64_t kOutside = int64_t{32} << 20;  // bytes of results that no cache is expected to hold

const MixtureLoops& mixture_loops() {
  return LEAKCORE_TIERED(mixture_loops);
}

// The ratios of one block after the other, for every configuration. Blocks lie at multiples of kBlock of the sample
// index, wherever the call's samples begin: none straddles a carry of the index, or cuts a group of samples that share
// a draw.
class Blocks {
 public:
  Blocks(const MixtureArgs& args, const MixturePlan& plan) : args_(args), plan_(plan) {}

  static int64_t skipped(const MixtureArgs& args) { return static_cast<int64_t>(args.first_sample % kBlock); }
  static int64_t number(const MixtureArgs& args) {
    return args.num_samples == 0 ? 0 : (skipped(args) + args.num_samples - 1) / kBlock + 1;
  }

  void move_to(int64_t b) { offset_ = b * kBlock - skipped(args_); }
  void compute() {
    if (!memory_) memory_.emplace(2 * plan_.configs * kBlock);
    mixture_loops().log_ratios(plan_, args_.seed, args_.alternative, first_sample(), at(0), at(plan_.configs));
  }
  uint64_t first_sample() const { return args_.first_sample + static_cast<uint64_t>(offset_); }
  // The block's samples in use are [begin, end); number i of the block is number offset + i of the call.
  int64_t offset() const { return offset_; }
  int begin() const { return static_cast<int>(std::max<int64_t>(-offset_, 0)); }
  int end() const { return static_cast<int>(std::min<int64_t>(kBlock, args_.num_samples - offset_)); }
  bool whole() const { return begin() == 0 && end() == kBlock; }
  double* at(int64_t config) { return memory_->get() + config * kBlock; }

 private:
  const MixtureArgs& args_;
  const MixturePlan& plan_;
  std::optional<Scratch> memory_;  // not before it is needed: one step's ratios go straight to their place
  int64_t offset_ = 0;
};

// `pieces` per thread: the last one may leave the other threads idle, so many, unless each costs something by itself
// (at one step its first words, which have no logarithms to go with); some 5 µs of work each at least.
template <class Body>
void over_blocks(const MixtureArgs& args, int64_t pieces, Body&& body) {
  const int64_t blocks = Blocks::number(args);
  // A step's draws and factors, and the logarithm as a part of a step.
  const double factor = args.single ? 0.25 : 0.5, log = args.single ? 0.1 : 0.5;
  const double per_step = (args.single ? 0.6 : 1.0) + factor * static_cast<double>(args.configs);
  const double nanoseconds = per_step * kBlock * static_cast<double>(blocks) * (static_cast<double>(args.steps) + log);
  const int threads = useful_threads(nanoseconds, args.schedule.num_threads);
  const int64_t least = args.steps < 16 ? 16 / (args.steps + 1) : 1;
  const int64_t wide = args.steps == 1 ? kWideBlock / kBlock : 1;
  const int64_t wanted =
      threads == 1 ? blocks : std::clamp<int64_t>(blocks / (pieces * threads), least, 256) / wide * wide;
  parallel_for(blocks, args.schedule.chunk > 0 ? args.schedule.chunk : wanted, wide, threads, body);
}

void carry_all(uint64_t* sums, size_t count) {
  for (size_t i = 0; i < count; i += kSumDigits) exact_carry(sums + i);
}

}  // namespace

Status mixture_log_ratio_cpu(const MixtureLogRatioArgs& args) {
  const MixturePlan plan(args);
  const bool quick = plan.one_step && args.single && plan.all(Form::quick);
  const bool straight = quick || (plan.one_step && !args.single && plan.all(Form::sparse));
  // Where no cache holds the result's memory its stores would wait: not where the system has yet to clear it.
  const int64_t size = args.single ? 4 : 8;
  const bool outside = straight && args.written && size * args.configs * args.num_samples >= kOutside;
  over_blocks(args, args.steps == 1 ? 4 : 32, [&](int64_t begin, int64_t end) {
    Blocks blocks(args, plan);
    for (int64_t b = begin; b < end; ++b) {
      blocks.move_to(b);
      if (straight && blocks.whole()) {
        const uint64_t first = blocks.first_sample();
        constexpr int64_t kWide = kWideBlock / kBlock;
        const int64_t left = std::min(end - b, (args.num_samples - blocks.offset()) / kBlock);
        const int64_t here = first % kWideBlock == 0 && left >= kWide ? left / kWide * kWide : 1;
        if (quick) {
          mixture_loops().one_step_quick(plan, args.seed, args.alternative, first, here * kBlock,
                                         static_cast<float*>(args.out) + blocks.offset(), args.config_stride, outside);
        } else {
          mixture_loops().one_step(plan, args.seed, args.alternative, first, here * kBlock,
                                   static_cast<double*>(args.out) + blocks.offset(), args.config_stride, outside);
        }
        b += here - 1;
        continue;
      }
      blocks.compute();
      const int from = blocks.begin(), count = blocks.end() - from;
      for (int64_t c = 0; c < args.configs; ++c) {
        const int64_t to = c * args.config_stride + blocks.offset() + from;
        if (args.single) {
          std::copy_n(blocks.at(c) + from, count, static_cast<float*>(args.out) + to);
        } else {
          std::copy_n(blocks.at(c) + from, count, static_cast<double*>(args.out) + to);
        }
      }
    }
  });
  return {};
}

Status mixture_tail_cpu(const MixtureTailArgs& args) {
  const MixturePlan plan(args);
  const size_t cells = static_cast<size_t>(args.configs * args.num_thresholds);
  std::mutex lock;
  over_blocks(args, 8, [&](int64_t begin, int64_t end) {
    Blocks blocks(args, plan);
    // Private to a chunk and added under a lock: integers, so the order does not matter.
    std::vector<int64_t> counts(2 * cells);
    std::vector<uint64_t> sums(cells * kTailSums * kSumDigits);
    for (int64_t b = begin; b < end; ++b) {
      blocks.move_to(b);
      blocks.compute();
      for (int64_t c = 0; c < args.configs; ++c) {
        const int64_t at = c * args.num_thresholds;
        mixture_loops().tally(blocks.at(c), blocks.begin(), blocks.end(),
                              {args.thresholds + at, args.num_thresholds, counts.data() + 2 * at,
                               sums.data() + at * kTailSums * kSumDigits});
      }
      if (b % 4096 == 4095) carry_all(sums.data(), sums.size());
    }
    carry_all(sums.data(), sums.size());
    const std::lock_guard<std::mutex> guard(lock);
    for (size_t j = 0; j < counts.size(); ++j) args.counts[j] += counts[j];
    for (size_t j = 0; j < sums.size(); ++j) args.sums[j] += sums[j];
    carry_all(args.sums, sums.size());
  });
  return {};
}

}  // namespace leakcore
