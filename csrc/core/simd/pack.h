// Several vectors that take each operation together. A chain of dependent operations leaves a core's pipelines mostly
// idle; independent vectors side by side fill them.
#pragma once

#include "core/simd/vec.h"

namespace leakcore {

template <class V, int K>
struct Pack {
  V v[K];
};

#define LEAKCORE_PACK_BINARY(op)                                                           \
  template <class V, int K>                                                                \
  LEAKCORE_HD auto operator op(const Pack<V, K>& a, const Pack<V, K>& b) {                 \
    Pack<decltype(a.v[0] op b.v[0]), K> r;                                                 \
    for (int k = 0; k < K; ++k) r.v[k] = a.v[k] op b.v[k];                                 \
    return r;                                                                              \
  }                                                                                        \
  template <class V, int K, class S>                                                       \
  LEAKCORE_HD auto operator op(const Pack<V, K>& a, S b)->Pack<decltype(a.v[0] op b), K> { \
    Pack<decltype(a.v[0] op b), K> r;                                                      \
    for (int k = 0; k < K; ++k) r.v[k] = a.v[k] op b;                                      \
    return r;                                                                              \
  }                                                                                        \
  template <class V, int K, class S>                                                       \
  LEAKCORE_HD auto operator op(S a, const Pack<V, K>& b)->Pack<decltype(a op b.v[0]), K> { \
    Pack<decltype(a op b.v[0]), K> r;                                                      \
    for (int k = 0; k < K; ++k) r.v[k] = a op b.v[k];                                      \
    return r;                                                                              \
  }
LEAKCORE_PACK_BINARY(+)
LEAKCORE_PACK_BINARY(-)
LEAKCORE_PACK_BINARY(*)
LEAKCORE_PACK_BINARY(/)
LEAKCORE_PACK_BINARY(&)
LEAKCORE_PACK_BINARY(|)
LEAKCORE_PACK_BINARY(^)
LEAKCORE_PACK_BINARY(<<)
LEAKCORE_PACK_BINARY(>>)
LEAKCORE_PACK_BINARY(==)
LEAKCORE_PACK_BINARY(!=)
#undef LEAKCORE_PACK_BINARY

template <class V, int K>
LEAKCORE_HD Pack<V, K> operator-(const Pack<V, K>& a) {
  Pack<V, K> r;
  for (int k = 0; k < K; ++k) r.v[k] = -a.v[k];
  return r;
}

#define LEAKCORE_PACK_UNARY(function)                      \
  template <class V, int K>                                \
  LEAKCORE_HD auto function(const Pack<V, K>& a) {         \
    Pack<decltype(function(a.v[0])), K> r;                 \
    for (int k = 0; k < K; ++k) r.v[k] = function(a.v[k]); \
    return r;                                              \
  }
LEAKCORE_PACK_UNARY(root)
LEAKCORE_PACK_UNARY(bits_of)
LEAKCORE_PACK_UNARY(real_of)
LEAKCORE_PACK_UNARY(nearest_float)
LEAKCORE_PACK_UNARY(sign_mask)
#undef LEAKCORE_PACK_UNARY

template <class M, class V, int K>
LEAKCORE_HD Pack<V, K> select(const Pack<M, K>& condition, const Pack<V, K>& yes, const Pack<V, K>& no) {
  Pack<V, K> r;
  for (int k = 0; k < K; ++k) r.v[k] = select(condition.v[k], yes.v[k], no.v[k]);
  return r;
}

template <class V, int K>
LEAKCORE_HD const V& part(const Pack<V, K>& a, int k) {
  return a.v[k];
}
LEAKCORE_HD double part(double a, int) {
  return a;
}
LEAKCORE_HD float part(float a, int) {
  return a;
}

template <class V, int K, class B, class C>
LEAKCORE_HD Pack<V, K> madd(const Pack<V, K>& a, const B& b, const C& c) {
  Pack<V, K> r;
  for (int k = 0; k < K; ++k) r.v[k] = madd(a.v[k], part(b, k), part(c, k));
  return r;
}

template <class V, int K, class T>
LEAKCORE_HD Pack<V, K> load_pack(const T* p) {
  Pack<V, K> r;
  for (int k = 0; k < K; ++k) r.v[k] = load<V>(p + k * static_cast<int>(sizeof(V) / sizeof(T)));
  return r;
}
template <class T, class V, int K>
LEAKCORE_HD void store_pack(T* p, const Pack<V, K>& x) {
  for (int k = 0; k < K; ++k) store(p + k * static_cast<int>(sizeof(V) / sizeof(T)), x.v[k]);
}

template <int K>
LEAKCORE_HD Pack<Longs, K> widen_pack(const uint32_t* p) {
  Pack<Longs, K> r;
  for (int k = 0; k < K; ++k) r.v[k] = widen(p + k * kDoubles);
  return r;
}

}  // namespace leakcore
