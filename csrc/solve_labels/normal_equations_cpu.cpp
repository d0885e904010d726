#include "solve_labels/normal_equations_cpu.h"

#include <algorithm>
#include <cmath>

#include "core/products/tile.h"
#include "core/runtime/machine.h"
#include "core/simd/isa.h"
#include "solve_labels/normal_equations.h"

namespace leakcore {
namespace {

int64_t round_up(int64_t x) {
  return (x + kStripe - 1) / kStripe * kStripe;
}

// Rows a multiple of 256 bytes apart would share a few sets of the cache.
int64_t leading(int64_t n) {
  const int64_t ld = round_up(n);
  return ld % 32 == 0 ? ld + kStripe : ld;
}

// Whether float32 entries are better converted once than whenever they are multiplied: where the doubles stay in the
// cache and every one is used a few times.
bool worth_converting(int64_t n, int64_t d) {
  constexpr int64_t kFewRows = 10;
  return n >= kFewRows && n * round_up(d) * static_cast<int64_t>(sizeof(double)) <= second_level_cache() / 4;
}

// Where on a line of the cache, in kStripe entries, every row begins; 0 where not all begin alike.
int64_t phase_of(const Rows& rows, int64_t size) {
  const bool alike = rows.row_stride % kStripe == 0 && rows.run_stride % kStripe == 0;
  return alike ? static_cast<int64_t>(reinterpret_cast<uintptr_t>(rows.data)) / size % kStripe : 0;
}

bool contiguous(const Rows& rows) {
  return rows.ndim == 0 || (rows.ndim == 1 && (rows.stride[0] == 1 || rows.numel == 1));
}

}  // namespace

NormalRoute::NormalRoute(const SolveLabelsArgs& args)
    : args_(args),
      loops_(LEAKCORE_TIERED(solve_labels_kernels)),
      n_(args.num_samples),
      d_(args.jacobian.numel),
      ld_(leading(n_)),
      possible_(n_ > 0 && n_ <= d_),
      one_block_(contiguous(args.jacobian) && args.jacobian.row_stride == d_) {
  if (!possible_) return;
  const bool in_line = contiguous(args.jacobian), floats = in_line && args.jacobian.dtype == DType::f32;
  const bool widens = floats && worth_converting(n_, d_);
  const bool in_place = (floats && !widens) || (in_line && args.jacobian.dtype == DType::f64);
  const int64_t buffer = in_place ? 0 : n_ * round_up(d_);
  scratch_.resize(static_cast<size_t>(buffer + 2 * ld_ * ld_ + 6 * ld_ + 2 * (round_up(d_) + kStripe) + kStripe));
  // Vector loads that straddle a cache line cost double.
  taken_ = -static_cast<int64_t>(reinterpret_cast<uintptr_t>(scratch_.data()) / sizeof(double)) & (kStripe - 1);
  buffer_ = take(buffer);
  r_ = take(ld_ * ld_);
  m_ = take(ld_ * ld_);
  for (double** vector : {&leverage_, &square_, &s_, &work_, &step_, &e_}) *vector = take(ld_);
  // Where the rows are, so that what is multiplied with them is on lines like theirs.
  const int64_t phase = in_place ? phase_of(args.jacobian, size_of(args.jacobian.dtype)) : 0;
  for (double** vector : {&b_, &rest_}) *vector = take(round_up(d_) + kStripe) + phase;
  if (floats) {
    rows32_.resize(static_cast<size_t>(n_));
  } else {
    rows64_.resize(static_cast<size_t>(n_));
  }
  for (int64_t r = 0; widens && r < n_; ++r) copies_.push_back(buffer_ + r * round_up(d_));
  residual_.resize(static_cast<size_t>(n_ * args.num_outputs));
  error_.resize(static_cast<size_t>(n_ * args.num_outputs));
}

double* NormalRoute::take(int64_t count) {
  double* const at = scratch_.data() + taken_;
  taken_ += count;
  return at;
}

bool NormalRoute::solve(int64_t index) {
  if (!possible_) return false;
  const Rows& jacobian = args_.jacobian;
  for (size_t r = 0; r < rows32_.size(); ++r) {
    rows32_[r] = static_cast<const float*>(jacobian.data) + index * jacobian.run_stride +
                 static_cast<int64_t>(r) * jacobian.row_stride;
  }
  for (size_t r = 0; r < rows64_.size(); ++r) {
    const int64_t row = static_cast<int64_t>(r);
    rows64_[r] = doubles_of(jacobian, index, row, buffer_ + row * round_up(d_));
  }
  if (!copies_.empty()) return solve_with<double>(loops_.f64, index, copies_.data());
  if (!rows32_.empty()) return solve_with(loops_.f32, index, rows32_.data());
  return solve_with(loops_.f64, index, rows64_.data());
}

template <class Entry>
bool NormalRoute::solve_with(const SampleKernels<Entry>& loops, int64_t index, const Entry* const* rows) {
  const int64_t outputs = args_.num_outputs;
  if (outputs > 0 && !read_output(index, 0)) return false;
  if (!factorise(loops, index, rows)) return false;
  for (int64_t o = 0; o < outputs; ++o) {
    if (o > 0) {
      if (!read_output(index, o)) return false;
      loops.project(rows, n_, d_, b_, s_);
    }
    solve_output(loops, o, rows);
  }
  std::copy(residual_.begin(), residual_.end(), args_.residual + index * n_ * outputs);
  std::copy(error_.begin(), error_.end(), args_.error + index * n_ * outputs);
  std::copy(leverage_, leverage_ + n_, args_.leverage + index * n_);
  std::fill_n(args_.identifiable + index * n_, n_, uint8_t{1});
  args_.rank[index] = n_;
  return true;
}

const double* NormalRoute::doubles_of(const Rows& rows, int64_t index, int64_t row, double* copy) const {
  const int64_t at = index * rows.run_stride + row * rows.row_stride;
  if (contiguous(rows) && rows.dtype == DType::f64) return static_cast<const double*>(rows.data) + at;
  if (contiguous(rows) && rows.dtype == DType::f32) {
    loops_.widen(static_cast<const float*>(rows.data) + at, d_, copy);
  } else {
    load_tile(rows, index, row, 0, d_, copy);
  }
  return copy;
}

bool NormalRoute::read_output(int64_t index, int64_t output) {
  const double* const side = doubles_of(args_.gradient, index, output, b_);
  // Squares of what is left must neither overflow nor vanish, and nothing may be NaN.
  const double most = loops_.scale(side, d_, static_cast<double>(n_), b_);
  return most == 0.0 || (most >= 1.0 / kSquareRange && most <= kSquareRange);
}

template <class Entry>
bool NormalRoute::factorise(const SampleKernels<Entry>& loops, int64_t index, const Entry* const* rows) {
  const int64_t size = size_of(args_.jacobian.dtype);
  const bool more = one_block_ && index + 1 < args_.num_problems;
  const char* const data = static_cast<const char*>(args_.jacobian.data);
  const Next next = {more ? data + size * (index + 1) * args_.jacobian.run_stride : nullptr, size * n_ * d_};
  if (!copies_.empty()) {
    loops_.gram_widening(rows32_.data(), n_, d_, b_, s_, copies_.data(), r_, ld_, next);
  } else {
    loops.gram(rows, n_, d_, b_, s_, r_, ld_, next);
  }
  double squares = 0.0;
  for (int64_t r = 0; r < n_; ++r) {
    const double square = r_[r * ld_ + r];
    // Not finite counts as out of range: the other route says where.
    if (!(square >= 1.0 / kSquareRange && square <= kSquareRange)) return false;
    squares += square;
    square_[r] = square;
  }
  if (!loops_.factor(r_, n_, ld_, kSmallPivot, m_, leverage_)) return false;
  double inverse_squares = 0.0;
  inflation_ = 0.0;
  for (int64_t r = 0; r < n_; ++r) {
    inverse_squares += leverage_[r];
    inflation_ += square_[r] * leverage_[r];
  }
  return normal_accepted(static_cast<double>(n_), static_cast<double>(d_), inflation_, squares * inverse_squares,
                         args_.rcond);
}

template <class Entry>
void NormalRoute::solve_output(const SampleKernels<Entry>& loops, int64_t output, const Entry* const* rows) {
  const double n = static_cast<double>(n_), d = static_cast<double>(d_);
  double spread = 0.0, outside = 0.0, last = 0.0;
  loops_.apply(m_, n_, ld_, s_, work_, e_, &last);
  for (int correction = 0; correction < kMostCorrections; ++correction) {
    loops.residual(rows, n_, d_, b_, e_, rest_, &outside, &spread);
    loops.project(rows, n_, d_, rest_, s_);
    loops_.apply(m_, n_, ld_, s_, work_, step_, &last);
    for (int64_t r = 0; r < n_; ++r) e_[r] += step_[r];
    spread = std::sqrt(spread);
    outside = std::sqrt(outside);
    last = std::sqrt(last);
    if (!correct_again(n, d, inflation_, spread, outside, last)) break;
  }
  const double scale = normal_error(n, d, inflation_, input_error(n, args_.unit), spread, outside, last) + args_.lost;
  for (int64_t r = 0; r < n_; ++r) {
    const size_t at = static_cast<size_t>(r * args_.num_outputs + output);
    residual_[at] = e_[r];
    const double error = std::sqrt(leverage_[r]) * scale + args_.unit * std::abs(e_[r]);
    error_[at] = shown_error(e_[r], error, args_.largest);
  }
}

}  // namespace leakcore
