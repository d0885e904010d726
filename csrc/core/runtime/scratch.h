// Room for doubles, cache-aligned and not initialised: each worker clears its own part.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>

namespace leakcore {

// The last one released stays for the next call unless it is large: fresh pages cost time.
class Scratch {
 public:
  explicit Scratch(int64_t count) {
    if (count == 0) return;
    block_ = spare_.exchange(nullptr);
    if (block_ != nullptr && block_->count >= count) return;
    release(block_);
    block_ = nullptr;
    void* memory = ::operator new(sizeof(Block) + static_cast<size_t>(count) * sizeof(double), kAlign);
    block_ = new (memory) Block{count};
  }
  ~Scratch() {
    if (block_ != nullptr && block_->count <= kMostKept) block_ = spare_.exchange(block_);
    release(block_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  double* get() const { return block_ == nullptr ? nullptr : reinterpret_cast<double*>(block_ + 1); }

 private:
  static constexpr std::align_val_t kAlign{64};
  static constexpr int64_t kMostKept = 1 << 20;  // doubles
  struct alignas(64) Block {
    int64_t count;
  };
  static void release(Block* block) { ::operator delete(block, kAlign); }

  static inline std::atomic<Block*> spare_{nullptr};
  Block* block_ = nullptr;
};

}  // namespace leakcore
