// Compiled once per instruction tier (setup.py): one block of rows through a network, forwards and backwards. All but
// the table is in an anonymous namespace or always inlined.
#include "ensemble/ensemble_simd.h"

#include "ensemble/simd_activations.h"
#include "ensemble/simd_products.h"

namespace leakcore {
namespace {

template <class T>
void block(const EnsembleNet<T>& net, const EnsembleBlock<T>& task) {
  const int64_t rows = task.count;
  const int32_t last = net.num_layers - 1;
  const T* inputs[kMaxLayers][kBlockRows];
  for (int64_t r = 0; r < rows; ++r) inputs[0][r] = task.rows[r];
  for (int32_t l = 0; l <= last; ++l) {
    const EnsembleLayer<T>& layer = net.layers[l];
    const int64_t ld = padded(layer.out);
    if (layer.columns) {
      multiply_wide(inputs[l], rows, layer.in, layer.columns, ld, layer.bias, net.pre[l]);
    } else {
      multiply_narrow(inputs[l], rows, padded(layer.in), layer.weight, padded(layer.in), layer.out, layer.bias,
                      net.pre[l], ld);
    }
    if (l < last) {
      forward_activation(net.activation, net.pre[l], net.post[l], rows * ld);
      for (int64_t r = 0; r < rows; ++r) inputs[l + 1][r] = net.post[l] + r * ld;
      // φ(0) need not be zero: the padding has to be, it is an input of the next layer.
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t o = layer.out; o < ld; ++o) net.post[l][r * ld + o] = T(0);
      }
    }
  }
  const int64_t outputs = net.layers[last].out, width = padded(outputs);
  if (outputs == 1) {
    one_logit(net.pre[last], task.classes, rows, net.delta[last], width);
  } else {
    softmax(net.pre[last], task.classes, rows, outputs, net.delta[last], width);
  }
  const T* above[kBlockRows];
  for (int32_t l = last; l > 0; --l) {
    const EnsembleLayer<T>& layer = net.layers[l];
    for (int64_t r = 0; r < rows; ++r) above[r] = net.delta[l] + r * padded(layer.out);
    multiply_wide<T>(above, rows, layer.out, layer.weight, padded(layer.in), nullptr, net.delta[l - 1]);
    backward_activation(net.activation, net.pre[l - 1], net.post[l - 1], net.delta[l - 1], rows * padded(layer.in));
  }
  // Divisions and roots a vector at a time; what stands beyond the last row is of no account.
  LEAKCORE_ALIGNED T factors[kBlockRows + kRowPad] = {};
  for (int64_t r = 0; r < rows; ++r) {
    T squares = T(0);
    for (int32_t l = 0; l <= last; ++l) {
      const int64_t ld = padded(net.layers[l].out);
      T* delta = net.delta[l] + r * ld;
      for (int64_t o = net.layers[l].out; net.layers[l].out > 1 && o < ld; ++o) delta[o] = T(0);
      const T of_delta = net.layers[l].out == 1 ? delta[0] * delta[0] : sum_of_squares(delta, ld);
      const T of_input = l == 0 ? task.squares[r] : sum_of_squares(inputs[l][r], padded(net.layers[l].in)) + T(1);
      // Of two outputs the deltas are δ and −δ.
      squares += (l == last && net.halved ? T(2) * of_delta : of_delta) * of_input;
    }
    factors[r] = squares;
  }
  for (int64_t r = 0; r < rows; r += Lanes<T>::count) {
    typedef typename Lanes<T>::V Vec;
    const Vec norm = root(load<Vec>(factors + r)), factor = net.max_grad_norm / (norm + net.slack);
    // A norm that overflowed has factor 0 and would drop the sample unseen; 0·∞ makes that NaN, and then an error.
    store(factors + r, (factor < T(1) ? factor : Lanes<T>::all(T(1))) + T(0) * norm);
  }
  for (int32_t l = 0; l <= last; ++l) {
    const EnsembleLayer<T>& layer = net.layers[l];
    const int64_t ld = padded(layer.out);
    for (int64_t r = 0; r < rows; ++r) {
      T* delta = net.delta[l] + r * ld;
      for (int64_t o = 0; o < layer.out; ++o) {
        delta[o] *= factors[r];
        layer.bias_sum[o] += delta[o];
      }
    }
    add_products(inputs[l], rows, net.delta[l], ld, layer.out, layer.sum, padded(layer.in));
  }
}

const EnsembleLoops kLoops = {block<float>, block<double>};

}  // namespace

#define LEAKCORE_JOIN2(a, b) a##_##b
#define LEAKCORE_JOIN(a, b) LEAKCORE_JOIN2(a, b)
const EnsembleLoops& LEAKCORE_JOIN(ensemble_loops, LEAKCORE_TIER)() {
  return kLoops;
}

}  // namespace leakcore
