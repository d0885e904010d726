// Random allocation on CUDA: a thread takes one sample through all epochs. Arithmetic is terms.h's in the order of
// independent.h and correlated.h, so ratios equal those of the CPU's tiers with fused multiply-add bit for bit, and
// with them counts and exact sums. What grows with the arguments (levels, normals to be multiplied) is scratch, an
// entry of all threads side by side; so there are only as many threads as kWorkBytes hold.
#include "allocation/allocation.h"
#include "allocation/plan.h"
#include "allocation/terms.h"
#include "core/rng/normal.h"
#include "core/rng/streams.h"
#include "core/runtime/launch.cuh"
#include "mixture/tail.cuh"

namespace leakcore {
namespace {

constexpr int kThreads = 128;
constexpr int64_t kMaxBlocks = 16384;  // beyond it, threads take several samples
constexpr int64_t kWorkBytes = int64_t{256} << 20;

struct Draws {
  AllocationShape shape;
  Keys keys;  // of the seed
  uint64_t first;
  int64_t count;
  bool alternative;
  double* work;    // [work_per_sample][stride]
  int64_t stride;  // threads
};

__device__ inline Words draw(const Draws& x, Purpose purpose, bool step, uint64_t sample, int64_t block) {
  return philox_keyed(static_cast<uint32_t>(block), stream_word(purpose, step), static_cast<uint32_t>(sample),
                      static_cast<uint32_t>(sample >> 32), x.keys);
}

// An epoch as far as it has come.
struct Epoch {
  double sum, most, total;
};

// Levels of the elementary symmetric polynomial in a thread's own scratch.
struct Levels {
  double* own;
  int64_t stride;

  __device__ double& at(int64_t j) const { return own[(kLevelPad + j) * stride]; }
};

__device__ inline Epoch begin_epoch(const AllocationShape& shape, const Levels& levels) {
  if (shape.level > 1) {
    const bool logs = shape.form == AllocationForm::careful_subsets;
    for (int64_t j = -kLevelPad; j <= shape.level; ++j) levels.at(j) = logs ? kNothing : 0.0;
    levels.at(0) = logs ? 0.0 : 1.0;
  }
  return {0.0, kNothing, 0.0};
}

// `rows` bins of independent noise from number `bin` on.
__device__ inline void add_bins(const AllocationShape& shape, const Levels& levels, const double* z, const float* z32,
                                int rows, int64_t bin, Epoch* epoch) {
  if (shape.quick) {
    const float q = static_cast<float>(shape.scale), slope = static_cast<float>(shape.slope);
    const bool excess = shape.form == AllocationForm::excess;
    float part = 0.0f;
    for (int s = 0; s < rows; ++s) {
      const float y = madd(z32[s], slope, static_cast<float>(bin + s < shape.chosen ? shape.lifted : shape.offset));
      const float term = excess ? exp2_float<true>(y, q) : exp2_float<false>(y, q);
      part = s == 0 ? term : part + term;
    }
    epoch->sum = epoch->sum + static_cast<double>(part);
    return;
  }
  double y[4];
  for (int s = 0; s < rows; ++s) {
    y[s] = madd(z[s], shape.slope, bin + s < shape.chosen ? shape.lifted : shape.offset);
    if (shape.flipped) epoch->total = epoch->total + z[s];
  }
  const Scale q = {shape.scale};
  switch (shape.form) {
    case AllocationForm::linear:
      return;
    case AllocationForm::plain:
      for (int s = 0; s < rows; ++s) epoch->sum = add_exp2<false>(epoch->sum, y[s], q);
      return;
    case AllocationForm::excess:
      for (int s = 0; s < rows; ++s) epoch->sum = add_exp2<true>(epoch->sum, y[s], q);
      return;
    case AllocationForm::careful:
      return peak_add(y, rows, &epoch->most, &epoch->sum);
    case AllocationForm::subsets: {
      double weight[4] = {}, c[4];
      for (int s = 0; s < rows; ++s) weight[s] = scaled_exp2(y[s], q);
      symmetric(weight, c);
      return raise_levels(
          c, lowest_level(shape, bin + rows), highest_level(shape, bin + rows), [&](int64_t j) { return levels.at(j); },
          [&](int64_t j, double value) { levels.at(j) = value; });
    }
    case AllocationForm::careful_subsets:
      for (int s = 0; s < rows; ++s) {
        const int64_t low = lowest_level(shape, bin + s + 1);
        for (int64_t j = highest_level(shape, bin + s + 1); j >= low; --j) {
          levels.at(j) = log_add(levels.at(j), levels.at(j - 1) + y[s]);
        }
      }
      return;
  }
}

// What the epoch adds to L.
__device__ inline double epoch_ratio(const AllocationShape& shape, const Levels& levels, const Epoch& epoch) {
  double ratio = epoch.sum;
  switch (shape.form) {
    case AllocationForm::linear:
      break;
    case AllocationForm::plain:
      ratio = log_positive(epoch.sum);
      break;
    case AllocationForm::excess:
      ratio = log1p_safe(epoch.sum);
      break;
    case AllocationForm::careful:
      ratio = epoch.most + (log_positive(epoch.sum) - shape.log_count);
      break;
    case AllocationForm::subsets:
      ratio = log_positive(levels.at(shape.level));
      break;
    case AllocationForm::careful_subsets:
      ratio = levels.at(shape.level) - shape.log_count;
      break;
  }
  return shape.flipped ? ratio + madd(epoch.total, shape.sum_slope, shape.sum_offset) : ratio;
}

__device__ inline double independent_ratio(const Draws& x, uint64_t sample, double* own) {
  const AllocationShape& shape = x.shape;
  const Levels levels = {own, x.stride};
  const int64_t draws = shape.bins * shape.epochs;
  double ratio = 0.0;
  Epoch epoch = begin_epoch(shape, levels);
  int64_t bin = 0;
  for (int64_t d = 0; d < draws; d += 4) {
    const int rows = static_cast<int>(draws - d < 4 ? draws - d : 4);
    const Words word = draw(x, Purpose::allocation, x.alternative, sample, d / 4);
    double z[4] = {};
    float z32[4] = {};
    for (int s = 0; s < 4; s += 2) {
      if (shape.quick) {
        box_muller_float(word.w[s], word.w[s + 1], &z32[s], &z32[s + 1]);
      } else {
        box_muller(static_cast<uint64_t>(word.w[s]), static_cast<uint64_t>(word.w[s + 1]), &z[s], &z[s + 1]);
      }
    }
    for (int s = 0; s < rows;) {
      const int64_t left = shape.bins - bin;
      const int here = static_cast<int>(left < rows - s ? left : rows - s);
      add_bins(shape, levels, z + s, z32 + s, here, bin, &epoch);
      s += here;
      bin += here;
      if (bin < shape.bins) continue;
      ratio = ratio + epoch_ratio(shape, levels, epoch);
      epoch = begin_epoch(shape, levels);
      bin = 0;
    }
  }
  return ratio;
}

__device__ inline double correlated_ratio(const Draws& x, uint64_t sample, double* own) {
  const AllocationShape& shape = x.shape;
  const Factor& factor = shape.factor;
  const Scale q = {shape.scale};
  double ratio = 0.0;
  for (int64_t e = 0; e < shape.epochs; ++e) {
    const int64_t begin = e * shape.draws, end = begin + shape.draws;
    for (int64_t block = begin / 4; 4 * block < end; ++block) {
      const Words word = draw(x, Purpose::allocation, x.alternative, sample, block);
      double z[4];
      box_muller(static_cast<uint64_t>(word.w[0]), static_cast<uint64_t>(word.w[1]), &z[0], &z[1]);
      box_muller(static_cast<uint64_t>(word.w[2]), static_cast<uint64_t>(word.w[3]), &z[2], &z[3]);
      for (int s = 0; s < 4; ++s) {
        const int64_t column = 4 * block + s - begin;
        if (column >= 0 && column < shape.draws) own[column * x.stride] = z[s];
      }
    }
    if (x.alternative) {
      const Words word = draw(x, Purpose::allocation_pick, false, sample, e / 2);
      const int at = static_cast<int>(e % 2 * 2);
      const int64_t row = picked_bin(word.w[at], word.w[at + 1], shape.bins);
      int64_t column = factor.row_column[row];
      for (int64_t i = factor.row_start[row]; i < factor.row_start[row + 1]; ++i, ++column) {
        own[column * x.stride] = own[column * x.stride] + factor.shifts[i];
      }
    }
    double sum = 0.0, most = kNothing;
    for (int64_t t = 0; t < factor.num_tiles; ++t) {
      const Tile tile = factor.tiles[t];
      const double* c = factor.coefficients + tile.start;
      double y[kTileRows];
      for (int r = 0; r < kTileRows; ++r) y[r] = factor.offsets[t * kTileRows + r];
      for (int64_t column = tile.begin; column < tile.end; ++column, c += kTileRows) {
        const double z = own[column * x.stride];
        for (int r = 0; r < kTileRows; ++r) y[r] = madd(z, c[r], y[r]);
      }
      for (int r = 0; r < kTileRows && t * kTileRows + r < shape.bins; ++r) {
        if (shape.form == AllocationForm::careful) {
          peak_add(&y[r], 1, &most, &sum);
        } else {
          sum = shape.form == AllocationForm::excess ? add_exp2<true>(sum, y[r], q) : add_exp2<false>(sum, y[r], q);
        }
      }
    }
    ratio = ratio + (shape.form == AllocationForm::careful  ? most + (log_positive(sum) - shape.log_count)
                     : shape.form == AllocationForm::excess ? log1p_safe(sum)
                                                            : log_positive(sum));
  }
  return ratio;
}

// visit(counts, i, L) for every sample x.first + i. All threads of a block visit equally often, so that they may meet;
// `counts` is false where there is no sample.
template <class Visit>
__device__ void for_each_sample(const Draws& x, Visit&& visit) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  double* const own = x.work + thread;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t from = static_cast<int64_t>(blockIdx.x) * blockDim.x; from < x.count; from += step) {
    const int64_t i = from + threadIdx.x;
    const bool counts = i < x.count;
    const uint64_t sample = x.first + static_cast<uint64_t>(counts ? i : from);
    visit(counts, i,
          x.shape.factor.tiles == nullptr ? independent_ratio(x, sample, own) : correlated_ratio(x, sample, own));
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) log_ratio_kernel(Draws x, T* out) {
  for_each_sample(x, [&](bool counts, int64_t i, double ratio) {
    if (counts) out[i] = static_cast<T>(ratio);
  });
}

__global__ void __launch_bounds__(kThreads) allocation_tail_kernel(Draws x, TailSums t) {
  LEAKCORE_DYNAMIC_SHARED(uint64_t, cells);  // [thresholds][kCell]
  begin_cells(t, 1, cells);
  for_each_sample(x, [&](bool counts, int64_t, double ratio) { tally(t, counts, ratio, 0, cells); });
  give_cells(t, 0, 1, cells);
}

// Blocks for a call's samples, at most so many, and no more than whose work fits.
int64_t blocks_for(const AllocationArgs& args, int64_t work_per_sample, int64_t at_most) {
  const int64_t bytes = work_per_sample * kThreads * static_cast<int64_t>(sizeof(double));
  int64_t blocks = (args.num_samples + kThreads - 1) / kThreads;
  if (bytes > 0 && blocks > kWorkBytes / bytes) blocks = kWorkBytes / bytes;
  if (blocks > at_most) blocks = at_most;
  return blocks < 1 ? 1 : blocks;
}

// The call's scratch: the factor's tables, `more` bytes of the caller's, the threads' work.
class CudaScratch {
 public:
  CudaScratch(const AllocationArgs& args, const AllocationPlan& plan, int64_t more, int64_t at_most)
      : args_(args), plan_(plan), more_(more), blocks_(blocks_for(args, plan.work_per_sample(), at_most)) {}

  int64_t bytes() const {
    const int64_t values = plan_.factor.tiles == nullptr ? 0 : args_.row_start[args_.bins];
    const int64_t padded = plan_.factor.num_tiles * kTileRows;
    const int64_t numbers = plan_.products() + padded + values + args_.bins + args_.bins + 1;
    const int64_t tables = plan_.factor.tiles == nullptr
                               ? 0
                               : numbers * kNumber + plan_.factor.num_tiles * static_cast<int64_t>(sizeof(Tile));
    return tables + more_ + blocks_ * kThreads * plan_.work_per_sample() * kNumber;
  }

  // Fills the tables; `extra` is where the caller's bytes are.
  cudaError_t send(Draws* x, void** extra) {
    at_ = static_cast<char*>(args_.scratch);
    x->shape = plan_;
    x->keys = round_keys(args_.seed);
    x->first = args_.first_sample;
    x->count = args_.num_samples;
    x->alternative = args_.alternative;
    x->stride = blocks_ * kThreads;
    Factor& f = x->shape.factor;
    if (f.tiles != nullptr) {
      copy(&f.tiles, f.num_tiles);
      copy(&f.coefficients, plan_.products());
      copy(&f.offsets, f.num_tiles * kTileRows);
      copy(&f.shifts, args_.row_start[args_.bins]);
      copy(&f.row_column, args_.bins);
      copy(&f.row_start, args_.bins + 1);
    }
    *extra = at_;
    x->work = reinterpret_cast<double*>(at_ + more_);
    return error_;
  }
  unsigned blocks() const { return static_cast<unsigned>(blocks_); }

 private:
  static constexpr int64_t kNumber = sizeof(double);

  template <class T>
  void copy(const T** table, int64_t count) {
    static_assert(sizeof(T) % sizeof(double) == 0, "tables follow each other aligned");
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    if (error_ == cudaSuccess && bytes > 0) {
      error_ = send_table(at_, *table, bytes, static_cast<cudaStream_t>(args_.device.stream));
    }
    *table = reinterpret_cast<const T*>(at_);
    at_ += bytes;
  }

  const AllocationArgs& args_;
  const AllocationPlan& plan_;
  int64_t more_, blocks_;
  char* at_ = nullptr;
  cudaError_t error_ = cudaSuccess;
};

int64_t threshold_bytes(const AllocationTailArgs& args) {
  return args.num_thresholds * static_cast<int64_t>(sizeof(double));
}

}  // namespace

int64_t allocation_log_ratio_cuda_scratch(const AllocationLogRatioArgs& args) {
  return CudaScratch(args, AllocationPlan(args), 0, kMaxBlocks).bytes();
}

int64_t allocation_tail_cuda_scratch(const AllocationTailArgs& args) {
  return CudaScratch(args, AllocationPlan(args), threshold_bytes(args), kTailBlocks).bytes();
}

Status allocation_log_ratio_cuda(const AllocationLogRatioArgs& args) {
  constexpr const char* kKernel = "allocation_log_ratio";
  if (args.num_samples == 0) return {};
  const DeviceGuard guard(args.device);
  if (const Status refused = guard.status(kKernel); !refused.ok()) return refused;
  const AllocationPlan plan(args);
  CudaScratch scratch(args, plan, 0, kMaxBlocks);
  Draws x;
  void* extra;
  if (const cudaError_t error = scratch.send(&x, &extra); error != cudaSuccess) return cuda_status(error, kKernel);
  const auto launch_as = [&](auto* out) {
    using T = std::remove_pointer_t<decltype(out)>;
    return LEAKCORE_LAUNCH(log_ratio_kernel<T>, scratch.blocks(), kThreads, 0, args.device.stream, x, out);
  };
  return cuda_status(args.single ? launch_as(static_cast<float*>(args.out)) : launch_as(static_cast<double*>(args.out)),
                     kKernel);
}

Status allocation_tail_cuda(const AllocationTailArgs& args) {
  constexpr const char* kKernel = "allocation_tail";
  if (args.num_samples == 0 || args.num_thresholds == 0) return {};
  const DeviceGuard guard(args.device);
  if (const Status refused = guard.status(kKernel); !refused.ok()) return refused;
  const AllocationPlan plan(args);
  CudaScratch scratch(args, plan, threshold_bytes(args), kTailBlocks);
  Draws x;
  void* thresholds;
  cudaError_t error = scratch.send(&x, &thresholds);
  if (error == cudaSuccess) {
    error = send_table(thresholds, args.thresholds, static_cast<size_t>(threshold_bytes(args)),
                       static_cast<cudaStream_t>(args.device.stream));
  }
  if (error != cudaSuccess) return cuda_status(error, kKernel);
  TailSums t = {static_cast<const double*>(thresholds), args.num_thresholds, args.counts, args.sums, false};
  const int64_t bytes = share_cells(&t, 1);
  error = LEAKCORE_LAUNCH(allocation_tail_kernel, scratch.blocks(), kThreads, bytes, args.device.stream, x, t);
  if (error == cudaSuccess) error = carry_sums(args.sums, args.num_thresholds, args.device.stream);
  return cuda_status(error, kKernel);
}

}  // namespace leakcore
