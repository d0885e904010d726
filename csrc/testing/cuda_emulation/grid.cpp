// A grid, block after block. Blocks take their turns in a shuffled order, and the threads of a block in one that
// changes at every barrier: a result that depends on the order, as with a missing barrier, comes out wrong, or
// otherwise in another schedule. What a GPU would answer with a hang or with nothing at all is an error here that says
// where: threads waiting at different barriers, a thread that left while others wait, a launch beyond the limits,
// writes past the dynamic shared memory.
#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "testing/cuda_emulation/cuda.h"
#include "testing/cuda_emulation/fibers.h"
#include "testing/cuda_emulation/selfcheck.h"

#define LEAKCORE_INDEX __thread __attribute__((tls_model("initial-exec"))) uint3
LEAKCORE_INDEX threadIdx;
LEAKCORE_INDEX blockIdx;
LEAKCORE_INDEX blockDim;
LEAKCORE_INDEX gridDim;

namespace leakcore::emulation {
namespace {

constexpr unsigned kWarp = 32, kFull = 0xffffffffu;
constexpr size_t kMaxShared = 227 * 1024;
constexpr size_t kCanary = 64;
constexpr unsigned char kPoison = 0xff;  // NaN as a floating-point number

enum class State { ready, at_barrier, at_exchange, done };

struct Lane {
  uint3 index;
  State state;
  Site site;
  Exchange kind;
  unsigned mask;
  uint64_t value, result;
  int argument, width;
};

struct Block {
  Fibers fibers{1024};
  std::vector<Lane> lanes;
  std::mt19937_64 shuffler;
  int current = -1;
  unsigned char* shared = nullptr;
  bool busy = false;
};

std::atomic<uint64_t> schedule{0};
thread_local std::unique_ptr<Block> block;
thread_local std::string failure;

std::string shown(Site site) {
  return std::string(site.file) + ":" + std::to_string(site.line);
}

bool same(Site a, Site b) {
  return a.line == b.line && strcmp(a.file, b.file) == 0;
}

std::string thread_name(int k) {
  const uint3 i = block->lanes[static_cast<size_t>(k)].index;
  return "thread (" + std::to_string(i.x) + ", " + std::to_string(i.y) + ", " + std::to_string(i.z) + ")";
}

bool fail(const std::string& what) {
  failure = "emulated launch failed: block (" + std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) + ", " +
            std::to_string(blockIdx.z) + "): " + what;
  return false;
}

void wait(State state, Site site) {
  Lane& lane = block->lanes[static_cast<size_t>(block->current)];
  lane.state = state;
  lane.site = site;
  block->fibers.pause();
}

// Where lane k of a warp of `lanes` reads from; itself where CUDA says so.
int source(const Lane& lane, int k) {
  const int group = k / lane.width * lane.width;
  switch (lane.kind) {
    case Exchange::from:
      return group + (lane.argument & (lane.width - 1));
    case Exchange::exclusive_or: {
      const int other = k ^ lane.argument;
      return other < group + lane.width ? other : k;
    }
    case Exchange::down:
      return k + lane.argument < group + lane.width ? k + lane.argument : k;
    case Exchange::up:
      return k - lane.argument >= group ? k - lane.argument : k;
    case Exchange::sync:
    case Exchange::ballot:
      break;
  }
  return k;
}

bool exchange(int first, int count) {
  Lane* lanes = block->lanes.data() + first;
  const Lane& waiting =
      *std::find_if(lanes, lanes + count, [](const Lane& lane) { return lane.state == State::at_exchange; });
  uint64_t ballot = 0;
  for (int k = 0; k < count; ++k) {
    if (lanes[k].state == State::done) {
      return fail(thread_name(first + k) + " has left while its warp waits at " + shown(waiting.site));
    }
    if (lanes[k].state != State::at_exchange || !same(lanes[k].site, waiting.site) || lanes[k].kind != waiting.kind) {
      return fail("a warp's threads wait at different places: " + shown(waiting.site) + " and " + shown(lanes[k].site));
    }
    if (lanes[k].mask != kFull) return fail("a mask that is not full, at " + shown(lanes[k].site));
    ballot |= lanes[k].value << k;
  }
  for (int k = 0; k < count; ++k) {
    const int from = source(lanes[k], k);
    lanes[k].result = lanes[k].kind == Exchange::ballot ? ballot : from < count ? lanes[from].value : ~uint64_t{0};
    lanes[k].state = State::ready;
  }
  return true;
}

// Everyone waits or is done: let those go on whose company is complete.
bool release(bool* finished) {
  const int threads = static_cast<int>(block->lanes.size());
  bool moved = false;
  int waiting = -1, left = -1;
  for (int first = 0; first < threads; first += static_cast<int>(kWarp)) {
    const int count = std::min(static_cast<int>(kWarp), threads - first);
    bool any = false;
    for (int k = first; k < first + count; ++k) {
      const State state = block->lanes[static_cast<size_t>(k)].state;
      any = any || state == State::at_exchange;
      if (state == State::at_barrier) waiting = k;
      if (state == State::done) left = k;
    }
    if (!any) continue;
    if (!exchange(first, count)) return false;
    moved = true;
  }
  *finished = !moved && waiting < 0;
  if (moved || *finished) return true;
  if (left >= 0) {
    return fail(thread_name(left) + " has left while " + thread_name(waiting) + " waits at " +
                shown(block->lanes[static_cast<size_t>(waiting)].site));
  }
  for (Lane& lane : block->lanes) {
    if (!same(lane.site, block->lanes[0].site)) {
      return fail("threads wait at different barriers: " + shown(block->lanes[0].site) + " and " + shown(lane.site));
    }
    lane.state = State::ready;
  }
  return true;
}

// 0 … count − 1, each once, from a random one in random steps.
struct Order {
  explicit Order(uint64_t count) : count(count), next(block->shuffler() % count), step(block->shuffler() % count + 1) {
    while (std::gcd(step, count) != 1) ++step;
  }
  uint64_t take() {
    const uint64_t taken = next;
    next = (next + step) % count;
    return taken;
  }
  uint64_t count, next, step;
};

bool run_block(void (*body)(void*), void* context) {
  for (size_t k = 0; k < block->lanes.size(); ++k) {
    block->lanes[k].state = State::ready;
    block->fibers.start(static_cast<int>(k), body, context);
  }
  for (bool finished = false; !finished;) {
    const size_t threads = block->lanes.size();
    Order order(threads);
    for (size_t turn = 0; turn < threads; ++turn) {
      const size_t k = order.take();
      Lane& lane = block->lanes[k];
      if (lane.state != State::ready) continue;
      block->current = static_cast<int>(k);
      threadIdx = lane.index;
      lane.state = State::done;  // unless it says otherwise before it pauses
      block->fibers.resume(static_cast<int>(k));
    }
    if (!release(&finished)) return false;
  }
  return true;
}

cudaError_t refuse(const std::string& what) {
  failure = "emulated launch refused: " + what;
  return cudaErrorInvalidConfiguration;
}

std::string text(dim3 d) {
  return "(" + std::to_string(d.x) + ", " + std::to_string(d.y) + ", " + std::to_string(d.z) + ")";
}

}  // namespace

void block_barrier(Site site) {
  wait(State::at_barrier, site);
}

uint64_t warp_exchange(Exchange kind, Site site, unsigned mask, uint64_t value, int argument, int width) {
  Lane& lane = block->lanes[static_cast<size_t>(block->current)];
  lane.kind = kind;
  lane.mask = mask;
  lane.value = value;
  lane.argument = argument;
  lane.width = width;
  wait(State::at_exchange, site);
  return lane.result;
}

void* dynamic_shared() {
  return block->shared;
}

void set_schedule(uint64_t number) {
  schedule = number;
}

const char* last_failure() {
  return failure.c_str();
}

cudaError_t run_grid(dim3 grid, dim3 size, size_t shared, void (*body)(void*), void* context) {
  const uint64_t threads = static_cast<uint64_t>(size.x) * size.y * size.z;
  if (threads == 0 || threads > 1024 || size.z > 64) return refuse("a block of " + text(size) + " threads");
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) {
    return refuse("a grid of " + text(grid) + " blocks");
  }
  if (shared > kMaxShared) return refuse(std::to_string(shared) + " bytes of dynamic shared memory");
  if (!block) block = std::make_unique<Block>();
  if (block->busy) return refuse("a kernel launched a kernel");

  block->lanes.assign(threads, Lane{});
  for (unsigned k = 0; k < threads; ++k) {
    block->lanes[k].index = {k % size.x, k / size.x % size.y, k / size.x / size.y};
  }
  const std::unique_ptr<unsigned char, decltype(&free)> memory(
      static_cast<unsigned char*>(aligned_alloc(64, (shared + kCanary + 63) / 64 * 64)), &free);
  block->shared = memory.get();
  block->busy = true;
  blockDim = {size.x, size.y, size.z};
  gridDim = {grid.x, grid.y, grid.z};
  bool good = true;
  block->shuffler.seed(schedule);
  const uint64_t blocks = static_cast<uint64_t>(grid.x) * grid.y * grid.z;
  Order order(blocks);
  for (uint64_t turn = 0; good && turn < blocks; ++turn) {
    const uint64_t k = order.take();
    blockIdx = {static_cast<unsigned>(k % grid.x), static_cast<unsigned>(k / grid.x % grid.y),
                static_cast<unsigned>(k / grid.x / grid.y)};
    memset(memory.get(), kPoison, shared + kCanary);
    good = run_block(body, context);
    for (size_t c = 0; good && c < kCanary; ++c) {
      if (memory.get()[shared + c] != kPoison) {
        good = fail("a write past the " + std::to_string(shared) + " bytes of dynamic shared memory");
      }
    }
  }
  block->busy = false;
  return good ? cudaSuccess : cudaErrorLaunchFailure;
}

}  // namespace leakcore::emulation
