// Log ratios on the device, a sample (or, where there is one step, a quad of them) per thread.
#pragma once

#include "core/rng/normal.h"
#include "core/rng/streams.h"
#include "core/runtime/launch.cuh"
#include "mixture/plan.h"
#include "mixture/steps.h"

namespace leakcore {
namespace {

// A configuration whose groups are all alike (MixturePlan::period).
struct Even {
  float slope, offset, lifted, q;
  uint32_t pick_high, pick_low;
  int32_t period;
};

struct Samples {
  Keys keys;  // of the seed
  uint64_t seed;
  uint64_t first;
  int64_t count;
  bool alternative;
  int64_t configs, groups;
  int32_t last_steps;  // of the last group
  const Group* table;  // [configs][groups], or null where all are even
  const Even* even;    // [configs], or null
};

// Π(1 + u) − 1 over `steps` of a group's steps.
__device__ __forceinline__ float even_product(const Even& e, const float* z, const bool* picked, int steps) {
  float p = 0.0f;
#pragma unroll
  for (int s = 0; s < kGroup; ++s) {
    if (s >= steps) break;
    const float u = mixture_excess_float(madd(z[s], e.slope, picked[s] ? e.lifted : e.offset), e.q);
    p = s == 0 ? u : mixture_times(p, u);
  }
  return p;
}

// log_ratios where all configurations are even: the same numbers, with a third of the instructions around the
// arithmetic. Nothing is read in the loop.
template <bool kAlternative>
struct EvenRatios {
  template <int kConfigs>
  static __device__ __forceinline__ void get(const Samples& x, uint64_t sample, int64_t config, double* total) {
    Even e[kConfigs];
    double product[kConfigs];
    int32_t left[kConfigs];
#pragma unroll
    for (int c = 0; c < kConfigs; ++c) {
      e[c] = x.even[config + c < x.configs ? config + c : config];
      total[c] = product[c] = 0.0;
      left[c] = e[c].period;
    }
    const uint32_t low_index = static_cast<uint32_t>(sample), high_index = static_cast<uint32_t>(sample >> 32);
    // A product begins at 0, which mixture_times leaves as it is: (1 + 0)(1 + u) − 1.
    const auto group = [&](uint32_t block, int steps, bool end) {
      const Words word =
          philox_keyed(block, stream_word(Purpose::mixture, kAlternative), low_index, high_index, x.keys);
      float z[kGroup];
      box_muller_float(word.w[0], word.w[1], &z[0], &z[1]);
      box_muller_float(word.w[2], word.w[3], &z[2], &z[3]);
      Words picks = {}, low = {};
      bool have_low = false;
      if (kAlternative)
        picks = philox_keyed(block, stream_word(Purpose::mixture_pick, 0), low_index, high_index, x.keys);
#pragma unroll
      for (int c = 0; c < kConfigs; ++c) {
        bool picked[kGroup] = {};
        if (kAlternative) {
#pragma unroll
          for (int s = 0; s < kGroup; ++s) {
            picked[s] = picks.w[s] < e[c].pick_high;
            if (picks.w[s] == e[c].pick_high) {  // once in 2^32 draws
              if (!have_low) low = draw_words(x.seed, stream_word(Purpose::mixture_pick, 1), sample, block);
              have_low = true;
              picked[s] = low.w[s] < e[c].pick_low;
            }
          }
        }
        const float p = even_product(e[c], z, picked, steps);
        product[c] = mixture_times(product[c], static_cast<double>(p));
        if (--left[c] == 0 || end) {
          total[c] += left[c] + 1 == e[c].period ? static_cast<double>(log1p_float(p)) : log1p_safe(product[c]);
          product[c] = 0.0;
          left[c] = e[c].period;
        }
      }
    };
    const uint32_t before = static_cast<uint32_t>(x.groups - 1);
#pragma unroll 1
    for (uint32_t k = 0; k < before; ++k) group(k, kGroup, false);
    group(before, x.last_steps, true);
  }
};

// L of one sample under configurations [config, config + kConfigs), as many as there are.
template <int kConfigs>
__device__ void log_ratios(const Samples& x, uint64_t sample, int64_t config, double* total) {
  double product[kConfigs];
  for (int c = 0; c < kConfigs; ++c) total[c] = product[c] = 0.0;
  for (int64_t k = 0; k < x.groups; ++k) {
    bool wide = false, narrow = false;
    for (int c = 0; c < kConfigs; ++c) {
      if (config + c >= x.configs) continue;
      const Form form = x.table[(config + c) * x.groups + k].form;
      narrow = narrow || form == Form::quick;
      wide = wide || (form != Form::quick && form != Form::idle);
    }
    if (!wide && !narrow) continue;
    const int steps = x.table[config * x.groups + k].steps;
    const uint32_t block = static_cast<uint32_t>(k);
    const Words word = draw_words(x.seed, stream_word(Purpose::mixture, x.alternative), sample, block);
    Words picks = {}, low = {};
    bool have_low = false;
    if (x.alternative) picks = draw_words(x.seed, stream_word(Purpose::mixture_pick, 0), sample, block);
    float z32[kGroup];
    double z[kGroup];
    if (narrow) {
      box_muller_float(word.w[0], word.w[1], &z32[0], &z32[1]);
      if (steps > 2) box_muller_float(word.w[2], word.w[3], &z32[2], &z32[3]);
    }
    if (wide) {
      box_muller(static_cast<uint64_t>(word.w[0]), static_cast<uint64_t>(word.w[1]), &z[0], &z[1]);
      if (steps > 2) box_muller(static_cast<uint64_t>(word.w[2]), static_cast<uint64_t>(word.w[3]), &z[2], &z[3]);
    }
#pragma unroll
    for (int c = 0; c < kConfigs; ++c) {
      if (config + c >= x.configs) continue;
      const Group& g = x.table[(config + c) * x.groups + k];
      if (g.form == Form::idle) continue;
      bool picked[kGroup] = {};
      if (x.alternative) {
#pragma unroll
        for (int s = 0; s < kGroup; ++s) {
          picked[s] = picks.w[s] < g.pick_high[s];
          if (picks.w[s] == g.pick_high[s]) {  // once in 2^32 draws
            if (!have_low) low = draw_words(x.seed, stream_word(Purpose::mixture_pick, 1), sample, block);
            have_low = true;
            picked[s] = low.w[s] < g.pick_low[s];
          }
        }
      }
      if (g.form == Form::quick) {
        float p = 0.0f;
#pragma unroll
        for (int s = 0; s < kGroup; ++s) {
          if (s >= steps) break;
          const float u =
              mixture_excess_float(madd(z32[s], g.slope32[s], picked[s] ? g.lifted32[s] : g.offset32[s]), g.q32[s]);
          p = s == 0 ? u : mixture_times(p, u);
        }
        if (g.first && g.last) {
          total[c] += static_cast<double>(log1p_float(p));
          continue;
        }
        const double wide_p = static_cast<double>(p);
        product[c] = g.first ? wide_p : mixture_times(product[c], wide_p);
        if (g.last) total[c] += log1p_safe(product[c]);
        continue;
      }
      if (g.form == Form::careful) {
        for (int s = 0; s < steps; ++s) {
          if (g.q[s] != 0.0) total[c] += careful_term(g, s, z[s], picked[s]);
        }
        continue;
      }
#pragma unroll
      for (int s = 0; s < kGroup; ++s) {
        if (s >= steps) break;
        const double y = madd(z[s], g.slope[s], picked[s] ? g.lifted[s] : g.offset[s]);
        const bool start = s == 0 && g.first;
        if (g.form == Form::linear) {
          total[c] += y;
        } else if (g.form == Form::sparse) {
          const double u = mixture_excess(y, Scale{g.q[s]});
          product[c] = start ? u : mixture_times(product[c], u);
        } else {
          const double f = mixture_factor(y, Scale{g.q[s]});
          product[c] = start ? f : product[c] * f;
        }
      }
      if (g.last && g.form == Form::sparse) total[c] += log1p_safe(product[c]);
      if (g.last && g.form == Form::dense) total[c] += log_positive(product[c]);
    }
  }
}

struct AnyRatios {
  template <int kConfigs>
  static __device__ __forceinline__ void get(const Samples& x, uint64_t sample, int64_t config, double* total) {
    log_ratios<kConfigs>(x, sample, config, total);
  }
};

// T = 1: the four samples of a row of draws.
struct Quad {
  double z[kGroup];
  float z32[kGroup];
  Words picks;
};

__device__ inline Quad draw_quad(const Samples& x, uint64_t row) {
  Quad d = {};
  const Words word = draw_words(x.seed, stream_word(Purpose::mixture_one, x.alternative), row, 0);
  bool wide = false, narrow = false;
  for (int64_t c = 0; c < x.configs; ++c) {
    const Form form = x.table[c].form;
    narrow = narrow || form == Form::quick;
    wide = wide || (form != Form::quick && form != Form::idle);
  }
  if (narrow) {
    box_muller_float(word.w[0], word.w[1], &d.z32[0], &d.z32[1]);
    box_muller_float(word.w[2], word.w[3], &d.z32[2], &d.z32[3]);
  }
  if (wide) {
    box_muller(static_cast<uint64_t>(word.w[0]), static_cast<uint64_t>(word.w[1]), &d.z[0], &d.z[1]);
    box_muller(static_cast<uint64_t>(word.w[2]), static_cast<uint64_t>(word.w[3]), &d.z[2], &d.z[3]);
  }
  if (x.alternative) d.picks = draw_words(x.seed, stream_word(Purpose::mixture_one_pick, 0), row, 0);
  return d;
}

// L of sample 4·row + s under a configuration.
__device__ inline double one_step(const Samples& x, const Quad& d, uint64_t row, int s, int64_t config) {
  const Group& g = x.table[config];
  if (g.form == Form::idle) return 0.0;
  bool picked = false;
  if (x.alternative) {
    picked = d.picks.w[s] < g.pick_high[0];
    if (d.picks.w[s] == g.pick_high[0]) {  // once in 2^32 draws
      picked = draw_words(x.seed, stream_word(Purpose::mixture_one_pick, 1), row, 0).w[s] < g.pick_low[0];
    }
  }
  if (g.form == Form::careful) return careful_term(g, 0, d.z[s], picked);
  if (g.form == Form::quick) {
    const float y = madd(d.z32[s], g.slope32[0], picked ? g.lifted32[0] : g.offset32[0]);
    return static_cast<double>(log1p_float(mixture_excess_float(y, g.q32[0])));
  }
  const double y = madd(d.z[s], g.slope[0], picked ? g.lifted[0] : g.offset[0]);
  if (g.form == Form::linear) return y;
  return g.form == Form::sparse ? log1p_safe(mixture_excess(y, Scale{g.q[0]}))
                                : log_positive(mixture_factor(y, Scale{g.q[0]}));
}

// visit(counts, i, config, L) for every sample x.first + i and configurations [config, config + kConfigs), a thread per
// quad. All threads of a block visit equally often, so that they may meet; `counts` is false where there is no sample.
template <class Visit>
__device__ void for_each_one_step(const Samples& x, int64_t config, int64_t end, Visit&& visit) {
  const uint64_t first_row = x.first / kGroup;
  const int64_t skip = static_cast<int64_t>(x.first % kGroup);
  const int64_t rows = (skip + x.count - 1) / kGroup + 1;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t from = static_cast<int64_t>(blockIdx.x) * blockDim.x; from < rows; from += step) {
    const int64_t r = from + threadIdx.x;
    const uint64_t row = first_row + static_cast<uint64_t>(r < rows ? r : from);
    const Quad quad = draw_quad(x, row);
#pragma unroll
    for (int s = 0; s < kGroup; ++s) {
      const int64_t i = r * kGroup + s - skip;
      for (int64_t c = config; c < end; ++c)
        visit(r < rows && i >= 0 && i < x.count, i, c, one_step(x, quad, row, s, c));
    }
  }
}

}  // namespace
}  // namespace leakcore
