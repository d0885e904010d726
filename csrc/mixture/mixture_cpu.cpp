// The mixture on the CPU: threads over chunks of blocks; the work is mixture_simd's.
#include <algorithm>
#include <mutex>
#include <optional>

#include "core/runtime/parallel.h"
#include "core/runtime/scratch.h"
#include "core/simd/isa.h"
#include "mixture/blocks.h"
#include "mixture/mixture.h"
#include "mixture/mixture_simd.h"
#include "mixture/plan.h"

namespace leakcore {
namespace {

constexpr int64_t kOutside = int64_t{32} << 20;  // bytes of results that no cache is expected to hold

const MixtureLoops& mixture_loops() {
  return LEAKCORE_TIERED(mixture_loops);
}

// The ratios of a block, for every configuration.
class BlockRatios {
 public:
  BlockRatios(const MixtureArgs& args, const MixturePlan& plan) : args_(args), plan_(plan) {}

  void compute(const Blocks& blocks) {
    if (!memory_) memory_.emplace(2 * plan_.configs * kBlock);
    mixture_loops().log_ratios(plan_, args_.seed, args_.alternative, blocks.first_sample(), at(0), at(plan_.configs));
  }
  double* at(int64_t config) { return memory_->get() + config * kBlock; }

 private:
  const MixtureArgs& args_;
  const MixturePlan& plan_;
  std::optional<Scratch> memory_;  // not before it is needed: one step's ratios go straight to their place
};

// `pieces` per thread: the last one may leave the other threads idle, so many, unless each costs something by itself
// (at one step its first words, which have no logarithms to go with); some 5 µs of work each at least.
template <class Body>
void over_blocks(const MixtureArgs& args, int64_t pieces, Body&& body) {
  const int64_t blocks = Blocks(args.first_sample, args.num_samples).number();
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

}  // namespace

Status mixture_log_ratio_cpu(const MixtureLogRatioArgs& args) {
  const MixturePlan plan(args);
  const bool quick = plan.one_step && args.single && plan.all(Form::quick);
  const bool straight = quick || (plan.one_step && !args.single && plan.all(Form::sparse));
  // Where no cache holds the result's memory its stores would wait: not where the system has yet to clear it.
  const int64_t size = args.single ? 4 : 8;
  const bool outside = straight && args.written && size * args.configs * args.num_samples >= kOutside;
  over_blocks(args, args.steps == 1 ? 4 : 32, [&](int64_t begin, int64_t end) {
    Blocks blocks(args.first_sample, args.num_samples);
    BlockRatios ratios(args, plan);
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
      ratios.compute(blocks);
      for (int64_t c = 0; c < args.configs; ++c) {
        const int64_t to = c * args.config_stride;
        if (args.single) {
          put_ratios(blocks, ratios.at(c), static_cast<float*>(args.out) + to);
        } else {
          put_ratios(blocks, ratios.at(c), static_cast<double*>(args.out) + to);
        }
      }
    }
  });
  return {};
}

Status mixture_tail_cpu(const MixtureTailArgs& args) {
  const MixturePlan plan(args);
  std::mutex lock;
  over_blocks(args, 8, [&](int64_t begin, int64_t end) {
    Blocks blocks(args.first_sample, args.num_samples);
    BlockRatios ratios(args, plan);
    TailShare share(args, args.configs);
    for (int64_t b = begin; b < end; ++b) {
      blocks.move_to(b);
      ratios.compute(blocks);
      for (int64_t c = 0; c < args.configs; ++c) share.add(blocks, c, ratios.at(c));
      share.end_block(b);
    }
    share.give(lock);
  });
  return {};
}

}  // namespace leakcore
