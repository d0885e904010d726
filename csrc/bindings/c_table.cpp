#include "bindings/c_table.h"

#include <cmath>
#include <exception>
#include <new>

#include "clip/clip.h"
#include "core/rng/streams.h"
#include "mixture/mixture.h"

// Here, unlike in kernels called from Python, nobody has validated anything.
namespace leakcore {
namespace {

constexpr int64_t kMostDraws = int64_t{1} << 34;  // four to a 32-bit draw block
constexpr int64_t kMostSteps = kMostDraws;
constexpr int kMostThreads = 4096;
const char* const kBadThreads = "`threads` must be in [1, 4096]";

template <class Call>
const char* guarded(Call&& call) {
  try {
    const Status status = call();
    return status.ok()                       ? nullptr
           : status.code == Code::non_finite ? "`grads` must be finite in every row"
                                             : "the kernel failed";
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (const std::exception&) {
    return "the kernel failed";
  }
}

const char* log_ratio(int64_t num_samples, int64_t steps, const double* noise_multiplier, const double* sample_rate,
                      int alternative, uint64_t seed, uint64_t first_sample, int threads, double* out) {
  if (num_samples < 0) return "`num_samples` must be at least 0";
  if (first_sample > UINT64_MAX - static_cast<uint64_t>(num_samples)) {
    return "`first_sample` plus `num_samples` must be at most 2^64";
  }
  if (steps < 0 || steps > kMostSteps) return "`steps` must be in [0, 2^34]";
  if (threads < 1 || threads > kMostThreads) return kBadThreads;
  if (num_samples > 0 && out == nullptr) return "`out` must not be NULL";
  if (steps > 0 && noise_multiplier == nullptr) return "`noise_multiplier` must not be NULL";
  if (steps > 0 && sample_rate == nullptr) return "`sample_rate` must not be NULL";
  for (int64_t t = 0; t < steps; ++t) {
    if (!(noise_multiplier[t] >= 0.0) || std::isinf(noise_multiplier[t])) {
      return "`noise_multiplier` must be in [0, inf)";
    }
    if (!(sample_rate[t] >= 0.0 && sample_rate[t] <= 1.0)) return "`sample_rate` must be in [0, 1]";
  }
  MixtureLogRatioArgs args;
  args.seed = seed;
  args.first_sample = first_sample;
  args.num_samples = num_samples;
  args.alternative = alternative != 0;
  args.steps = steps;
  args.noise_multiplier = noise_multiplier;
  args.sample_rate = sample_rate;
  args.schedule.num_threads = threads;
  args.out = out;
  args.config_stride = num_samples;
  return guarded([&] { return mixture_log_ratio_cpu(args); });
}

const char* clip(int64_t num_rows, int64_t num_cols, const float* grads, int64_t row_stride, double max_grad_norm,
                 double noise_multiplier, uint64_t seed, uint32_t step, int threads, float* sum, double* norms) {
  if (num_rows < 0) return "`num_rows` must be at least 0";
  if (num_cols < 0) return "`num_cols` must be at least 0";
  if (!(max_grad_norm > 0.0) || std::isinf(max_grad_norm)) return "`max_grad_norm` must be in (0, inf)";
  if (!(noise_multiplier >= 0.0) || std::isinf(noise_multiplier)) return "`noise_multiplier` must be in [0, inf)";
  if (!std::isfinite(noise_multiplier * max_grad_norm)) {
    return "`noise_multiplier` times `max_grad_norm` must be within double";
  }
  if (noise_multiplier > 0.0 && num_cols > kMostDraws) return "`num_cols` must be at most 2^34 with noise";
  // A step beyond would have the noise of another.
  if (step >> kStepBits != 0) return "`step` must be in [0, 2^24)";
  if (threads < 1 || threads > kMostThreads) return kBadThreads;
  if (num_rows > 0 && num_cols > 0 && grads == nullptr) return "`grads` must not be NULL";
  if (num_rows > 0 && norms == nullptr) return "`norms` must not be NULL";
  if (num_cols > 0 && sum == nullptr) return "`sum` must not be NULL";
  Rows in;
  in.data = const_cast<float*>(grads);
  in.dtype = DType::f32;
  in.ndim = 1;
  in.row_stride = row_stride;
  in.numel = in.size[0] = num_cols;
  in.stride[0] = 1;
  Rows out = in;
  out.data = sum;
  out.row_stride = 0;
  ClipArgs args;
  args.num_runs = 1;
  args.num_rows = num_rows;
  args.num_params = 1;
  args.grads = &in;
  args.sum = &out;
  args.norms = norms;
  args.max_grad_norm = max_grad_norm;
  args.noise_scale = noise_multiplier * max_grad_norm;
  args.seed = seed;
  args.step = step;
  args.schedule.num_threads = threads;
  return guarded([&] { return clip_and_noise_cpu(args); });
}

}  // namespace

const leakcore_kernels& kernel_table() {
  static const leakcore_kernels table = {LEAKCORE_KERNELS_VERSION, sizeof(leakcore_kernels), log_ratio, clip};
  return table;
}

}  // namespace leakcore
