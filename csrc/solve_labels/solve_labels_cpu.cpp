// Label solving on the CPU, one problem per work item, in double.
//
// C·P = Q·R by column-pivoted Householder reflections, stopped at step k once all that is left of C is provably below
// the cut: the rank is then at most k. If ‖R₁⁻¹‖ proves that the k-th singular value is above the cut, the rank is k
// and the triangle gives everything; otherwise the cut falls among the small singular values and a Jacobi SVD of the k
// × k triangle decides. Either way `rank` is the number of singular values above rcond·(largest), to within rounding.
#include "solve_labels/solve_labels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <vector>

#include "core/products/dense_cpu.h"
#include "core/products/tile.h"
#include "core/runtime/parallel.h"
#include "solve_labels/normal_equations.h"
#include "solve_labels/normal_equations_cpu.h"

namespace leakcore {
namespace {

double largest_magnitude(const double* x, int64_t count, bool* finite) {
  double largest = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    if (!std::isfinite(x[i])) *finite = false;
    largest = std::max(largest, std::abs(x[i]));
  }
  return largest;
}

class Problem {
 public:
  Problem(const SolveLabelsArgs& args, int64_t index)
      : args_(args), index_(index), n_(args.num_samples), d_(args.jacobian.numel), outputs_(args.num_outputs) {}

  // False with *what set when the input is not finite.
  bool solve(const char** what) {
    if (!load(what)) return false;
    factorise();
    invert();
    write();
    return true;
  }

 private:
  bool load(const char** what) {
    c_ = Matrix(d_, n_);
    b_ = Matrix(d_, outputs_);
    bool finite = true;
    double largest = 0.0;
    for (int64_t r = 0; r < n_; ++r) {
      load_tile(args_.jacobian, index_, r, 0, d_, c_.col(r));
      largest = std::max(largest, largest_magnitude(c_.col(r), d_, &finite));
    }
    *what = "jacobian";
    if (!finite) return false;
    for (int64_t k = 0; k < outputs_; ++k) {
      load_tile(args_.gradient, index_, k, 0, d_, b_.col(k));
      largest_magnitude(b_.col(k), d_, &finite);
    }
    *what = "gradient";
    if (!finite) return false;
    // By a power of two, so exactly: squares of entries neither overflow nor vanish.
    if (largest > 0.0) std::frexp(largest, &exponent_);
    for (double& x : c_.data) x = std::ldexp(x, -exponent_);
    for (double& x : b_.data) x = std::ldexp(x, -exponent_) * static_cast<double>(n_);
    column_norm_.resize(static_cast<size_t>(n_));
    double squares = 0.0;
    for (int64_t r = 0; r < n_; ++r) {
      const double norm = norm2(c_.col(r), d_);
      column_norm_[static_cast<size_t>(r)] = norm;
      squares += norm * norm;
    }
    norm_ = std::sqrt(squares);
    return true;
  }

  void factorise() {
    pivot_.resize(static_cast<size_t>(n_));
    for (int64_t r = 0; r < n_; ++r) pivot_[static_cast<size_t>(r)] = r;
    std::vector<double> left = column_norm_;
    // What is left may be dropped only once it is rounding, however large the caller's cut: dropping more would solve a
    // neighbouring system.
    const double rounding = 8.0 * static_cast<double>(std::max(n_, d_)) * kUnitRoundoff;
    const double cut = std::min(args_.rcond, rounding) * (n_ ? *std::max_element(left.begin(), left.end()) : 0.0);
    const int64_t most = std::min(n_, d_);
    for (steps_ = 0; steps_ < most; ++steps_) {
      const int64_t k = steps_;
      double squares = 0.0;  // of lengths that come from squares themselves: none overflows or vanishes
      for (int64_t j = k; j < n_; ++j) squares += left[static_cast<size_t>(j)] * left[static_cast<size_t>(j)];
      if (!(std::sqrt(squares) > cut)) break;
      const int64_t best = std::max_element(left.begin() + k, left.end()) - left.begin();
      if (best != k) {
        std::swap_ranges(c_.col(k), c_.col(k) + d_, c_.col(best));
        std::swap(left[static_cast<size_t>(k)], left[static_cast<size_t>(best)]);
        std::swap(pivot_[static_cast<size_t>(k)], pivot_[static_cast<size_t>(best)]);
      }
      double* v = c_.col(k) + k;
      const Reflection h = make_reflection(v, d_ - k);
      for (int64_t j = k + 1; j < n_; ++j) {
        double* y = c_.col(j) + k;
        reflect(h.tau, v, y, d_ - k);
        left[static_cast<size_t>(j)] = norm2(y + 1, d_ - k - 1);
      }
      for (int64_t j = 0; j < outputs_; ++j) reflect(h.tau, v, b_.col(j) + k, d_ - k);
      v[0] = h.value;
    }
  }

  // pseudo_inverse_ (N × k, rows in pivoted order) times the first k entries of Qᵀb is the solution.
  void invert() {
    const int64_t k = steps_;
    Matrix upper(k, k);
    if (k == n_) {
      for (int64_t j = 0; j < k; ++j) std::copy(c_.col(j), c_.col(j) + j + 1, upper.col(j));
      pseudo_inverse_ = upper_inverse(upper);
      null_ = Matrix(n_, 0);
      if (decided()) return;
      decide(upper, nullptr, {});
      return;
    }
    // [R₁ R₂]ᵀ = Z·T, so C·P = Q·Tᵀ·Zᵀ: the orthogonal Z separates what C sees from its null space.
    Matrix z(n_, k);
    for (int64_t j = 0; j < n_; ++j) {
      for (int64_t i = 0; i < std::min(j + 1, k); ++i) z.at(j, i) = c_.at(i, j);
    }
    std::vector<double> tau(static_cast<size_t>(k));
    for (int64_t i = 0; i < k; ++i) {
      double* v = z.col(i) + i;
      const Reflection h = make_reflection(v, n_ - i);
      tau[static_cast<size_t>(i)] = h.tau;
      for (int64_t j = i + 1; j < k; ++j) reflect(h.tau, v, z.col(j) + i, n_ - i);
      std::copy(z.col(i), z.col(i) + i, upper.col(i));
      upper.at(i, i) = h.value;
    }
    const Matrix inverse = upper_inverse(upper);
    pseudo_inverse_ = Matrix(n_, k);
    for (int64_t j = 0; j < k; ++j) {
      for (int64_t i = 0; i < k; ++i) pseudo_inverse_.at(i, j) = inverse.at(j, i);
      rotate(z, tau, pseudo_inverse_.col(j));
    }
    null_ = Matrix(n_, n_ - k);
    for (int64_t j = 0; j < n_ - k; ++j) {
      null_.at(k + j, j) = 1.0;
      rotate(z, tau, null_.col(j));
    }
    if (decided()) return;
    Matrix lower(k, k);
    for (int64_t j = 0; j < k; ++j) {
      for (int64_t i = 0; i < k; ++i) lower.at(i, j) = upper.at(j, i);
    }
    decide(lower, &z, tau);
  }

  void rotate(const Matrix& z, const std::vector<double>& tau, double* y) const {
    for (int64_t i = steps_ - 1; i >= 0; --i) reflect(tau[static_cast<size_t>(i)], z.col(i) + i, y + i, n_ - i);
  }

  // True when the norm of the inverse proves that no singular value of the triangle is at or below the cut.
  bool decided() {
    rank_ = steps_;
    inverse_norm_ = norm2(pseudo_inverse_.data.data(), static_cast<int64_t>(pseudo_inverse_.data.size()));
    return inverse_norm_ * args_.rcond * norm_ < 1.0;
  }

  void decide(const Matrix& triangle, const Matrix* z, const std::vector<double>& tau) {
    const int64_t k = steps_;
    Matrix u, v;
    std::vector<double> s;
    jacobi_svd(triangle, &u, &s, &v);
    const double cut = args_.rcond * *std::max_element(s.begin(), s.end());
    std::fill(pseudo_inverse_.data.begin(), pseudo_inverse_.data.end(), 0.0);
    rank_ = 0;
    for (int64_t l = 0; l < k; ++l) {
      const double value = s[static_cast<size_t>(l)];
      std::vector<double> direction(static_cast<size_t>(n_));
      std::copy(v.col(l), v.col(l) + k, direction.begin());
      if (z != nullptr) rotate(*z, tau, direction.data());
      if (value > cut) {
        ++rank_;
        for (int64_t j = 0; j < k; ++j) axpy(u.at(j, l) / value, direction.data(), pseudo_inverse_.col(j), n_);
      } else {
        null_.data.insert(null_.data.end(), direction.begin(), direction.end());
        ++null_.cols;
      }
    }
    inverse_norm_ = norm2(pseudo_inverse_.data.data(), static_cast<int64_t>(pseudo_inverse_.data.size()));
  }

  void write() {
    const int64_t k = steps_;
    args_.rank[index_] = rank_;
    Matrix e(n_, outputs_);  // in the caller's order of samples
    std::vector<double> root(static_cast<size_t>(n_)), null(static_cast<size_t>(n_));
    for (int64_t j = 0; j < n_; ++j) {
      const int64_t r = pivot_[static_cast<size_t>(j)];
      double squares = 0.0, lost = 0.0;
      for (int64_t i = 0; i < k; ++i) {
        squares += pseudo_inverse_.at(j, i) * pseudo_inverse_.at(j, i);
        for (int64_t o = 0; o < outputs_; ++o) e.at(r, o) += pseudo_inverse_.at(j, i) * b_.at(i, o);
      }
      for (int64_t i = 0; i < null_.cols; ++i) lost += null_.at(j, i) * null_.at(j, i);
      root[static_cast<size_t>(r)] = std::sqrt(squares);
      null[static_cast<size_t>(r)] = std::sqrt(lost);
      args_.leverage[index_ * n_ + r] = std::ldexp(squares, -2 * exponent_);
    }
    const std::vector<double> spread = spreads(e);
    const double condition = inverse_norm_ * norm_;
    // Residuals of a cross-entropy lie in [-1, 1], so what the null space can move is at most its row times sqrt(N).
    const double limit = null_limit(args_.rcond, condition);
    const double count = static_cast<double>(n_), length = static_cast<double>(d_);
    std::vector<char> determined(static_cast<size_t>(n_));
    for (int64_t r = 0; r < n_; ++r) {
      const size_t i = static_cast<size_t>(r);
      determined[i] = null[i] <= limit && column_norm_[i] > 0.0;
      args_.identifiable[index_ * n_ + r] = static_cast<uint8_t>(determined[i]);
    }
    for (int64_t o = 0; o < outputs_; ++o) {
      double weight = 0.0;
      for (int64_t r = 0; r < n_; ++r) weight += column_norm_[static_cast<size_t>(r)] * std::abs(e.at(r, o));
      const double outside = norm2(b_.col(o) + k, d_ - k);
      const double scale =
          residual_error(count, length, args_.unit, condition, spread[static_cast<size_t>(o)], weight, outside) +
          std::ldexp(args_.lost, -exponent_);
      for (int64_t r = 0; r < n_; ++r) {
        const size_t i = static_cast<size_t>(r);
        const int64_t at = (index_ * n_ + r) * outputs_ + o;
        const double bound = root[i] * scale + null[i] * std::sqrt(count) + args_.unit * std::abs(e.at(r, o));
        args_.residual[at] = e.at(r, o);
        args_.error[at] =
            determined[i] ? shown_error(e.at(r, o), bound, args_.largest) : std::numeric_limits<double>::infinity();
      }
    }
  }

  // ‖|C|·|e|‖₂ for every output: how large the terms are whose sum the gradient is.
  std::vector<double> spreads(const Matrix& e) const {
    Matrix terms(d_, outputs_);
    std::vector<double> column(static_cast<size_t>(d_));
    for (int64_t r = 0; r < n_; ++r) {
      load_tile(args_.jacobian, index_, r, 0, d_, column.data());
      for (double& x : column) x = std::ldexp(std::abs(x), -exponent_);
      for (int64_t o = 0; o < outputs_; ++o) axpy(std::abs(e.at(r, o)), column.data(), terms.col(o), d_);
    }
    std::vector<double> out;
    for (int64_t o = 0; o < outputs_; ++o) out.push_back(norm2(terms.col(o), d_));
    return out;
  }

  const SolveLabelsArgs& args_;
  const int64_t index_, n_, d_, outputs_;
  Matrix c_, b_;
  int exponent_ = 0;
  double norm_ = 0.0;  // Frobenius
  std::vector<double> column_norm_;
  std::vector<int64_t> pivot_;
  int64_t steps_ = 0, rank_ = 0;
  Matrix pseudo_inverse_, null_;
  double inverse_norm_ = 0.0;
};

}  // namespace

Status solve_labels_cpu(const SolveLabelsArgs& args) {
  Status bad;
  std::mutex lock;
  const double n = static_cast<double>(args.num_samples), d = static_cast<double>(args.jacobian.numel);
  const int threads =
      useful_threads(static_cast<double>(args.num_problems) * (500.0 + 0.05 * d * n * n), args.schedule.num_threads);
  // A worker's scratch lasts for a chunk.
  const int64_t chunk =
      args.schedule.chunk > 0 ? args.schedule.chunk : std::clamp<int64_t>(args.num_problems / (8 * threads), 1, 64);
  parallel_for(args.num_problems, chunk, threads, [&](int64_t begin, int64_t end) {
    NormalRoute normal(args);
    for (int64_t index = begin; index < end; ++index) {
      const char* what = "";
      if (normal.solve(index)) continue;
      if (Problem(args, index).solve(&what)) continue;
      const std::lock_guard<std::mutex> guard(lock);
      if (bad.ok() || index < bad.index) bad = {Code::non_finite, "solve_labels", what, index};
    }
  });
  return bad;
}

}  // namespace leakcore
