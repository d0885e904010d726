// A loop on several threads: atomic counters hand out chunks, so a slow core holds nobody up. Not OpenMP: a fork
// after libgomp has started hangs the child, and a second OpenMP runtime next to torch's is a hazard.
//
// Which worker runs which item is unspecified, so an item may write only what is its own, or integers that are summed.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "core/runtime/array.h"
#include "core/runtime/line.h"
#include "core/runtime/pool.h"

namespace leakcore {

// Threads worth starting for that much work in all: waking one costs some 20 µs.
inline int useful_threads(double nanoseconds, int allowed) {
  const double worth = nanoseconds / 30e3;
  return worth >= allowed ? std::max(allowed, 1) : std::max(static_cast<int>(worth), 1);
}

// body(begin, end) over disjoint ranges that cover [0, items). The first exception of any worker is rethrown here.
//
// Every worker has a part of the items, in order, and takes from the others' what they have not begun when it is done:
// from call to call a worker writes the lines that are in its own core's cache, and none lies between two workers.
// Parts begin at multiples of `grain`, as even as it allows: a chunk that changes hands takes its lines along.
template <class Body>
void parallel_for(int64_t items, int64_t chunk, int64_t grain, int threads, Body&& body) {
  if (items <= 0) return;
  chunk = std::max<int64_t>(chunk, 1);
  const int64_t grains = (items - 1) / grain + 1;
  const int parts = static_cast<int>(std::min<int64_t>(std::max(threads, 1), (items - 1) / chunk + 1));
  struct Part {
    std::atomic<int64_t> next;
    int64_t end;
    char apart[kLine];  // else workers would wait for each other's line
  };
  const std::unique_ptr<Part[]> part(new Part[static_cast<size_t>(parts)]);
  const auto begin = [&](int64_t k) {
    return std::min(items, (grains / parts * k + grains % parts * k / parts) * grain);
  };
  for (int64_t k = 0; k < parts; ++k) {
    part[static_cast<size_t>(k)].next = begin(k);
    part[static_cast<size_t>(k)].end = begin(k + 1);
  }
  std::atomic<int> arrived{0};
  std::atomic<bool> failed{false};
  std::exception_ptr failure;
  auto work = [&] {
    const int me = arrived.fetch_add(1);
    try {
      for (int k = 0; k < parts; ++k) {
        Part& from = part[static_cast<size_t>((me + k) % parts)];
        for (int64_t i; !failed.load(std::memory_order_relaxed) && (i = from.next.fetch_add(chunk)) < from.end;) {
          body(i, std::min(from.end, i + chunk));
        }
      }
    } catch (...) {
      if (!failed.exchange(true)) failure = std::current_exception();
    }
  };
  run_together([](void* context) { (*static_cast<decltype(work)*>(context))(); }, &work, parts - 1);
  if (failure) std::rethrow_exception(failure);
}

template <class Body>
void parallel_for(int64_t items, int64_t chunk, int threads, Body&& body) {
  parallel_for(items, chunk, 1, threads, std::forward<Body>(body));
}

}  // namespace leakcore
