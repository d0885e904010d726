// Stacks that take turns on one thread of the operating system.
#pragma once

#include <cstddef>
#include <vector>

namespace leakcore::emulation {

class Fibers {
 public:
  explicit Fibers(int count);
  ~Fibers();
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  // The next resume(k) enters body(context) on a fresh stack; what was on it is forgotten.
  void start(int k, void (*body)(void*), void* context);
  // Runs fiber k until it pauses or ends.
  void resume(int k);
  // From within a fiber: back to the caller of resume.
  void pause();

 private:
  struct Fiber {
    void* top;
    void* stack_pointer;
    void (*body)(void*);
    void* context;
    void* fake_stack;
  };
  static void enter();

  char* memory_;
  size_t bytes_;
  std::vector<Fiber> fibers_;
  Fiber* current_ = nullptr;
  void* caller_ = nullptr;
  const void* caller_bottom_ = nullptr;
  size_t caller_size_ = 0;
};

}  // namespace leakcore::emulation
