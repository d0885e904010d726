// operator new that fails when it is told to, and counts what is not given back: loaded before libstdc++'s own.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::int64_t> until{-1};  // allocations until the one that fails; negative: none fails
std::atomic<bool> ever_after{false};  // whether all that follow fail as well
std::atomic<std::int64_t> failures{0};
std::atomic<std::int64_t> blocks{0};

void* allocate(std::size_t size, std::size_t align) {
  if (until.load() >= 0) {
    const std::int64_t left = until.fetch_sub(1);
    if (left == 0 || (left < 0 && ever_after.load())) {
      failures.fetch_add(1);
      if (ever_after.load()) until.store(0);
      throw std::bad_alloc();
    }
  }
  void* memory =
      align == 0 ? std::malloc(size == 0 ? 1 : size) : std::aligned_alloc(align, (size + align - 1) / align * align);
  if (memory == nullptr) throw std::bad_alloc();
  blocks.fetch_add(1);
  return memory;
}

void release(void* memory) noexcept {
  if (memory == nullptr) return;
  blocks.fetch_sub(1);
  std::free(memory);
}

}  // namespace

extern "C" {
void fail_allocation(std::int64_t number, int and_all_after) {
  ever_after.store(and_all_after != 0);
  failures.store(0);
  until.store(number);
}
std::int64_t stop_failing() {
  until.store(-1);
  return failures.load();
}
std::int64_t blocks_held() {
  return blocks.load();
}
}

void* operator new(std::size_t size) {
  return allocate(size, 0);
}
void* operator new[](std::size_t size) {
  return allocate(size, 0);
}
void* operator new(std::size_t size, std::align_val_t align) {
  return allocate(size, static_cast<std::size_t>(align));
}
void* operator new[](std::size_t size, std::align_val_t align) {
  return allocate(size, static_cast<std::size_t>(align));
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete[](void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  release(memory);
}
