#include "testing/cuda_emulation/fibers.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__)
#error "the CUDA emulation switches stacks in x86-64 assembly: build it on such a machine"
#endif

// Saves the callee's registers and the stack pointer in *save, and goes on where `load` was saved.
extern "C" void leakcore_switch_stack(void** save, void* load);
asm(R"(
.text
.globl leakcore_switch_stack
.hidden leakcore_switch_stack
.type leakcore_switch_stack,@function
leakcore_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size leakcore_switch_stack,.-leakcore_switch_stack
)");

namespace leakcore::emulation {
namespace {

constexpr size_t kStack = 256 * 1024;
constexpr size_t kGuard = 4096;
thread_local Fibers* running = nullptr;

void leaving([[maybe_unused]] void** fake, [[maybe_unused]] const void* bottom, [[maybe_unused]] size_t size) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake, bottom, size);
#endif
}

void arrived([[maybe_unused]] void* fake, [[maybe_unused]] const void** bottom, [[maybe_unused]] size_t* size) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake, bottom, size);
#endif
}

}  // namespace

Fibers::Fibers(int count) : bytes_(static_cast<size_t>(count) * kStack), fibers_(static_cast<size_t>(count)) {
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<char*>(memory);
  for (int k = 0; k < count; ++k) {
    mprotect(memory_ + k * kStack, kGuard, PROT_NONE);  // an overflow is a fault, not a neighbour's damage
    fibers_[k].top = memory_ + (k + 1) * kStack;
  }
}

Fibers::~Fibers() {
  munmap(memory_, bytes_);
}

void Fibers::start(int k, void (*body)(void*), void* context) {
  Fiber& fiber = fibers_[k];
  fiber.body = body;
  fiber.context = context;
  fiber.fake_stack = nullptr;
  void** top = static_cast<void**>(fiber.top);
  *--top = nullptr;  // as after a call: eight bytes off a multiple of sixteen
  *--top = reinterpret_cast<void*>(&Fibers::enter);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  fiber.stack_pointer = top;
}

void Fibers::enter() {
  Fibers* self = running;
  Fiber* fiber = self->current_;
  arrived(nullptr, &self->caller_bottom_, &self->caller_size_);
  fiber->body(fiber->context);
  leaving(nullptr, self->caller_bottom_, self->caller_size_);
  leakcore_switch_stack(&fiber->stack_pointer, self->caller_);
  abort();
}

void Fibers::resume(int k) {
  Fibers* before = running;
  running = this;
  current_ = &fibers_[k];
  void* fake = nullptr;
  leaving(&fake, static_cast<char*>(current_->top) - kStack + kGuard, kStack - kGuard);
  leakcore_switch_stack(&caller_, current_->stack_pointer);
  arrived(fake, nullptr, nullptr);
  running = before;
}

void Fibers::pause() {
  Fiber* fiber = current_;
  leaving(&fiber->fake_stack, caller_bottom_, caller_size_);
  leakcore_switch_stack(&fiber->stack_pointer, caller_);
  arrived(fiber->fake_stack, &caller_bottom_, &caller_size_);
}

}  // namespace leakcore::emulation
