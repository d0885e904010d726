// A call's samples on the CPU: blocks of kBlock of them, and what a chunk of blocks counts for itself.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

#include "core/simd/isa.h"
#include "mixture/mixture_simd.h"
#include "mixture/tail.h"

namespace leakcore {

// One block after the other. They lie at multiples of kBlock of the sample index, wherever the call's samples begin:
// none straddles a carry of the index, or cuts a group of samples that share a draw.
class Blocks {
 public:
  Blocks(uint64_t first_sample, int64_t num_samples)
      : first_sample_(first_sample), num_samples_(num_samples), skipped_(static_cast<int64_t>(first_sample % kBlock)) {}

  int64_t number() const { return num_samples_ == 0 ? 0 : (skipped_ + num_samples_ - 1) / kBlock + 1; }
  void move_to(int64_t b) { offset_ = b * kBlock - skipped_; }
  uint64_t first_sample() const { return first_sample_ + static_cast<uint64_t>(offset_); }
  // The block's samples in use are [begin, end); number i of the block is number offset + i of the call.
  int64_t offset() const { return offset_; }
  int begin() const { return static_cast<int>(std::max<int64_t>(-offset_, 0)); }
  int end() const { return static_cast<int>(std::min<int64_t>(kBlock, num_samples_ - offset_)); }
  bool whole() const { return begin() == 0 && end() == kBlock; }

 private:
  uint64_t first_sample_;
  int64_t num_samples_, skipped_;
  int64_t offset_ = 0;
};

// A block's ratios to their place in the result.
template <class T>
void put_ratios(const Blocks& blocks, const double* ratios, T* out) {
  const int from = blocks.begin();
  std::copy_n(ratios + from, blocks.end() - from, out + (blocks.offset() + from));
}

// Counts and sums private to a chunk, and added to the call's under a lock: integers, so the order does not matter.
class TailShare {
 public:
  TailShare(const TailArgs& args, int64_t configs)
      : args_(args),
        counts_(static_cast<size_t>(2 * configs * args.num_thresholds)),
        sums_(static_cast<size_t>(configs * args.num_thresholds) * kTailSums * kSumDigits) {}

  // The ratios of a block under a configuration; those not in use are overwritten.
  void add(const Blocks& blocks, int64_t config, double* ratios) {
    const int64_t at = config * args_.num_thresholds;
    LEAKCORE_TIERED(mixture_loops)
        .tally(ratios, blocks.begin(), blocks.end(),
               {args_.thresholds + at, args_.num_thresholds, counts_.data() + 2 * at,
                sums_.data() + at * kTailSums * kSumDigits});
  }
  // After each block: digits take 2^32 additions.
  void end_block(int64_t b) {
    if (b % 4096 == 4095) carry_all(sums_.data());
  }
  void give(std::mutex& lock) {
    carry_all(sums_.data());
    const std::lock_guard<std::mutex> guard(lock);
    for (size_t j = 0; j < counts_.size(); ++j) args_.counts[j] += counts_[j];
    for (size_t j = 0; j < sums_.size(); ++j) args_.sums[j] += sums_[j];
    carry_all(args_.sums);
  }

 private:
  void carry_all(uint64_t* sums) const {
    for (size_t i = 0; i < sums_.size(); i += kSumDigits) exact_carry(sums + i);
  }

  const TailArgs& args_;
  std::vector<int64_t> counts_;
  std::vector<uint64_t> sums_;
};

}  // namespace leakcore
