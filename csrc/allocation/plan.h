// How the log ratio is put together, decided once on the host from the arguments, so that every tier and device takes
// the same route.
//
// Σ_j q·2^{y_j}, y_j an exponent in the units of exp2, is added up as it stands where no term can leave the range of a
// double; where every term is near q, its deviation from q instead, which keeps the relative accuracy of a ratio near
// 1. Else the largest exponent so far is carried along. k of b bins: e_k by the recursion over bins, whose terms are
// all positive, with C(b, k) shared out among the factors; where these could leave the range, in logarithms. Above
// half the bins e_k(w) = Π w · e_{b−k}(1/w).
#pragma once

#include <cstdint>
#include <vector>

#include "allocation/allocation.h"

namespace leakcore {

// `linear`: all bins chosen, L is Σ exponents; `plain` and `excess`: the sum, and the sum less 1; `careful`: with the
// largest exponent; `subsets` and `careful_subsets`: e_level for a level above 1.
enum class AllocationForm : int32_t { linear, plain, excess, careful, subsets, careful_subsets };

// Four rows of a factor, over all columns that one of them has an entry in.
constexpr int kTileRows = 4;
struct Tile {
  int64_t begin = 0, end = 0;  // columns
  int64_t start = 0;           // of its coefficients [end − begin][kTileRows]
};

// A factor for the loops, on the host or a device. Exponent j is offsets[j] + Σ coefficients·z; under the alternative z
// is moved by row J of `shifts`: `shifts` [row_start[J], row_start[J + 1]) from column row_column[J] on.
struct Factor {
  const Tile* tiles = nullptr;  // null: bins of independent noise
  int64_t num_tiles = 0;
  const double* coefficients = nullptr;
  const double* offsets = nullptr;
  const double* shifts = nullptr;
  const int64_t* row_column = nullptr;
  const int64_t* row_start = nullptr;
};

struct AllocationShape {
  AllocationForm form = AllocationForm::plain;
  bool quick = false;    // plain and excess with float32 normals and terms, the sum in float64
  bool flipped = false;  // exponents with the opposite sign, and the sum of them all on top
  int64_t bins = 0, epochs = 0, chosen = 0;
  int64_t level = 1;  // min(k, b − k), or 1 with a factor
  int64_t draws = 0;  // normals per epoch
  // The exponent is slope·z + offset, of the chosen bins slope·z + lifted: of 2 where there is a scale (plain, excess,
  // subsets), of e elsewhere.
  double slope = 0.0, offset = 0.0, lifted = 0.0;
  double scale = 1.0;                        // q: 1/b, or C(b, k)^{-1/k}
  double log_count = 0.0;                    // log C(b, level), where no scale takes care of it
  double sum_slope = 0.0, sum_offset = 0.0;  // of the sum of all exponents of e as a line in Σz
  Factor factor;
};

class AllocationPlan : public AllocationShape {
 public:
  explicit AllocationPlan(const AllocationArgs& args);
  AllocationPlan(const AllocationPlan&) = delete;
  AllocationPlan& operator=(const AllocationPlan&) = delete;

  // Doubles that a sample's work needs on top of what every form has.
  int64_t work_per_sample() const;
  int64_t products() const { return static_cast<int64_t>(coefficients_.size()); }

 private:
  bool scaled() const {
    return form == AllocationForm::plain || form == AllocationForm::excess || form == AllocationForm::subsets;
  }
  void choose(const AllocationArgs& args, double reach);
  void make_tiles(const AllocationArgs& args);

  std::vector<Tile> tiles_;
  std::vector<double> coefficients_, offsets_, shifts_;
};

// Zeros below level 0, so that the recursion needs no case for its first levels.
constexpr int kLevelPad = 4;

}  // namespace leakcore
