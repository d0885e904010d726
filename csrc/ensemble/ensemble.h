// Σ clip_C(∇ℓ) over the batches of many multilayer perceptrons of one shape, each with weights and rows of its own; no
// per-sample gradient is stored. A run's bits depend on its weights and its rows in their order, not on the other runs.
#pragma once

#include <cstdint>

#include "core/runtime/array.h"
#include "core/runtime/status.h"

namespace leakcore {

constexpr int kMaxLayers = 16;

enum class Activation : int32_t { identity = 0, relu, leaky_relu, elu, tanh, sigmoid };

// Rows in line, `stride` elements apart (padded with zeros to a multiple of kRowPad), with class numbers and squared
// norms, the constant input of the bias included. run_stride: rows from one run's to the next (0: shared by all runs).
struct EnsembleRows {
  const void* inputs = nullptr;
  const int64_t* classes = nullptr;
  const void* squares = nullptr;
  int64_t count = 0;
  int64_t stride = 0;
  int64_t run_stride = 0;
  // Run r takes rows index[offsets[r]] … index[offsets[r + 1] − 1]; null: all rows.
  const int64_t* index = nullptr;
  const int64_t* offsets = nullptr;
};
constexpr int64_t kRowPad = 16;

// Weights and sums: one (runs, out, in + 1) matrix per layer, in line, the bias in the last column. float32 or float64
// throughout. sizes: num_layers + 1, inputs first. max_grad_norm may be infinite.
struct EnsembleArgs {
  DType dtype = DType::f32;
  int64_t num_runs = 0;
  int32_t num_layers = 0;
  int64_t sizes[kMaxLayers + 1] = {};
  Activation activation = Activation::relu;
  double max_grad_norm = 1.0;
  double slack = 0.0;
  const void* weights[kMaxLayers] = {};
  EnsembleRows common, extra;
  void* common_sums[kMaxLayers] = {};
  void* extra_sums[kMaxLayers] = {};
  void* scratch = nullptr;
};

// Bytes of scratch, for any batches.
int64_t ensemble_scratch(const EnsembleArgs& args);
void ensemble_sums_cpu(const EnsembleArgs& args);

}  // namespace leakcore
