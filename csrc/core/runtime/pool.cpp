#include "core/runtime/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace leakcore {
namespace {

enum class State { idle, posted, running, leaving };

// How often a caller or a helper looks before it sleeps: some 30 µs.
constexpr int kLooks = 2000;

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

#if defined(__linux__)
inline int processor_here() {
  return sched_getcpu();
}

// Where a helper may run: at first near its caller, not in its place; then wherever the caller may.
class Places {
 public:
  // Moves a helper off the processor `here`.
  void send(pthread_t thread, int here) {
    sent_ = here >= 0 && here < CPU_SETSIZE && sched_getaffinity(0, sizeof(allowed_), &allowed_) == 0;
    if (!sent_) return;
    cpu_set_t elsewhere = allowed_;
    CPU_CLR(here, &elsewhere);
    if (CPU_COUNT(&elsewhere) == 0) elsewhere = allowed_;
    pthread_setaffinity_np(thread, sizeof(elsewhere), &elsewhere);
  }
  void free_me() {
    if (sent_) sched_setaffinity(0, sizeof(allowed_), &allowed_);
    sent_ = false;
  }

 private:
  cpu_set_t allowed_;
  bool sent_ = false;
};
#else
inline int processor_here() {
  return -1;
}

struct Places {
  void send(pthread_t, int) {}
  void free_me() {}
};
#endif

class Worker {
 public:
  // Throws std::system_error where no thread is to be had.
  Worker() : thread_([this] { live(); }) {}

  // A worker that still looks for its next call, on another processor than the caller's (`here`), needs no system call.
  void post(void (*body)(void*), void* context, int here) {
    std::lock_guard<std::mutex> lock(mutex_);
    body_ = body;
    context_ = context;
    const int there = processor_.load(std::memory_order_relaxed);
    if (asleep_ || there < 0 || there == here) places_.send(thread_.native_handle(), here);
    state_.store(State::posted, std::memory_order_release);
    if (asleep_) changed_.notify_one();
  }

  // Back to idle: what had begun is over, what had not is called off.
  void settle() {
    look_while(State::running);
    std::unique_lock<std::mutex> lock(mutex_);
    if (state_.load(std::memory_order_relaxed) == State::posted) {
      state_.store(State::idle, std::memory_order_relaxed);
    }
    while (state_.load(std::memory_order_relaxed) != State::idle) sleep();
  }

  // The worker deletes itself.
  void dismiss() {
    thread_.detach();
    // Under the lock to the end: once it is free, there may be no worker any more.
    std::lock_guard<std::mutex> lock(mutex_);
    state_.store(State::leaving, std::memory_order_relaxed);
    changed_.notify_one();
  }

 private:
  void look_while(State state) const {
    for (int i = 0; i < kLooks && state_.load(std::memory_order_acquire) == state; ++i) pause_briefly();
  }
  void look_for_a_call() {
    processor_.store(processor_here(), std::memory_order_relaxed);
    look_while(State::idle);
  }

  // Under the lock. Not changed_.wait: GCC 12's symbol for it is missing from older systems' libstdc++.
  void sleep() { pthread_cond_wait(changed_.native_handle(), mutex_.native_handle()); }

  void live() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      // Looks before every sleep, so that it is not late for the next call.
      while (state_.load(std::memory_order_relaxed) == State::idle) {
        lock.unlock();
        look_for_a_call();
        lock.lock();
        if (state_.load(std::memory_order_relaxed) != State::idle) break;
        asleep_ = true;
        sleep();
        asleep_ = false;
      }
      if (state_.load(std::memory_order_relaxed) == State::leaving) break;
      state_.store(State::running, std::memory_order_relaxed);
      lock.unlock();
      places_.free_me();
      body_(context_);
      lock.lock();
      state_.store(State::idle, std::memory_order_release);
      changed_.notify_one();
    }
    lock.unlock();
    delete this;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<State> state_{State::idle};
  std::atomic<int> processor_{-1};  // where the worker last began to look; a new one is where its parent is
  bool asleep_ = false;             // under the lock
  void (*body_)(void*) = nullptr;
  void* context_ = nullptr;
  Places places_;
  std::thread thread_;
};

// Who is free. Never destroyed: at a process's end its workers may still be asleep.
class Pool {
 public:
  // Room for all of them, so that none is lost where memory ends.
  Pool() { idle_.reserve(kept_); }

  std::vector<Worker*> take(int wanted) {
    std::vector<Worker*> taken;
    try {
      taken.reserve(static_cast<size_t>(wanted));
    } catch (const std::exception&) {
      return taken;  // the threads that are there do all the work
    }
    {
      std::lock_guard<std::mutex> lock(mutex_);
      while (static_cast<int>(taken.size()) < wanted && !idle_.empty()) {
        taken.push_back(idle_.back());
        idle_.pop_back();
      }
    }
    if (static_cast<int>(taken.size()) == wanted) return taken;
    // A worker takes no signals: Python's handlers run in the thread that waits for them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      while (static_cast<int>(taken.size()) < wanted) taken.push_back(new Worker);
    } catch (const std::exception&) {
      // Fewer, then.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return taken;
  }

  void give_back(const std::vector<Worker*>& workers) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (Worker* worker : workers) {
      if (idle_.size() < kept_) {
        idle_.push_back(worker);
      } else {
        worker->dismiss();
      }
    }
  }

 private:
  const size_t kept_ = std::max(std::thread::hardware_concurrency(), 2u);
  std::mutex mutex_;
  std::vector<Worker*> idle_;
};

std::atomic<Pool*> current{nullptr};

// A child of fork has none of the threads, and a mutex that another thread may have held.
void forget() {
  current.store(nullptr);
}

Pool& pool() {
  static const int registered = pthread_atfork(nullptr, nullptr, forget);
  (void)registered;
  Pool* pool = current.load();
  if (pool == nullptr) {
    Pool* created = new Pool;
    if (current.compare_exchange_strong(pool, created)) return *created;
    delete created;
  }
  return *pool;
}

}  // namespace

void run_together(void (*body)(void*), void* context, int helpers) {
  if (helpers <= 0) return body(context);
  Pool& shared = pool();
  const std::vector<Worker*> workers = shared.take(helpers);
  const int here = processor_here();
  for (Worker* worker : workers) worker->post(body, context, here);
  body(context);
  for (Worker* worker : workers) worker->settle();
  shared.give_back(workers);
}

}  // namespace leakcore
