// Compiled once per instruction tier (setup.py). All but the table is in an anonymous namespace or always inlined, and
// no library template is called, so that no inline function built for one tier can be linked into another.
//
// Random words, normals and factors are each made in a loop of their own over a block that stays in the first-level
// cache, four steps (one Philox block) at a time: a loop with few constants keeps them all in registers. At one step in
// float32 the logarithm, nearly all multiply-adds, is taken during the next block's words, nearly all shifts.
#include "mixture/mixture_simd.h"

#include "mixture/one_step.h"
#include "mixture/tally.h"

namespace leakcore {
namespace {

// Which normals a step's group needs, over all configurations.
void forms_in_use(const MixturePlan& plan, int64_t group, bool* wide, bool* narrow) {
  *wide = *narrow = false;
  for (int64_t c = 0; c < plan.configs; ++c) {
    const Form form = plan.at(c, group).form;
    *narrow = *narrow || form == Form::quick;
    *wide = *wide || (form != Form::quick && form != Form::idle);
  }
}

void single_ratios(const MixturePlan& plan, uint64_t seed, bool alternative, uint64_t first, double* out) {
  bool wide, narrow;
  forms_in_use(plan, 0, &wide, &narrow);
  Single w;
  if (wide || narrow) {
    const Following block = {seed, stream_word(Purpose::mixture_one, alternative), first, kBlock};
    words_of(w, block, Nothing{nullptr}, Alone{});
    draw_singles(w, block, alternative, wide, narrow);
  }
  (alternative ? singles<true> : singles<false>)(w, plan, out);
}

void log_ratios(const MixturePlan& plan, uint64_t seed, bool alternative, uint64_t first, double* out, double* work) {
  if (plan.one_step) return single_ratios(plan, seed, alternative, first, out);
  Work w;
  w.seed = seed;
  w.first = first;
  // The alternative draws from a stream of its own, so that samples of ν and of μ under one seed are independent.
  hoist(seed, stream_word(Purpose::mixture, alternative), first, &w.mixture);
  if (alternative) hoist(seed, stream_word(Purpose::mixture_pick, 0), first, &w.pick);
  for (int64_t i = 0; i < plan.configs * kBlock; ++i) out[i] = 0.0;
  for (int64_t k = 0; k < plan.groups; ++k) {
    bool wide, narrow;
    forms_in_use(plan, k, &wide, &narrow);
    if (!wide && !narrow) continue;
    const uint32_t block = static_cast<uint32_t>(k);
    const int steps = plan.at(0, k).steps;
    words(w.mixture, block, steps, w.word);
    if (alternative) words(w.pick, block, steps, w.pick_word);
    if (wide) normals(w.word, steps, w.z);
    if (narrow) normals_float(w.word, steps, w.z32);
    for (int64_t c = 0; c < plan.configs; ++c) {
      const Group& g = plan.at(c, k);
      if (g.form == Form::idle) continue;
      if (alternative) pick(w, g, block);
      kCombine[alternative][steps - 1](w, g, work + c * kBlock, out + c * kBlock);
    }
  }
}

constexpr MixtureLoops kLoops = {log_ratios, one_step<double>, one_step<float>, tally};

}  // namespace

#define LEAKCORE_JOIN(a, b) a##b
#define LEAKCORE_TABLE(tier) LEAKCORE_JOIN(mixture_loops_, tier)
const MixtureLoops& LEAKCORE_TABLE(LEAKCORE_TIER)() {
  return kLoops;
}

}  // namespace leakcore
