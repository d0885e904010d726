// The mixture's log ratio on the CPU, in blocks of samples that stay in the first-level cache: random words, normals
// and exponentials each in a loop of its own, four steps (one Philox block) at a time, and one logarithm for the four.
//
// Accuracy: four factors f_t = 1 + u_t are multiplied as P <- P + u + P·u where q <= 1/2, which keeps the relative
// accuracy of a ratio near 1 (small q, large σ), and as a plain product where q > 1/2, whose factors may be near 0. A
// group whose factors could leave the range of a double, or which has σ so small that the exponent is huge, goes step
// by step.
#include "mixture/mixture.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <mutex>
#include <vector>

#include "core/normal.h"
#include "core/parallel.h"
#include "core/streams.h"

namespace leakcore {
namespace {

constexpr int kBlock = 256;
constexpr int kGroup = 4;  // steps that share a Philox block

// How four steps are combined. `sparse`: all q <= 1/2; `dense`: q > 1/2 somewhere; `linear`: all q = 1, where L is the
// exponent itself; `careful`: step by step.
enum class Form { idle, sparse, dense, linear, careful };

struct Group {
  Form form = Form::idle;
  int steps = 0;
  bool picks = false;
  double slope[kGroup] = {};  // exponent = slope·z + offset, plus lift where the second component was picked
  double offset[kGroup] = {};
  double lift[kGroup] = {};
  double q[kGroup] = {};
  double sigma[kGroup] = {};
  uint64_t pick_high[kGroup] = {};  // q·2^32: leading word of the threshold, 2^32 when q = 1
  uint32_t pick_low[kGroup] = {};   // the next 32 bits
};

// q as a threshold on 64 random bits: P(pick) = q to within 2^-64.
void set_pick(Group& g, int s) {
  const double scaled = g.q[s] * 4294967296.0;
  const double high = std::floor(scaled);
  g.pick_high[s] = static_cast<uint64_t>(high);
  g.pick_low[s] = static_cast<uint32_t>(std::min(std::floor((scaled - high) * 4294967296.0), 4294967295.0));
}

Group make_group(const MixtureArgs& args, int64_t first) {
  Group g;
  g.steps = static_cast<int>(std::min<int64_t>(kGroup, args.steps - first));
  bool any = false, all_one = true, dense = false;
  double reach = 0.0;
  for (int s = 0; s < g.steps; ++s) {
    const double sigma = args.noise_multiplier[first + s], q = args.sample_rate[first + s];
    g.q[s] = q;
    g.sigma[s] = sigma;
    if (q == 0.0) {
      all_one = false;
      continue;  // contributes exactly 0: slope, offset and lift stay 0
    }
    any = true;
    all_one = all_one && q == 1.0;
    dense = dense || q > 0.5;
    g.slope[s] = 1.0 / sigma;
    g.offset[s] = -0.5 / sigma / sigma;
    g.lift[s] = args.alternative ? 1.0 / sigma / sigma : 0.0;
    g.picks = g.picks || args.alternative;
    if (args.alternative) set_pick(g, s);
    const double exponent = kNormalLimit * g.slope[s] - g.offset[s];
    reach = exponent <= kExpSafe ? std::max(reach, exponent) : std::numeric_limits<double>::infinity();
  }
  if (!any) {
    g.form = Form::idle;
  } else if (!(reach * g.steps <= kExpSafe)) {
    g.form = Form::careful;
  } else {
    g.form = all_one ? Form::linear : dense ? Form::dense : Form::sparse;
  }
  return g;
}

// One step for every σ >= 0, q in (0, 1] and exponent, the infinite ones of a vanishing σ included.
double careful_term(double exponent, double q) {
  if (q == 1.0) return exponent;
  if (exponent > kExpSafe) return exponent + (std::log(q) + std::log1p((1.0 - q) / q * std::exp(-exponent)));
  if (q <= 0.5) return std::log1p(q * std::expm1(exponent));
  return std::log((1.0 - q) + q * std::exp(exponent));
}

class Sampler {
 public:
  explicit Sampler(const MixtureArgs& args) : args_(args) {
    for (int64_t t = 0; t < args.steps; t += kGroup) groups_.push_back(make_group(args, t));
  }

  // L of samples [first, first + count), count <= kBlock; a whole block is computed either way.
  void log_ratios(uint64_t first, int count, double* out) const {
    double total[kBlock] = {};
    Work w;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const Group& group = groups_[g];
      if (group.form == Form::idle) continue;
      const uint32_t block = static_cast<uint32_t>(g);
      normals(w, first, block);
      if (group.picks) pick(w, group, first, block);
      if (group.form == Form::careful) {
        careful(w, group, count, total);
        continue;
      }
      for (int s = 0; s < group.steps; ++s) exponents(w, group, s);
      if (group.form == Form::sparse) sparse(w, group, total);
      if (group.form == Form::dense) dense(w, group, total);
      if (group.form == Form::linear) linear(w, group, total);
    }
    std::copy(total, total + count, out);
  }

 private:
  struct Work {
    uint32_t word[4][kBlock];
    double z[kGroup][kBlock];
    double picked[kGroup][kBlock];  // 1 where the second component was taken
  };

  static void words(Work& w, uint64_t seed, uint32_t stream, uint64_t first, uint32_t block) {
    for (int i = 0; i < kBlock; ++i) {
      const Words drawn = draw_words(seed, stream, first + static_cast<uint64_t>(i), block);
      for (int j = 0; j < 4; ++j) w.word[j][i] = drawn.w[j];
    }
  }

  void normals(Work& w, uint64_t first, uint32_t block) const {
    // The alternative draws from a stream of its own, so that samples of ν and of μ under one seed are independent.
    words(w, args_.seed, stream_word(Purpose::mixture, args_.alternative), first, block);
    for (int half = 0; half < 4; half += 2) {
      for (int i = 0; i < kBlock; ++i)
        box_muller(w.word[half][i], w.word[half + 1][i], &w.z[half][i], &w.z[half + 1][i]);
    }
  }

  void pick(Work& w, const Group& g, uint64_t first, uint32_t block) const {
    words(w, args_.seed, stream_word(Purpose::mixture_pick, 0), first, block);
    for (int s = 0; s < g.steps; ++s) {
      const uint64_t high = g.pick_high[s];
      int undecided = 0;
      for (int i = 0; i < kBlock; ++i) {
        w.picked[s][i] = w.word[s][i] < high ? 1.0 : 0.0;
        undecided += w.word[s][i] == high;
      }
      if (undecided == 0) continue;
      for (int i = 0; i < kBlock; ++i) {  // once in 2^32 draws
        if (w.word[s][i] != high) continue;
        const Words low =
            draw_words(args_.seed, stream_word(Purpose::mixture_pick, 1), first + static_cast<uint64_t>(i), block);
        w.picked[s][i] = low.w[s] < g.pick_low[s] ? 1.0 : 0.0;
      }
    }
  }

  // z becomes the exponent.
  static void exponents(Work& w, const Group& g, int s) {
    const double slope = g.slope[s], offset = g.offset[s], lift = g.lift[s];
    double* z = w.z[s];
    const double* picked = w.picked[s];
    if (g.picks) {
      for (int i = 0; i < kBlock; ++i) z[i] = slope * z[i] + (offset + lift * picked[i]);
    } else {
      for (int i = 0; i < kBlock; ++i) z[i] = slope * z[i] + offset;
    }
  }

  static void sparse(Work& w, const Group& g, double* total) {
    double p[kBlock];
    for (int i = 0; i < kBlock; ++i) p[i] = g.q[0] * expm1_safe(w.z[0][i]);
    for (int s = 1; s < g.steps; ++s) {
      const double q = g.q[s];
      for (int i = 0; i < kBlock; ++i) {
        const double u = q * expm1_safe(w.z[s][i]);
        p[i] += u + p[i] * u;
      }
    }
    for (int i = 0; i < kBlock; ++i) total[i] += log1p_safe(p[i]);
  }

  static void dense(Work& w, const Group& g, double* total) {
    double p[kBlock];
    for (int i = 0; i < kBlock; ++i) p[i] = (1.0 - g.q[0]) + g.q[0] * exp_safe(w.z[0][i]);
    for (int s = 1; s < g.steps; ++s) {
      const double q = g.q[s];
      for (int i = 0; i < kBlock; ++i) p[i] *= (1.0 - q) + q * exp_safe(w.z[s][i]);
    }
    for (int i = 0; i < kBlock; ++i) total[i] += log_positive(p[i]);
  }

  static void linear(Work& w, const Group& g, double* total) {
    for (int s = 0; s < g.steps; ++s) {
      for (int i = 0; i < kBlock; ++i) total[i] += w.z[s][i];
    }
  }

  static void careful(Work& w, const Group& g, int count, double* total) {
    for (int s = 0; s < g.steps; ++s) {
      if (g.q[s] == 0.0) continue;
      for (int i = 0; i < count; ++i) {
        // ((z + (x̄ − ½)/σ)/σ: one infinity at most, so never their difference. At σ = 0 the sign decides.
        const double centre = g.picks && w.picked[s][i] != 0.0 ? 0.5 : -0.5;
        const double sigma = g.sigma[s];
        const double exponent = sigma == 0.0 ? std::copysign(std::numeric_limits<double>::infinity(), centre)
                                             : (w.z[s][i] + centre / sigma) / sigma;
        total[i] += careful_term(exponent, g.q[s]);
      }
    }
  }

  const MixtureArgs& args_;
  std::vector<Group> groups_;
};

// body(first, count) over blocks of samples.
template <class Body>
void over_blocks(const MixtureArgs& args, Body&& body) {
  const int64_t blocks = (args.num_samples + kBlock - 1) / kBlock;
  const double nanoseconds = 10.0 * kBlock * static_cast<double>(blocks) * static_cast<double>(args.steps + 1);
  const int threads = useful_threads(nanoseconds, args.schedule.num_threads);
  const int64_t chunk =
      args.schedule.chunk > 0 ? args.schedule.chunk : std::clamp<int64_t>(blocks / (8 * threads), 1, 256);
  parallel_for(blocks, chunk, threads, [&](int64_t begin, int64_t end) { body(begin, end); });
}

// Private to a worker's chunk and added under no lock but the atomics' own: integers, so the order does not matter.
struct Tally {
  std::vector<uint64_t> counts, inverse, excess;

  explicit Tally(int64_t m)
      : counts(static_cast<size_t>(m)), inverse(static_cast<size_t>(m * kSumDigits)), excess(inverse.size()) {}
};

void tally(const MixtureTailArgs& args, const double* ratios, int count, Tally& t) {
  const double* begin = args.thresholds;
  const double* end = begin + args.num_thresholds;
  for (int i = 0; i < count; ++i) {
    const double ratio = ratios[i];
    const int64_t reached = std::upper_bound(begin, end, ratio) - begin;
    if (reached == 0) continue;
    t.counts[static_cast<size_t>(reached - 1)] += 1;
    const double inverse = std::abs(ratio) <= kExpSafe ? exp_safe(-ratio) : std::min(std::exp(-ratio), DBL_MAX);
    exact_add(&t.inverse[static_cast<size_t>((reached - 1) * kSumDigits)], inverse);
    for (int64_t j = 0; j < reached; ++j) {
      const double threshold = begin[j];
      // Equal infinities have no difference; their limits are 1 at −∞ and 0 at +∞.
      const double gap = threshold - ratio;
      const double share = std::isinf(threshold) ? (threshold < 0 ? 1.0 : 0.0)
                           : gap < -kExpSafe     ? 1.0
                                                 : 0.0 - expm1_safe(gap);
      exact_add(&t.excess[static_cast<size_t>(j * kSumDigits)], share);
    }
  }
}

void carry(std::vector<uint64_t>& digits) {
  for (size_t i = 0; i < digits.size(); i += kSumDigits) exact_carry(&digits[i]);
}

}  // namespace

Status mixture_log_ratio_cpu(const MixtureLogRatioArgs& args) {
  const Sampler sampler(args);
  over_blocks(args, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t offset = b * kBlock;
      const int count = static_cast<int>(std::min<int64_t>(kBlock, args.num_samples - offset));
      sampler.log_ratios(args.first_sample + static_cast<uint64_t>(offset), count, args.out + offset);
    }
  });
  return {};
}

Status mixture_tail_cpu(const MixtureTailArgs& args) {
  const Sampler sampler(args);
  const size_t m = static_cast<size_t>(args.num_thresholds);
  std::mutex lock;
  over_blocks(args, [&](int64_t begin, int64_t end) {
    Tally t(args.num_thresholds);
    double ratios[kBlock];
    for (int64_t b = begin; b < end; ++b) {
      const int64_t offset = b * kBlock;
      const int count = static_cast<int>(std::min<int64_t>(kBlock, args.num_samples - offset));
      sampler.log_ratios(args.first_sample + static_cast<uint64_t>(offset), count, ratios);
      tally(args, ratios, count, t);
      if (b % 4096 == 4095) {
        carry(t.inverse);
        carry(t.excess);
      }
    }
    carry(t.inverse);
    carry(t.excess);
    const std::lock_guard<std::mutex> guard(lock);
    for (size_t j = 0; j < m; ++j) args.counts[j] += static_cast<int64_t>(t.counts[j]);
    for (size_t j = 0; j < m * kSumDigits; ++j) {
      args.inverse[j] += t.inverse[j];
      args.excess[j] += t.excess[j];
    }
    for (size_t j = 0; j < m * kSumDigits; j += kSumDigits) {
      exact_carry(&args.inverse[j]);
      exact_carry(&args.excess[j]);
    }
  });
  return {};
}

}  // namespace leakcore
