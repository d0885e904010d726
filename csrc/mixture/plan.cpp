#include "mixture/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/rng/normal.h"

namespace leakcore {
namespace {

// A product of factors stays below e^690 and above e^-690; in the forms kept as product − 1, whose error is an ulp of
// 1, above 1/16 in float64 and above e^-18 where the factors are known to 1e-7 only.
constexpr double kProductRange = 690.0;
const double kSparseFloor = std::log(16.0) + 1e-9;
constexpr double kQuickFloor = 18.0;
// Float32 knows an exponent of this size to 4e-6.
constexpr double kQuickReach = 16.5;
constexpr double kQuickTiny = 80.0;  // e^-80 is a normal float

// q as a threshold on 64 random bits: P(pick) = q to within 2^-64.
void set_pick(Group& g, int s) {
  const double scaled = g.q[s] * 4294967296.0;
  const double high = std::floor(scaled);
  g.pick_high[s] = static_cast<uint64_t>(high);
  g.pick_low[s] = static_cast<uint32_t>(std::min(std::floor((scaled - high) * 4294967296.0), 4294967295.0));
}

// By how much a group can move the logarithm of the product up and down.
struct Move {
  double up = 0.0, down = 0.0;
};

Group make_group(const double* sigmas, const double* rates, int64_t steps, bool alternative, bool single, Move* move) {
  Group g;
  g.steps = static_cast<int32_t>(std::min<int64_t>(kGroup, steps));
  bool any = false, all_one = true, dense = false;
  double reach = 0.0, tiny = 0.0;  // the largest exponent, and −log of the smallest q·e^exponent
  for (int s = 0; s < g.steps; ++s) {
    const double sigma = sigmas[s], q = rates[s];
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
    g.lifted[s] = alternative ? 0.5 / sigma / sigma : g.offset[s];
    g.log_q[s] = std::log(q);
    if (alternative) set_pick(g, s);
    const double exponent = kNormalLimit * g.slope[s] - g.offset[s];
    tiny = std::max(tiny, exponent - g.log_q[s]);
    reach = exponent <= kExpSafe ? std::max(reach, exponent) : std::numeric_limits<double>::infinity();
    const double highest = kNormalLimit * g.slope[s] + g.lifted[s];
    move->up += std::max(0.0, std::log1p(q * std::expm1(std::min(highest, kExpSafe))));
    move->down += q <= 0.5 ? -std::log1p(-q) : exponent;
  }
  g.form = !any                                                             ? Form::idle
           : !(reach * g.steps <= kProductRange && tiny <= kExpSafe)        ? Form::careful
           : all_one                                                        ? Form::linear
           : dense && move->down > kSparseFloor                             ? Form::dense
           : single && !dense && reach <= kQuickReach && tiny <= kQuickTiny ? Form::quick
                                                                            : Form::sparse;
  if (g.form == Form::sparse || g.form == Form::dense || g.form == Form::quick) {
    for (int s = 0; s < g.steps; ++s) {
      for (double* x : {&g.slope[s], &g.offset[s], &g.lifted[s]}) *x *= kLog2e;
      g.slope32[s] = static_cast<float>(g.slope[s]);
      g.offset32[s] = static_cast<float>(g.offset[s]);
      g.lifted32[s] = static_cast<float>(g.lifted[s]);
      g.q32[s] = static_cast<float>(g.q[s]);
    }
  }
  return g;
}

}  // namespace

MixturePlan::MixturePlan(const MixtureArgs& args)
    : configs(args.configs),
      groups((args.steps + kGroup - 1) / kGroup),
      one_step(args.steps == 1),
      table(static_cast<size_t>(args.configs * groups)) {
  for (int64_t c = 0; c < configs; ++c) {
    Group* open = nullptr;  // the last group of the product under way
    Move sum;
    for (int64_t k = 0; k < groups; ++k) {
      const int64_t at = c * args.steps + k * kGroup;
      Move move;
      Group& g = table[static_cast<size_t>(c * groups + k)];
      g = make_group(args.noise_multiplier + at, args.sample_rate + at, args.steps - k * kGroup, args.alternative,
                     args.single, &move);
      if (g.form == Form::idle) continue;
      const double floor = g.form == Form::sparse ? kSparseFloor : g.form == Form::quick ? kQuickFloor : kProductRange;
      g.first =
          open == nullptr || open->form != g.form || sum.up + move.up > kProductRange || sum.down + move.down > floor;
      if (g.first) {
        if (open != nullptr) open->last = 1;
        sum = Move();
      }
      sum.up += move.up;
      sum.down += move.down;
      open = &g;
    }
    if (open != nullptr) open->last = 1;
  }
}

bool MixturePlan::all(Form form) const {
  return std::all_of(table.begin(), table.end(), [=](const Group& g) { return g.form == form; });
}

int32_t MixturePlan::period(int64_t config) const {
  if (groups == 0 || one_step) return 0;
  const Group& front = at(config, 0);
  int64_t length = 1;
  while (length < groups && at(config, length).first == 0) ++length;
  for (int64_t k = 0; k < groups; ++k) {
    const Group& g = at(config, k);
    if (g.form != Form::quick || g.first != (k % length == 0) || g.last != ((k + 1) % length == 0 || k + 1 == groups)) {
      return 0;
    }
    for (int s = 0; s < g.steps; ++s) {
      if (g.sigma[s] != front.sigma[0] || g.q[s] != front.q[0]) return 0;
    }
  }
  return length <= INT32_MAX ? static_cast<int32_t>(length) : 0;
}

}  // namespace leakcore
