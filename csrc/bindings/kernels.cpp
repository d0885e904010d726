#include "bindings/kernels.h"

#include <string>
#include <vector>

#include "allocation/allocation.h"
#include "bindings/call.h"
#include "bindings/released.h"
#include "clip/clip.h"
#include "core/rng/normal.h"
#include "mixture/mixture.h"
#include "solve_labels/solve_labels.h"

namespace py = pybind11;

namespace leakcore {
namespace {

// Scratch is asked for only on a device, and once: its library keeps what it allocated until the next call.
template <class Args>
py::object dispatch(Args& args, py::handle where, Status (*cpu)(const Args&), Status (*cuda)(const Args&),
                    int64_t (*cuda_scratch)(const Args&)) {
  const Place& place = where.cast<const Place&>();
  args.device = place.device;
  if (args.device.type == DeviceType::cuda) {
    if (const int64_t bytes = cuda_scratch(args); bytes > 0) {
      args.scratch = pointer<void>(place.scratch(bytes).template cast<uint64_t>());
    }
  }
  Status status;
  {
    const Released released;
    status = args.device.type == DeviceType::cpu ? cpu(args) : cuda(args);
  }
  return outcome(status);
}

template <class Args>
struct Placed : Args {
  py::handle place;
};

struct Clip : Placed<ClipArgs> {
  std::vector<Rows> all_grads, all_sums, all_noise;  // of every parameter
};
using ClipScores = Placed<ClipScoresArgs>;
using SolveLabels = Placed<SolveLabelsArgs>;
using LogRatio = Placed<MixtureLogRatioArgs>;
using Tail = Placed<MixtureTailArgs>;
using AllocationRatio = Placed<AllocationLogRatioArgs>;
using AllocationTail = Placed<AllocationTailArgs>;

py::object clip_and_noise(Clip& clip) {
  clip.num_params = static_cast<int32_t>(clip.all_grads.size());
  clip.grads = clip.all_grads.data();
  clip.sum = clip.all_sums.data();
  clip.noise = clip.all_noise.empty() ? nullptr : clip.all_noise.data();
  ClipArgs& args = clip;
  return dispatch(args, clip.place, clip_and_noise_cpu, clip_and_noise_cuda, clip_and_noise_cuda_scratch);
}

py::object clip_scores(ClipScores& scores) {
  ClipScoresArgs& args = scores;
  return dispatch(args, scores.place, clip_scores_cpu, clip_scores_cuda, clip_scores_cuda_scratch);
}

py::object solve_labels(SolveLabels& labels) {
  SolveLabelsArgs& args = labels;
  return dispatch(args, labels.place, solve_labels_cpu, solve_labels_cuda, solve_labels_cuda_scratch);
}

py::object mixture_log_ratio(LogRatio& ratio) {
  MixtureLogRatioArgs& args = ratio;
  return dispatch(args, ratio.place, mixture_log_ratio_cpu, mixture_log_ratio_cuda, mixture_log_ratio_cuda_scratch);
}

py::object mixture_tail(Tail& tail) {
  MixtureTailArgs& args = tail;
  return dispatch(args, tail.place, mixture_tail_cpu, mixture_tail_cuda, mixture_tail_cuda_scratch);
}

py::object allocation_log_ratio(AllocationRatio& ratio) {
  AllocationLogRatioArgs& args = ratio;
  return dispatch(args, ratio.place, allocation_log_ratio_cpu, allocation_log_ratio_cuda,
                  allocation_log_ratio_cuda_scratch);
}

py::object allocation_tail(AllocationTail& tail) {
  AllocationTailArgs& args = tail;
  return dispatch(args, tail.place, allocation_tail_cpu, allocation_tail_cuda, allocation_tail_cuda_scratch);
}

// Common to mixture_log_ratio and mixture_tail, and what one of them has.
template <class Args>
std::vector<Field<Args>> mixture_fields(std::vector<Field<Args>> more) {
  std::vector<Field<Args>> fields = {
      LEAKCORE_FIELD(Args, seed),        LEAKCORE_FIELD(Args, first_sample),     LEAKCORE_FIELD(Args, num_samples),
      LEAKCORE_FIELD(Args, alternative), LEAKCORE_FIELD(Args, single),           LEAKCORE_FIELD(Args, configs),
      LEAKCORE_FIELD(Args, steps),       LEAKCORE_FIELD(Args, noise_multiplier), LEAKCORE_FIELD(Args, sample_rate),
  };
  fields.insert(fields.end(), more.begin(), more.end());
  fields.push_back(LEAKCORE_FIELD(Args, place));
  fields.push_back(LEAKCORE_FIELD(Args, schedule));
  return fields;
}

// Likewise of random allocation.
template <class Args>
std::vector<Field<Args>> allocation_fields(std::vector<Field<Args>> more) {
  std::vector<Field<Args>> fields = {
      LEAKCORE_FIELD(Args, seed),        LEAKCORE_FIELD(Args, first_sample), LEAKCORE_FIELD(Args, num_samples),
      LEAKCORE_FIELD(Args, alternative), LEAKCORE_FIELD(Args, single),       LEAKCORE_FIELD(Args, noise_multiplier),
      LEAKCORE_FIELD(Args, bins),        LEAKCORE_FIELD(Args, epochs),       LEAKCORE_FIELD(Args, chosen),
      LEAKCORE_FIELD(Args, log_subsets), LEAKCORE_FIELD(Args, columns),      LEAKCORE_FIELD(Args, row_column),
      LEAKCORE_FIELD(Args, row_start),   LEAKCORE_FIELD(Args, values),
  };
  fields.insert(fields.end(), more.begin(), more.end());
  fields.push_back(LEAKCORE_FIELD(Args, place));
  fields.push_back(LEAKCORE_FIELD(Args, schedule));
  return fields;
}

struct RandomRows {
  bool normal;
  Rows out;
  int64_t num_rows;
  uint64_t seed;
  uint32_t stream;
  uint64_t first_row;
  py::handle place;
  Schedule schedule;
};

py::object fill_rows(RandomRows& r) {
  const Device device = r.place.cast<const Place&>().device;
  Status status;
  {
    const Released released;
    if (device.type == DeviceType::cpu) {
      fill_random_rows(r.normal ? fill_normals : fill_uniforms, r.out, r.num_rows, r.seed, r.stream, r.first_row,
                       r.schedule);
    } else {
      status = fill_random_rows_cuda(r.normal, r.out, r.num_rows, r.seed, r.stream, r.first_row, device);
    }
  }
  return outcome(status);
}

}  // namespace

py::object outcome(const Status& status) {
  const std::string kernel = status.kernel;
  switch (status.code) {
    case Code::ok:
      return py::none();
    case Code::non_finite:
      return py::make_tuple(status.index, status.detail);
    case Code::no_cuda_build:
      throw py::value_error(
          kernel +
          ": the arrays are on a CUDA device, but this build of leakcore has no CUDA kernels; rebuild it "
          "with LEAKCORE_CUDA=1 where nvcc is installed, or move the arrays to the CPU");
    case Code::captured:
      throw std::runtime_error(kernel + ": " + status.detail);
    case Code::cuda_error:
      throw std::runtime_error(kernel + ": CUDA error: " + status.detail);
  }
  throw std::runtime_error(kernel + ": unknown status");
}

void bind_kernels(py::module_& m) {
  Call<Clip>::define(m, "clip_and_noise", clip_and_noise,
                     {
                         field<Clip, &Clip::all_grads>("grads"),
                         field<Clip, &Clip::all_sums>("sums"),
                         LEAKCORE_FIELD(Clip, num_runs),
                         LEAKCORE_FIELD(Clip, num_rows),
                         LEAKCORE_FIELD(Clip, norms),
                         LEAKCORE_FIELD(Clip, mask),
                         LEAKCORE_FIELD(Clip, mask_run_stride),
                         LEAKCORE_FIELD(Clip, mask_row_stride),
                         LEAKCORE_FIELD(Clip, max_grad_norm),
                         LEAKCORE_FIELD(Clip, noise_scale),
                         field<Clip, &Clip::all_noise>("noise"),
                         LEAKCORE_FIELD(Clip, seed),
                         LEAKCORE_FIELD(Clip, step),
                         LEAKCORE_FIELD(Clip, first_run),
                         LEAKCORE_FIELD(Clip, check_finite),
                         LEAKCORE_FIELD(Clip, place),
                         LEAKCORE_FIELD(Clip, schedule),
                     });
  using Scores = ClipScores;
  Call<Scores>::define(m, "clip_scores", clip_scores,
                       {
                           LEAKCORE_FIELD(Scores, grads),
                           LEAKCORE_FIELD(Scores, observed),
                           LEAKCORE_FIELD(Scores, num_runs),
                           LEAKCORE_FIELD(Scores, num_rows),
                           LEAKCORE_FIELD(Scores, num_observed),
                           LEAKCORE_FIELD(Scores, dots),
                           LEAKCORE_FIELD(Scores, norms),
                           LEAKCORE_FIELD(Scores, max_grad_norm),
                           LEAKCORE_FIELD(Scores, float_products),
                           LEAKCORE_FIELD(Scores, check_finite),
                           LEAKCORE_FIELD(Scores, place),
                           LEAKCORE_FIELD(Scores, schedule),
                       });
  using Labels = SolveLabels;
  Call<Labels>::define(m, "solve_labels", solve_labels,
                       {
                           LEAKCORE_FIELD(Labels, jacobian),
                           LEAKCORE_FIELD(Labels, gradient),
                           LEAKCORE_FIELD(Labels, num_problems),
                           LEAKCORE_FIELD(Labels, num_samples),
                           LEAKCORE_FIELD(Labels, num_outputs),
                           LEAKCORE_FIELD(Labels, rcond),
                           LEAKCORE_FIELD(Labels, unit),
                           LEAKCORE_FIELD(Labels, lost),
                           LEAKCORE_FIELD(Labels, largest),
                           LEAKCORE_FIELD(Labels, residual),
                           LEAKCORE_FIELD(Labels, error),
                           LEAKCORE_FIELD(Labels, leverage),
                           LEAKCORE_FIELD(Labels, identifiable),
                           LEAKCORE_FIELD(Labels, rank),
                           LEAKCORE_FIELD(Labels, place),
                           LEAKCORE_FIELD(Labels, schedule),
                       });
  Call<LogRatio>::define(m, "mixture_log_ratio", mixture_log_ratio,
                         mixture_fields<LogRatio>({
                             LEAKCORE_FIELD(LogRatio, out),
                             LEAKCORE_FIELD(LogRatio, config_stride),
                             LEAKCORE_FIELD(LogRatio, written),
                         }));
  Call<Tail>::define(m, "mixture_tail", mixture_tail,
                     mixture_fields<Tail>({
                         LEAKCORE_FIELD(Tail, num_thresholds),
                         LEAKCORE_FIELD(Tail, thresholds),
                         LEAKCORE_FIELD(Tail, counts),
                         LEAKCORE_FIELD(Tail, sums),
                     }));
  Call<AllocationRatio>::define(m, "allocation_log_ratio", allocation_log_ratio,
                                allocation_fields<AllocationRatio>({LEAKCORE_FIELD(AllocationRatio, out)}));
  Call<AllocationTail>::define(m, "allocation_tail", allocation_tail,
                               allocation_fields<AllocationTail>({
                                   LEAKCORE_FIELD(AllocationTail, num_thresholds),
                                   LEAKCORE_FIELD(AllocationTail, thresholds),
                                   LEAKCORE_FIELD(AllocationTail, counts),
                                   LEAKCORE_FIELD(AllocationTail, sums),
                               }));
  Call<RandomRows>::define(m, "fill_rows", fill_rows,
                           {
                               LEAKCORE_FIELD(RandomRows, normal),
                               LEAKCORE_FIELD(RandomRows, out),
                               LEAKCORE_FIELD(RandomRows, num_rows),
                               LEAKCORE_FIELD(RandomRows, seed),
                               LEAKCORE_FIELD(RandomRows, stream),
                               LEAKCORE_FIELD(RandomRows, first_row),
                               LEAKCORE_FIELD(RandomRows, place),
                               LEAKCORE_FIELD(RandomRows, schedule),
                           });
}

}  // namespace leakcore
