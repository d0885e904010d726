// Random allocation on the CPU: threads over chunks of blocks; the work is allocation_simd's.
#include <algorithm>
#include <mutex>

#include "allocation/allocation.h"
#include "allocation/allocation_simd.h"
#include "allocation/plan.h"
#include "core/runtime/parallel.h"
#include "core/runtime/scratch.h"
#include "core/simd/isa.h"
#include "mixture/blocks.h"

namespace leakcore {
namespace {

// About what a sample costs, in nanoseconds.
double cost(const AllocationPlan& plan) {
  const double bins = static_cast<double>(plan.bins), draws = static_cast<double>(plan.draws);
  double products = static_cast<double>(plan.products());
  if (plan.level > 1) products = bins * static_cast<double>(plan.level);
  return static_cast<double>(plan.epochs) * (bins + (plan.quick ? 0.0 : draws) + 0.1 * products);
}

// chunk(each) for chunks of blocks on several threads; each(body) calls body(blocks, b, ratios) for every block b of
// the chunk, whose kBlock ratios have been computed.
template <class Chunk>
void over_blocks(const AllocationArgs& args, const AllocationPlan& plan, Chunk&& chunk) {
  const int64_t number = Blocks(args.first_sample, args.num_samples).number();
  const int threads = useful_threads(cost(plan) * kBlock * static_cast<double>(number), args.schedule.num_threads);
  const int64_t wanted = threads == 1 ? number : std::clamp<int64_t>(number / (16 * threads), 1, 256);
  parallel_for(number, args.schedule.chunk > 0 ? args.schedule.chunk : wanted, threads,
               [&](int64_t begin, int64_t end) {
                 const Scratch memory(kBlock * (1 + plan.work_per_sample()));
                 double* const ratios = memory.get();
                 chunk([&](auto&& body) {
                   Blocks blocks(args.first_sample, args.num_samples);
                   for (int64_t b = begin; b < end; ++b) {
                     blocks.move_to(b);
                     LEAKCORE_TIERED(allocation_loops)
                         .log_ratios(plan, args.seed, args.alternative, blocks.first_sample(), ratios, ratios + kBlock);
                     body(blocks, b, ratios);
                   }
                 });
               });
}

}  // namespace

Status allocation_log_ratio_cpu(const AllocationLogRatioArgs& args) {
  over_blocks(args, AllocationPlan(args), [&](auto&& each) {
    each([&](const Blocks& blocks, int64_t, const double* ratios) {
      if (args.single) {
        put_ratios(blocks, ratios, static_cast<float*>(args.out));
      } else {
        put_ratios(blocks, ratios, static_cast<double*>(args.out));
      }
    });
  });
  return {};
}

Status allocation_tail_cpu(const AllocationTailArgs& args) {
  std::mutex lock;
  over_blocks(args, AllocationPlan(args), [&](auto&& each) {
    TailShare share(args, 1);
    each([&](const Blocks& blocks, int64_t b, double* ratios) {
      share.add(blocks, 0, ratios);
      share.end_block(b);
    });
    share.give(lock);
  });
  return {};
}

}  // namespace leakcore
