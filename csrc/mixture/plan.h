// How the log ratio is put together, decided once on the host from σ and q alone, so that every tier and device takes
// the same route.
//
// Four steps share a Philox block and make a group. Factors f = 1 + u are multiplied as P <- P + u + P·u where q <=
// 1/2, which keeps the relative accuracy of a ratio near 1 (small q, large σ), and as a plain product where q > 1/2,
// whose factors may be near 0. One logarithm is taken for as many groups as cannot leave the range of a double, nor, in
// the first form, come so near 0 that P, known to an ulp of 1, loses accuracy. A group with so small a σ that the
// exponent is huge goes step by step.
#pragma once

#include <cstdint>
#include <vector>

#include "mixture/mixture.h"

namespace leakcore {

constexpr int kGroup = 4;

// `idle`: all q = 0; `linear`: all q = 1, where L is the exponent itself; `sparse`: the product less 1, so that small
// logarithms keep their digits; `dense`: the product, where a q above 1/2 lets it come near 0; `quick`: `sparse` with
// float32 factors and normals, and a float64 product of the groups.
enum class Form : int32_t { idle, sparse, dense, linear, careful, quick };

// The exponent is slope·z + offset, plus lift where the second component was picked: of 2 (sparse, dense, quick) or of
// e (linear).
struct Group {
  Form form = Form::idle;
  int32_t steps = 0;
  int32_t first = 0, last = 0;  // of a product: it starts here, its logarithm is due here
  float slope32[kGroup] = {};
  float offset32[kGroup] = {};
  float lifted32[kGroup] = {};  // offset + lift
  float q32[kGroup] = {};
  double slope[kGroup] = {};
  double offset[kGroup] = {};
  double lifted[kGroup] = {};
  double q[kGroup] = {};
  double sigma[kGroup] = {};
  double log_q[kGroup] = {};
  uint64_t pick_high[kGroup] = {};  // q·2^32: leading word of the threshold, 2^32 when q = 1
  uint32_t pick_low[kGroup] = {};   // the next 32 bits
};

struct MixturePlan {
  int64_t configs = 0;
  int64_t groups = 0;
  bool one_step = false;     // T = 1: four consecutive samples share a Philox block, as four steps do elsewhere
  std::vector<Group> table;  // [configs][groups]

  explicit MixturePlan(const MixtureArgs& args);
  bool all(Form form) const;
  // How many groups each product of a configuration has where all groups are `quick` with one σ and q, and every
  // product but the last has as many; 0 where that is not so.
  int32_t period(int64_t config) const;
  const Group& at(int64_t config, int64_t group) const { return table[static_cast<size_t>(config * groups + group)]; }
};

}  // namespace leakcore
