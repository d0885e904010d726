// Threads that outlive a call. Starting one for each call costs 50 to 60 µs on a virtual machine, and the scheduler
// often leaves the newcomer on its parent's processor until the next tick: a call of 2.5 ms then gains nothing from it.
#pragma once

namespace leakcore {

// body(context) on this thread and on up to `helpers` others at once; returns when all that began have ended. A helper
// that has not begun when this thread is done does not begin: so `body` must not count on anybody else. No exception
// may leave it. Callable from several threads, from within a body, and after a fork.
void run_together(void (*body)(void*), void* context, int helpers);

}  // namespace leakcore
