// The inner loops of ensembles, one table per instruction tier: one run's pass over one block of rows. Buffers are
// padded: a row of `lanes(n)` elements holds n, the rest is zero where it is read.
#pragma once

#include <cstdint>

#include "ensemble/ensemble.h"

namespace leakcore {

constexpr int kBlockRows = 60;  // five tiles of twelve; a panel of 64 columns of them stays in the first-level cache

// Outputs from which on a layer's weights are wanted by columns: half of a 64-byte vector. The same on every tier,
// since the two ways add in different orders.
template <class T>
constexpr int64_t kWide = 32 / sizeof(T);

inline int64_t padded(int64_t size) {
  return (size + kRowPad - 1) / kRowPad * kRowPad;
}

template <class T>
struct EnsembleLayer {
  int64_t in, out;  // out: of the last layer 1 where there are two outputs, whose logits' difference is all that counts
  T* weight;        // (out, padded(in))
  T* columns;       // (in, padded(out)), or null where out is small
  T* bias;          // (padded(out))
  T* sum;           // (out, padded(in))
  T* bias_sum;      // (padded(out))
};

template <class T>
struct EnsembleNet {
  int32_t num_layers;
  Activation activation;
  bool halved;  // two outputs as one
  T max_grad_norm, slack;
  EnsembleLayer<T> layers[kMaxLayers];
  // Of the block: (kBlockRows, padded(out)) each.
  T *pre[kMaxLayers], *post[kMaxLayers], *delta[kMaxLayers];
};

template <class T>
struct EnsembleBlock {
  int64_t count;
  const T* rows[kBlockRows];
  int64_t classes[kBlockRows];
  T squares[kBlockRows];
};

struct EnsembleLoops {
  // Adds the block's clipped gradients to the layers' sums.
  void (*block_f32)(const EnsembleNet<float>&, const EnsembleBlock<float>&);
  void (*block_f64)(const EnsembleNet<double>&, const EnsembleBlock<double>&);
};

const EnsembleLoops& ensemble_loops_baseline();
#if LEAKCORE_X86_TIERS
const EnsembleLoops& ensemble_loops_avx2();
const EnsembleLoops& ensemble_loops_avx512();
#endif

}  // namespace leakcore
