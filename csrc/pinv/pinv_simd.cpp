// Compiled once per instruction tier (setup.py): what the headers beside it hold, and the table of it all.
#include "pinv/pinv_simd.h"

#include "pinv/simd_factor.h"
#include "pinv/simd_gram.h"

namespace leakcore {
namespace {

void apply(const double* m, int64_t num_rows, int64_t ld, const double* s, double* work, double* out, double* middle) {
  double squares = 0.0;
  for (int64_t k = 0; k < num_rows; ++k) {
    Doubles sum[V] = {};
    for (int64_t i = 0; i <= k; i += kStripe) {
      for (int v = 0; v < V; ++v) sum[v] = madd(doubles_at(m + k * ld + i + v * W), doubles_at(s + i + v * W), sum[v]);
    }
    double lanes[kStripe];
    memcpy(lanes, sum, sizeof lanes);
    work[k] = fold(lanes);
    squares = madd(work[k], work[k], squares);
  }
  for (int64_t i = 0; i < num_rows; i += kStripe) {
    Doubles sum[V] = {};
    for (int64_t k = i; k < num_rows; ++k) {
      for (int v = 0; v < V; ++v) sum[v] = madd(doubles_at(m + k * ld + i + v * W), doubles(work[k]), sum[v]);
    }
    memcpy(out + i, sum, sizeof sum);
  }
  *middle = squares;
}

constexpr PinvKernels kKernels = {
    {gram<double>, residual<double>, project<double>}, {gram<float>, residual<float>, project<float>}, factor, apply};

}  // namespace

#define LEAKCORE_JOIN(a, b) a##b
#define LEAKCORE_TABLE(tier) LEAKCORE_JOIN(pinv_kernels_, tier)
const PinvKernels& LEAKCORE_TABLE(LEAKCORE_TIER)() {
  return kKernels;
}

}  // namespace leakcore
