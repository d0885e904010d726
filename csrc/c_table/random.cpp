#include "c_table/checks.h"
#include "c_table/table.h"
#include "core/products/exact_sum.h"
#include "core/rng/normal.h"
#include "core/rng/philox.h"
#include "core/rng/streams.h"

namespace leakcore::c_table {
namespace {

struct RandomArgs {
  bool normal = false;
  Rows out;
  int64_t num_rows = 0;
  uint64_t seed = 0;
  uint32_t stream = 0;
  uint64_t first_row = 0;
  void* scratch = nullptr;
  Device device;
  Schedule schedule;
};

Status random_cpu(const RandomArgs& r) {
  fill_random_rows(r.normal ? fill_normals : fill_uniforms, r.out, r.num_rows, r.seed, r.stream, r.first_row,
                   r.schedule);
  return {};
}

Status random_cuda(const RandomArgs& r) {
  return fill_random_rows_cuda(r.normal, r.out, r.num_rows, r.seed, r.stream, r.first_row, r.device);
}

}  // namespace

leakcore_status random(const leakcore_random_args* given) {
  if (given == nullptr) return refuse("`args` must not be NULL");
  if (const char* bad = first({
          check_place(given->place),
          unless(given->num_rows >= 0, "`num_rows` must be at least 0"),
          unless(given->num_rows < 0 || given->first_row <= UINT64_MAX - static_cast<uint64_t>(given->num_rows),
                 "`first_row` plus `num_rows` must be below 2^64"),
          unless(is_wide(given->out.dtype), "the `dtype` of `out` must be float32 or float64"),
          unless(given->out.columns >= 0 && given->out.columns <= kMostDraws, "`columns` must be in [0, 2^34]"),
          unless(present(given->out, given->num_rows), "the `data` of `out` must not be NULL"),
          unless(given->purpose == LEAKCORE_PURPOSE_CLIP_NOISE || given->purpose == LEAKCORE_PURPOSE_CALLER,
                 "`purpose` must be LEAKCORE_PURPOSE_CLIP_NOISE or LEAKCORE_PURPOSE_CALLER"),
          unless(given->step >> kStepBits == 0, "`step` must be in [0, 2^24)"),
      })) {
    return refuse(bad);
  }
  RandomArgs args;
  args.normal = given->normal != 0;
  args.out = rows_of(given->out);
  args.num_rows = given->num_rows;
  args.seed = given->seed;
  args.stream = stream_word(static_cast<Purpose>(given->purpose), given->step);
  args.first_row = given->first_row;
  return run<RandomArgs>(args, given->place, random_cpu, random_cuda, [](const RandomArgs&) -> int64_t { return 0; });
}

void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
  const Words words = philox4x32_10(counter[0], counter[1], counter[2], counter[3], key[0], key[1]);
  for (int i = 0; i < 4; ++i) out[i] = words.w[i];
}

double round_sum(const uint64_t digits[LEAKCORE_SUM_DIGITS]) {
  static_assert(LEAKCORE_SUM_DIGITS == kSumDigits);
  uint64_t d[kSumDigits + 2] = {};  // carried, with room for the last carry
  uint64_t carry = 0;
  for (int i = 0; i < kSumDigits; ++i) {
    const uint64_t low = (digits[i] & 0xffffffffu) + (carry & 0xffffffffu);
    d[i] = low & 0xffffffffu;
    carry = (digits[i] >> 32) + (carry >> 32) + (low >> 32);
  }
  d[kSumDigits] = carry & 0xffffffffu;
  d[kSumDigits + 1] = carry >> 32;
  int top = kSumDigits + 1;
  while (top >= 0 && d[top] == 0) --top;
  if (top < 0) return 0.0;
  int length = 0;  // bits of the number
  while (length < 32 && d[top] >> length != 0) ++length;
  length += 32 * top;
  const auto bit = [&](int i) { return (d[i / 32] >> (i % 32)) & 1; };
  const int lowest = length > 53 ? length - 53 : 0;  // bits below are rounded away
  uint64_t mantissa = 0;
  for (int i = length - 1; i >= lowest; --i) mantissa = mantissa << 1 | bit(i);
  if (lowest > 0 && bit(lowest - 1) != 0) {
    bool more = (mantissa & 1) != 0;
    for (int i = 0; i < lowest - 1 && !more; ++i) more = bit(i) != 0;
    mantissa += more;
  }
  return std::ldexp(static_cast<double>(mantissa), lowest - 1074);
}

}  // namespace leakcore::c_table
