// Activations, the loss at the logits, and their derivatives, for ensemble_simd.cpp alone (see simd_products.h).
#pragma once

#include "core/simd/elementary.h"
#include "ensemble/simd_products.h"

namespace leakcore {
namespace {

// e^x for x <= 0; below −700 (e^−700 ≈ 1e−304) it stays there.
template <class D>
LEAKCORE_HD D falling_exp(D x) {
  return exp_safe(x < -kExpSafe ? D{} - kExpSafe : x);
}

// φ(z) and φ′(z), the latter as a function of value φ(z) and z.
template <class D>
LEAKCORE_HD D activate(Activation kind, D z) {
  const D magnitude = z < 0.0 ? -z : z;
  switch (kind) {
    case Activation::identity:
      return z;
    case Activation::relu:
      return z < 0.0 ? D{} : z;
    case Activation::leaky_relu:
      return z < 0.0 ? 0.01 * z : z;
    case Activation::elu: {
      const D low = z < -kExpSafe ? D{} - kExpSafe : z < 0.0 ? z : D{};
      return z < 0.0 ? expm1_safe(low) : z;
    }
    case Activation::tanh: {
      const D twice = -2.0 * magnitude;
      const D e = expm1_safe(twice < -kExpSafe ? D{} - kExpSafe : twice);
      const D t = -e / (e + 2.0);
      return z < 0.0 ? -t : t;
    }
    case Activation::sigmoid: {
      const D e = falling_exp(-magnitude);
      return z < 0.0 ? e / (1.0 + e) : 1.0 / (1.0 + e);
    }
  }
  return z;
}

template <class D>
LEAKCORE_HD D slope(Activation kind, D z, D value) {
  const D one = D{} + 1.0;
  switch (kind) {
    case Activation::identity:
      return one;
    case Activation::relu:
      return z > 0.0 ? one : D{};
    case Activation::leaky_relu:
      return z > 0.0 ? one : D{} + 0.01;
    case Activation::elu:
      return z > 0.0 ? one : value + 1.0;
    case Activation::tanh:
      return 1.0 - value * value;
    case Activation::sigmoid:
      return value * (1.0 - value);
  }
  return one;
}

template <class T>
inline Doubles wide(const T* p) {
  Doubles x;
  for (int i = 0; i < kDoubles; ++i) x[i] = static_cast<double>(p[i]);
  return x;
}
template <class T>
inline void narrow(T* p, Doubles x) {
  for (int i = 0; i < kDoubles; ++i) p[i] = static_cast<T>(x[i]);
}

template <class T>
inline void forward_activation(Activation kind, const T* pre, T* post, int64_t count) {
  typedef typename Lanes<T>::V Vec;
  if (kind == Activation::relu) {
    for (int64_t i = 0; i < count; i += Lanes<T>::count) {
      const Vec z = load<Vec>(pre + i);
      store(post + i, z < T(0) ? Vec{} : z);
    }
    return;
  }
  for (int64_t i = 0; i < count; i += kDoubles) narrow(post + i, activate(kind, wide(pre + i)));
}

template <class T>
inline void backward_activation(Activation kind, const T* pre, const T* post, T* delta, int64_t count) {
  typedef typename Lanes<T>::V Vec;
  if (kind == Activation::relu) {
    for (int64_t i = 0; i < count; i += Lanes<T>::count) {
      store(delta + i, load<Vec>(pre + i) > T(0) ? load<Vec>(delta + i) : Vec{});
    }
    return;
  }
  for (int64_t i = 0; i < count; i += kDoubles) {
    narrow(delta + i, wide(delta + i) * slope(kind, wide(pre + i), wide(post + i)));
  }
}

// p − y of one logit: σ(z) where y = 0, σ(z) − 1 = −σ(−z) where y = 1.
template <class T>
inline void one_logit(const T* logits, const int64_t* classes, int64_t rows, T* delta, int64_t ld) {
  LEAKCORE_ALIGNED double z[kBlockRows + 8] = {};
  for (int64_t r = 0; r < rows; ++r) {
    const double logit = static_cast<double>(logits[r * ld]);
    z[r] = classes[r] ? -logit : logit;
  }
  for (int64_t r = 0; r < rows; r += kDoubles) {
    store(z + r, activate(Activation::sigmoid, load<Doubles>(z + r)));
  }
  for (int64_t r = 0; r < rows; ++r) delta[r * ld] = static_cast<T>(classes[r] ? -z[r] : z[r]);
}

template <class T>
inline void softmax(const T* logits, const int64_t* classes, int64_t rows, int64_t outputs, T* delta, int64_t ld) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* z = logits + r * ld;
    T* d = delta + r * ld;
    double top = static_cast<double>(z[0]);
    for (int64_t o = 1; o < outputs; ++o) top = static_cast<double>(z[o]) > top ? static_cast<double>(z[o]) : top;
    double total = 0.0;
    // The row is padded to whole vectors; what the padding becomes is set to zero below.
    for (int64_t o = 0; o < outputs; o += kDoubles) {
      const Doubles e = falling_exp(wide(z + o) - top);
      for (int i = 0; i < kDoubles && o + i < outputs; ++i) total += e[i];
      narrow(d + o, e);
    }
    for (int64_t o = 0; o < outputs; ++o) {
      const double p = static_cast<double>(d[o]) / total;
      d[o] = static_cast<T>(o == classes[r] ? p - 1.0 : p);
    }
    for (int64_t o = outputs; o < ld; ++o) d[o] = T(0);
  }
}

}  // namespace
}  // namespace leakcore
