// Runs and blocks of rows around the loops of ensemble_simd: weights are copied into padded buffers once per call, sums
// back out of them.
#include <algorithm>
#include <cstring>

#include "core/simd/isa.h"
#include "ensemble/ensemble.h"
#include "ensemble/ensemble_simd.h"

namespace leakcore {
namespace {

// Bytes of weights and sums that may be worked on side by side where all runs read the same rows: a block of rows is
// then read once for all of them, and all of it stays in the second-level cache.
constexpr int64_t kTogether = 512 << 10;
constexpr int64_t kAlign = 64;

const EnsembleLoops& ensemble_loops() {
  return LEAKCORE_TIERED(ensemble_loops);
}

template <class T>
void add_block(const EnsembleNet<T>& net, const EnsembleBlock<T>& block);
template <>
void add_block(const EnsembleNet<float>& net, const EnsembleBlock<float>& block) {
  ensemble_loops().block_f32(net, block);
}
template <>
void add_block(const EnsembleNet<double>& net, const EnsembleBlock<double>& block) {
  ensemble_loops().block_f64(net, block);
}

// Hands out aligned pieces; with a null base it only counts.
struct Arena {
  char* base;
  int64_t used = 0;

  template <class T>
  T* take(int64_t count) {
    T* out = base ? reinterpret_cast<T*>(base + used) : nullptr;
    used += (count * static_cast<int64_t>(sizeof(T)) + kAlign - 1) / kAlign * kAlign;
    return out;
  }
};

template <class T>
class Ensemble {
 public:
  explicit Ensemble(const EnsembleArgs& args) : args_(args) {
    const int32_t last = args.num_layers - 1;
    shape_.num_layers = args.num_layers;
    shape_.activation = args.activation;
    shape_.halved = args.sizes[last + 1] == 2;
    shape_.max_grad_norm = static_cast<T>(args.max_grad_norm);
    shape_.slack = static_cast<T>(args.slack);
    int64_t own = 0;
    for (int32_t l = 0; l <= last; ++l) {
      shape_.layers[l].in = args.sizes[l];
      shape_.layers[l].out = l == last && shape_.halved ? 1 : args.sizes[l + 1];
      own += 2 * shape_.layers[l].out * padded(shape_.layers[l].in) * static_cast<int64_t>(sizeof(T));
    }
    together_ = std::clamp<int64_t>(kTogether / own, 1, kMostTogether);
    together_ = std::min(together_, args.num_runs);
  }

  // Aligns what the caller gives, hence some more than is handed out.
  int64_t scratch() {
    Arena arena{nullptr};
    lay_out(arena);
    return arena.used + kAlign;
  }

  void sums() {
    const auto start = reinterpret_cast<uintptr_t>(args_.scratch);
    Arena arena{reinterpret_cast<char*>((start + kAlign - 1) / kAlign * kAlign)};
    lay_out(arena);
    for (int64_t first = 0; first < args_.num_runs; first += together_) {
      const int64_t count = std::min(together_, args_.num_runs - first);
      for (int64_t i = 0; i < count; ++i) read_weights(nets_[i], first + i);
      add_and_store(args_.common, args_.common_sums, first, count);
      add_and_store(args_.extra, args_.extra_sums, first, count);
    }
  }

 private:
  static constexpr int64_t kMostTogether = 32;

  void lay_out(Arena& arena) {
    for (int32_t l = 0; l < shape_.num_layers; ++l) {
      const int64_t width = kBlockRows * padded(shape_.layers[l].out);
      shape_.pre[l] = arena.take<T>(width);
      shape_.post[l] = arena.take<T>(width);
      shape_.delta[l] = arena.take<T>(width);
    }
    for (int64_t i = 0; i < together_; ++i) {
      nets_[i] = shape_;
      for (int32_t l = 0; l < shape_.num_layers; ++l) {
        EnsembleLayer<T>& layer = nets_[i].layers[l];
        layer.weight = arena.take<T>(layer.out * padded(layer.in));
        layer.columns = layer.out >= kWide<T> ? arena.take<T>(layer.in * padded(layer.out)) : nullptr;
        layer.bias = arena.take<T>(padded(layer.out));
        layer.sum = arena.take<T>(layer.out * padded(layer.in));
        layer.bias_sum = arena.take<T>(padded(layer.out));
      }
    }
  }

  bool halved(int32_t l) const { return shape_.halved && l == shape_.num_layers - 1; }

  const T* matrix(const void* const* matrices, int32_t l, int64_t run) const {
    return static_cast<const T*>(matrices[l]) + run * args_.sizes[l + 1] * (args_.sizes[l] + 1);
  }

  void read_weights(EnsembleNet<T>& net, int64_t run) {
    for (int32_t l = 0; l < net.num_layers; ++l) {
      EnsembleLayer<T>& layer = net.layers[l];
      const T* from = matrix(args_.weights, l, run);
      const int64_t in = layer.in, ld = padded(in), ldc = padded(layer.out);
      std::fill(layer.bias, layer.bias + ldc, T(0));
      for (int64_t o = 0; o < layer.out; ++o) {
        const T* row = from + o * (in + 1);
        T* to = layer.weight + o * ld;
        if (halved(l)) {
          const T* other = row + in + 1;
          for (int64_t k = 0; k < in; ++k) to[k] = other[k] - row[k];
          layer.bias[o] = other[in] - row[in];
        } else {
          std::memcpy(to, row, static_cast<size_t>(in) * sizeof(T));
          layer.bias[o] = row[in];
        }
        std::fill(to + in, to + ld, T(0));
      }
      if (layer.columns) write_columns(layer, ld, ldc);
    }
  }

  // A cache line of inputs at a time, so that both sides are read and written in whole lines.
  static void write_columns(const EnsembleLayer<T>& layer, int64_t ld, int64_t ldc) {
    constexpr int64_t kTile = 16;
    for (int64_t k = 0; k < layer.in; k += kTile) {
      const int64_t end = std::min(layer.in, k + kTile);
      for (int64_t at = k; at < end; ++at) {
        T* to = layer.columns + at * ldc;
        for (int64_t o = 0; o < layer.out; ++o) to[o] = layer.weight[o * ld + at];
        std::fill(to + layer.out, to + ldc, T(0));
      }
    }
  }

  void add_and_store(const EnsembleRows& rows, void* const* sums, int64_t first, int64_t count) {
    if (rows.count == 0) return;
    for (int64_t i = 0; i < count; ++i) clear(nets_[i]);
    if (rows.index || rows.run_stride) {
      for (int64_t i = 0; i < count; ++i) add_own(nets_[i], rows, first + i);
    } else {
      EnsembleBlock<T> block;
      for (int64_t at = 0; at < rows.count; at += kBlockRows) {
        block.count = std::min<int64_t>(kBlockRows, rows.count - at);
        for (int64_t b = 0; b < block.count; ++b) point(block, b, rows, at + b);
        for (int64_t i = 0; i < count; ++i) add_block(nets_[i], block);
      }
    }
    for (int64_t i = 0; i < count; ++i) write_sums(nets_[i], sums, first + i);
  }

  void add_own(const EnsembleNet<T>& net, const EnsembleRows& rows, int64_t run) {
    const int64_t base = run * rows.run_stride;
    const int64_t begin = rows.index ? rows.offsets[run] : 0;
    const int64_t end = rows.index ? rows.offsets[run + 1] : rows.count;
    EnsembleBlock<T> block;
    for (int64_t at = begin; at < end; at += kBlockRows) {
      block.count = std::min<int64_t>(kBlockRows, end - at);
      for (int64_t b = 0; b < block.count; ++b) {
        point(block, b, rows, base + (rows.index ? rows.index[at + b] : at + b));
      }
      add_block(net, block);
    }
  }

  static void point(EnsembleBlock<T>& block, int64_t b, const EnsembleRows& rows, int64_t row) {
    block.rows[b] = static_cast<const T*>(rows.inputs) + row * rows.stride;
    block.classes[b] = rows.classes[row];
    block.squares[b] = static_cast<const T*>(rows.squares)[row];
  }

  static void clear(EnsembleNet<T>& net) {
    for (int32_t l = 0; l < net.num_layers; ++l) {
      EnsembleLayer<T>& layer = net.layers[l];
      std::fill(layer.sum, layer.sum + layer.out * padded(layer.in), T(0));
      std::fill(layer.bias_sum, layer.bias_sum + padded(layer.out), T(0));
    }
  }

  void write_sums(const EnsembleNet<T>& net, void* const* sums, int64_t run) {
    for (int32_t l = 0; l < net.num_layers; ++l) {
      const EnsembleLayer<T>& layer = net.layers[l];
      T* to = const_cast<T*>(matrix(sums, l, run));
      const int64_t in = layer.in;
      for (int64_t o = 0; o < layer.out; ++o) {
        const T* sum = layer.sum + o * padded(in);
        T* row = to + o * (in + 1);
        if (halved(l)) {
          T* other = row + in + 1;
          std::memcpy(other, sum, static_cast<size_t>(in) * sizeof(T));
          other[in] = layer.bias_sum[o];
          for (int64_t k = 0; k <= in; ++k) row[k] = -other[k];
        } else {
          std::memcpy(row, sum, static_cast<size_t>(in) * sizeof(T));
          row[in] = layer.bias_sum[o];
        }
      }
    }
  }

  const EnsembleArgs& args_;
  EnsembleNet<T> shape_ = {};
  EnsembleNet<T> nets_[kMostTogether];
  int64_t together_ = 1;
};

}  // namespace

int64_t ensemble_scratch(const EnsembleArgs& args) {
  return args.dtype == DType::f32 ? Ensemble<float>(args).scratch() : Ensemble<double>(args).scratch();
}

void ensemble_sums_cpu(const EnsembleArgs& args) {
  if (args.dtype == DType::f32) {
    Ensemble<float>(args).sums();
  } else {
    Ensemble<double>(args).sums();
  }
}

}  // namespace leakcore
