// A loop on several threads: an atomic counter hands out chunks, so a slow core holds nobody up. Not OpenMP: a fork
// after libgomp has started hangs the child, and a second OpenMP runtime beside torch's is a hazard.
//
// Which worker runs which item is unspecified, so an item may write only what is its own, or integers that are summed.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>

#include "core/array.h"
#include "core/pool.h"

namespace leakcore {

// Threads worth starting for that much work in all: waking one costs some 20 µs.
inline int useful_threads(double nanoseconds, int allowed) {
  const double worth = nanoseconds / 30e3;
  return worth >= allowed ? std::max(allowed, 1) : std::max(static_cast<int>(worth), 1);
}

// body(begin, end) over disjoint ranges that cover [0, items). The first exception of any worker is rethrown here.
template <class Body>
void parallel_for(int64_t items, int64_t chunk, int threads, Body&& body) {
  if (items <= 0) return;
  chunk = std::max<int64_t>(chunk, 1);
  const int64_t chunks = (items - 1) / chunk + 1;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure;
  auto work = [&] {
    try {
      for (int64_t c; !failed.load(std::memory_order_relaxed) && (c = next.fetch_add(1)) < chunks;) {
        body(c * chunk, std::min(items, (c + 1) * chunk));
      }
    } catch (...) {
      if (!failed.exchange(true)) failure = std::current_exception();
    }
  };
  run_together([](void* context) { (*static_cast<decltype(work)*>(context))(); }, &work,
               static_cast<int>(std::min<int64_t>(threads, chunks) - 1));
  if (failure) std::rethrow_exception(failure);
}

}  // namespace leakcore
