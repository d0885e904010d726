// The binding: integers and pointers from Python become the kernels' structs, the GIL is released, a status becomes an
// exception. Python has validated everything; what is checked again here is only what would crash.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bindings/c_table.h"
#include "bindings/selftest.h"
#include "clip/clip.h"
#include "core/rng/normal.h"
#include "core/rng/streams.h"
#include "core/runtime/device.h"
#include "core/runtime/machine.h"
#include "core/runtime/parallel.h"
#include "core/simd/elementary_simd.h"
#include "core/simd/isa.h"
#include "ensemble/ensemble.h"
#include "leakcore_build.h"
#include "mixture/mixture.h"
#include "solve_labels/solve_labels.h"
#include "testing/probe/probe.h"
#ifdef LEAKCORE_EMULATION
#include "testing/cuda_emulation/selfcheck.h"
#endif

namespace py = pybind11;
using namespace leakcore;

namespace {

// The GIL given up for the scope. Where a daemon thread wants it back from an interpreter that is ending, Python before
// 3.14 unwinds the thread, through destructors that must not throw or need the GIL: the process would abort. Such a
// thread waits for the process's end instead, as Python has it from 3.14 on.
class Released {
 public:
  Released() : state_(PyEval_SaveThread()) {}
  ~Released() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;

 private:
  PyThreadState* state_;
};

template <class T>
T* pointer(uint64_t address) {
  return reinterpret_cast<T*>(address);  // NOLINT: addresses cross the language border as integers
}

// Where an array's first element lies, through the buffer protocol: a fifth of the time that its
// __array_interface__ takes, of which a short call makes several.
uint64_t address(const py::buffer& array) {
  Py_buffer view;
  if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_STRIDES) != 0) throw py::error_already_set();
  const uint64_t first = reinterpret_cast<uint64_t>(view.buf);  // NOLINT: as pointer() above
  PyBuffer_Release(&view);
  return first;
}

// (address, dtype, run stride, row stride, sizes, strides), all in elements.
using View = std::tuple<uint64_t, int32_t, int64_t, int64_t, std::vector<int64_t>, std::vector<int64_t>>;
// (device type, device index, stream, what allocates scratch there: bytes -> address; None on the CPU)
using Place = std::tuple<int32_t, int32_t, uint64_t, py::object>;
// (threads, chunk)
using Plan = std::tuple<int, int64_t>;

// Neighbouring dimensions that lie in line as one; none left for a single element.
std::pair<std::vector<int64_t>, std::vector<int64_t>> merge(const std::vector<int64_t>& sizes,
                                                            const std::vector<int64_t>& strides) {
  if (sizes.size() != strides.size()) throw py::value_error("sizes and strides differ in length");
  if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return {{0}, {1}};
  std::vector<int64_t> out_sizes, out_strides;
  for (size_t k = 0; k < sizes.size(); ++k) {
    if (sizes[k] == 1) continue;
    if (!out_sizes.empty() && out_strides.back() == strides[k] * sizes[k]) {
      out_sizes.back() *= sizes[k];
      out_strides.back() = strides[k];
    } else {
      out_sizes.push_back(sizes[k]);
      out_strides.push_back(strides[k]);
    }
  }
  return {out_sizes, out_strides};
}

// The View of an array whose first dimensions are runs and rows, where it has them, and whose others make up columns,
// those that lie in line as one. None if more than kMaxDims are left.
py::object rows_view(const py::buffer& array, int32_t dtype, bool runs, bool rows) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_STRIDES) != 0) throw py::error_already_set();
  const std::unique_ptr<Py_buffer, void (*)(Py_buffer*)> release(&buffer, PyBuffer_Release);
  const int lead = static_cast<int>(runs) + static_cast<int>(rows);
  if (buffer.ndim < lead) throw py::value_error("an array has fewer dimensions than runs and rows");
  std::vector<int64_t> all;
  for (int k = 0; k < buffer.ndim; ++k) all.push_back(buffer.strides[k] / buffer.itemsize);
  const auto [sizes, strides] =
      merge({buffer.shape + lead, buffer.shape + buffer.ndim}, {all.begin() + lead, all.end()});
  if (sizes.size() > static_cast<size_t>(kMaxDims)) return py::none();
  const uint64_t first = reinterpret_cast<uint64_t>(buffer.buf);  // NOLINT: as pointer() above
  return py::cast(View(first, dtype, runs ? all[0] : 0, rows ? all[static_cast<size_t>(lead - 1)] : 0, sizes, strides));
}

Rows rows_of(const View& view) {
  const auto& [address, dtype, run_stride, row_stride, sizes, strides] = view;
  if (sizes.size() > static_cast<size_t>(kMaxDims) || sizes.size() != strides.size()) {
    throw py::value_error("an array has more than " + std::to_string(kMaxDims) +
                          " dimensions that do not lie in line: pass a contiguous copy");
  }
  Rows rows;
  rows.data = pointer<void>(address);
  rows.dtype = static_cast<DType>(dtype);
  rows.ndim = static_cast<int32_t>(sizes.size());
  rows.run_stride = run_stride;
  rows.row_stride = row_stride;
  rows.numel = 1;
  for (size_t k = 0; k < sizes.size(); ++k) {
    rows.size[k] = sizes[k];
    rows.stride[k] = strides[k];
    rows.numel *= sizes[k];
  }
  return rows;
}

std::vector<Rows> all_rows(const std::vector<View>& views) {
  std::vector<Rows> out;
  for (const View& view : views) out.push_back(rows_of(view));
  return out;
}

Device device_of(const Place& place) {
  return {static_cast<DeviceType>(std::get<0>(place)), std::get<1>(place), pointer<void>(std::get<2>(place))};
}

Schedule schedule_of(const Plan& plan) {
  return {std::get<0>(plan), std::get<1>(plan)};
}

// Non-finite input is reported as an index, which Python words with the argument's name; the rest is raised here.
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
    case Code::cuda_error:
      throw std::runtime_error(kernel + ": CUDA error: " + status.detail);
  }
  throw std::runtime_error(kernel + ": unknown status");
}

// Scratch is asked for only on a device, and once: its library keeps what it allocated until the next call.
template <class Args>
py::object dispatch(Args& args, const Place& place, Status (*cpu)(const Args&), Status (*cuda)(const Args&),
                    int64_t (*cuda_scratch)(const Args&)) {
  if (args.device.type == DeviceType::cuda) {
    if (const int64_t bytes = cuda_scratch(args); bytes > 0) {
      args.scratch = pointer<void>(std::get<3>(place)(bytes).template cast<uint64_t>());
    }
  }
  Status status;
  {
    const Released released;
    status = args.device.type == DeviceType::cpu ? cpu(args) : cuda(args);
  }
  return outcome(status);
}

py::object clip_and_noise(const std::vector<View>& grads, const std::vector<View>& sums, int64_t num_runs,
                          int64_t num_rows, uint64_t norms, std::tuple<uint64_t, int64_t, int64_t> mask,
                          double max_grad_norm, double noise_scale, const std::vector<View>& noise, uint64_t seed,
                          uint32_t step, uint64_t first_run, bool check_finite, const Place& place, const Plan& plan) {
  const std::vector<Rows> g = all_rows(grads), s = all_rows(sums), z = all_rows(noise);
  ClipArgs args;
  args.num_runs = num_runs;
  args.num_rows = num_rows;
  args.num_params = static_cast<int32_t>(g.size());
  args.grads = g.data();
  args.sum = s.data();
  args.norms = pointer<double>(norms);
  std::tie(std::ignore, args.mask_run_stride, args.mask_row_stride) = mask;
  args.mask = pointer<const uint8_t>(std::get<0>(mask));
  args.max_grad_norm = max_grad_norm;
  args.noise_scale = noise_scale;
  args.noise = z.empty() ? nullptr : z.data();
  args.seed = seed;
  args.step = step;
  args.first_run = first_run;
  args.check_finite = check_finite;
  args.device = device_of(place);
  args.schedule = schedule_of(plan);
  return dispatch(args, place, clip_and_noise_cpu, clip_and_noise_cuda, clip_and_noise_cuda_scratch);
}

py::object clip_scores(const View& grads, const View& observed, int64_t num_runs, int64_t num_rows,
                       int64_t num_observed, uint64_t dots, uint64_t norms, double max_grad_norm, bool float_products,
                       bool check_finite, const Place& place, const Plan& plan) {
  ClipScoresArgs args;
  args.num_runs = num_runs;
  args.num_rows = num_rows;
  args.num_observed = num_observed;
  args.grads = rows_of(grads);
  args.observed = rows_of(observed);
  args.dots = pointer<double>(dots);
  args.norms = pointer<double>(norms);
  args.max_grad_norm = max_grad_norm;
  args.float_products = float_products;
  args.check_finite = check_finite;
  args.device = device_of(place);
  args.schedule = schedule_of(plan);
  return dispatch(args, place, clip_scores_cpu, clip_scores_cuda, clip_scores_cuda_scratch);
}

py::object solve_labels(const View& jacobian, const View& gradient, int64_t num_problems, int64_t num_samples,
                        int64_t num_outputs, double rcond, double unit, double lost, double largest, uint64_t residual,
                        uint64_t error, uint64_t leverage, uint64_t identifiable, uint64_t rank, const Place& place,
                        const Plan& plan) {
  SolveLabelsArgs args;
  args.num_problems = num_problems;
  args.num_samples = num_samples;
  args.num_outputs = num_outputs;
  args.jacobian = rows_of(jacobian);
  args.gradient = rows_of(gradient);
  args.rcond = rcond;
  args.unit = unit;
  args.lost = lost;
  args.largest = largest;
  args.residual = pointer<double>(residual);
  args.error = pointer<double>(error);
  args.leverage = pointer<double>(leverage);
  args.identifiable = pointer<uint8_t>(identifiable);
  args.rank = pointer<int64_t>(rank);
  args.device = device_of(place);
  args.schedule = schedule_of(plan);
  return dispatch(args, place, solve_labels_cpu, solve_labels_cuda, solve_labels_cuda_scratch);
}

// What os.environ holds, which hands every change on to the C library, in a tenth of the time.
py::object environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return py::none();
  return py::reinterpret_steal<py::object>(PyUnicode_DecodeFSDefault(value));
}

// (seed, first sample, number of samples, alternative, float32, configurations, steps, σ, q)
using Mixture = std::tuple<uint64_t, uint64_t, int64_t, bool, bool, int64_t, int64_t, uint64_t, uint64_t>;

void set_mixture(MixtureArgs& args, const Mixture& m, const Place& place, const Plan& plan) {
  uint64_t sigma, rate;
  std::tie(args.seed, args.first_sample, args.num_samples, args.alternative, args.single, args.configs, args.steps,
           sigma, rate) = m;
  args.noise_multiplier = pointer<const double>(sigma);
  args.sample_rate = pointer<const double>(rate);
  args.device = device_of(place);
  args.schedule = schedule_of(plan);
}

py::object mixture_log_ratio(const Mixture& mixture, uint64_t out, int64_t config_stride, bool written,
                             const Place& place, const Plan& plan) {
  MixtureLogRatioArgs args;
  set_mixture(args, mixture, place, plan);
  args.out = pointer<void>(out);
  args.config_stride = config_stride;
  args.written = written;
  return dispatch(args, place, mixture_log_ratio_cpu, mixture_log_ratio_cuda, mixture_log_ratio_cuda_scratch);
}

py::object mixture_tail(const Mixture& mixture, int64_t num_thresholds, uint64_t thresholds, uint64_t counts,
                        uint64_t sums, const Place& place, const Plan& plan) {
  MixtureTailArgs args;
  set_mixture(args, mixture, place, plan);
  args.num_thresholds = num_thresholds;
  args.thresholds = pointer<const double>(thresholds);
  args.counts = pointer<int64_t>(counts);
  args.sums = pointer<uint64_t>(sums);
  return dispatch(args, place, mixture_tail_cpu, mixture_tail_cuda, mixture_tail_cuda_scratch);
}

py::object fill_rows(bool normal, const View& out, int64_t num_rows, uint64_t seed, uint32_t stream, uint64_t first_row,
                     const Place& place, const Plan& plan) {
  const Rows rows = rows_of(out);
  const Device device = device_of(place);
  const Schedule schedule = schedule_of(plan);
  Status status;
  {
    const Released released;
    if (device.type == DeviceType::cpu) {
      fill_random_rows(normal ? fill_normals : fill_uniforms, rows, num_rows, seed, stream, first_row, schedule);
    } else {
      status = fill_random_rows_cuda(normal, rows, num_rows, seed, stream, first_row, device);
    }
  }
  return outcome(status);
}

// (inputs, classes, squares, count, stride, run stride, index, offsets)
using EnsembleView = std::tuple<uint64_t, uint64_t, uint64_t, int64_t, int64_t, int64_t, uint64_t, uint64_t>;

EnsembleRows ensemble_rows(const EnsembleView& view) {
  EnsembleRows rows;
  uint64_t inputs, classes, squares, index, offsets;
  std::tie(inputs, classes, squares, rows.count, rows.stride, rows.run_stride, index, offsets) = view;
  rows.inputs = pointer<const void>(inputs);
  rows.classes = pointer<const int64_t>(classes);
  rows.squares = pointer<const void>(squares);
  rows.index = pointer<const int64_t>(index);
  rows.offsets = pointer<const int64_t>(offsets);
  return rows;
}

EnsembleArgs ensemble_args(bool single, int64_t num_runs, const std::vector<int64_t>& sizes, int32_t activation,
                           double max_grad_norm, double slack) {
  EnsembleArgs args;
  if (sizes.size() < 2 || sizes.size() > kMaxLayers + 1) throw py::value_error("ensemble: too many layers");
  args.dtype = single ? DType::f32 : DType::f64;
  args.num_runs = num_runs;
  args.num_layers = static_cast<int32_t>(sizes.size()) - 1;
  std::copy(sizes.begin(), sizes.end(), args.sizes);
  args.activation = static_cast<Activation>(activation);
  args.max_grad_norm = max_grad_norm;
  args.slack = slack;
  return args;
}

void ensemble_sums(bool single, int64_t num_runs, const std::vector<int64_t>& sizes, int32_t activation,
                   double max_grad_norm, double slack, const std::vector<uint64_t>& weights, const EnsembleView& common,
                   const EnsembleView& extra, const std::vector<uint64_t>& common_sums,
                   const std::vector<uint64_t>& extra_sums, uint64_t scratch) {
  EnsembleArgs args = ensemble_args(single, num_runs, sizes, activation, max_grad_norm, slack);
  args.common = ensemble_rows(common);
  args.extra = ensemble_rows(extra);
  for (int32_t l = 0; l < args.num_layers; ++l) {
    const auto at = static_cast<size_t>(l);
    args.weights[l] = pointer<const void>(weights.at(at));
    args.common_sums[l] = pointer<void>(common_sums.at(at));
    args.extra_sums[l] = pointer<void>(extra_sums.at(at));
  }
  args.scratch = pointer<void>(scratch);
  const Released released;
  ensemble_sums_cpu(args);
}

int64_t ensemble_bytes(bool single, int64_t num_runs, const std::vector<int64_t>& sizes) {
  return ensemble_scratch(ensemble_args(single, num_runs, sizes, 0, 1.0, 0.0));
}

py::tuple philox(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  const Words out = philox4x32_10(c[0], c[1], c[2], c[3], k[0], k[1]);
  return py::make_tuple(out.w[0], out.w[1], out.w[2], out.w[3]);
}

void elementary(const std::string& name, uint64_t in, uint64_t out, int64_t count) {
  int function = 0;
  for (const char* known : kElementaryNames) {
    if (name == known) {
      return LEAKCORE_TIERED(elementary_loops)
          .apply(static_cast<Elementary>(function), pointer<const double>(in), pointer<double>(out), count);
    }
    ++function;
  }
  throw py::value_error("no elementary function is called " + name);
}

py::dict build_info() {
  py::dict info;
  info["version"] = LEAKCORE_VERSION;
  info["compiler"] = LEAKCORE_COMPILER;
  info["simd"] = tier_name(tier());
  info["simd_available"] = available_tiers();
  info["tuned_for"] = intel() ? "intel" : "other";
  info["cuda"] = static_cast<bool>(LEAKCORE_WITH_CUDA);
  info["cuda_archs"] = LEAKCORE_CUDA_ARCHS;
  Devices devices;
  {
    const Released released;
    devices = cuda_devices();
  }
  py::list found;
  for (const DeviceInfo& d : devices.found) {
    py::dict entry;
    entry["name"] = d.name;
    entry["compute_capability"] = std::to_string(d.major) + "." + std::to_string(d.minor);
    entry["memory_bytes"] = d.memory;
    found.append(entry);
  }
  info["devices"] = found;
  info["device_message"] = devices.message;
  return info;
}

double probe(const std::string& name, int64_t count) {
  const ProbeLoops& loops = probe_loops();
  const auto loop = name == "fma_f64"        ? loops.fma_f64
                    : name == "fma_f32"      ? loops.fma_f32
                    : name == "exp_f64"      ? loops.exp_f64
                    : name == "exp_f32"      ? loops.exp_f32
                    : name == "philox_words" ? loops.philox_words
                                             : nullptr;
  if (!loop) throw py::value_error("there is no probe " + name);
  const Released released;
  return loop(count);
}

// Reads every byte of these ranges (address, bytes) once, but for up to 255 at the end of each.
void probe_read(const std::vector<std::pair<uint64_t, int64_t>>& ranges, int threads) {
  constexpr int64_t kPiece = 1 << 20, kUnit = 256;
  std::vector<std::pair<const char*, int64_t>> pieces;
  for (const auto& [address, bytes] : ranges) {
    for (int64_t at = 0; at + kUnit <= bytes; at += kPiece) {
      pieces.emplace_back(pointer<const char>(address) + at, std::min(kPiece, (bytes - at) / kUnit * kUnit));
    }
  }
  const Released released;
  std::atomic<uint64_t> total{0};
  parallel_for(static_cast<int64_t>(pieces.size()), 1, threads, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& [data, bytes] = pieces[static_cast<size_t>(i)];
      total += probe_loops().read(data, bytes);
    }
  });
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "leakcore's native core. Private: use leakcore.kernels, which validates.";
  m.attr("kernels") = py::capsule(&kernel_table(), LEAKCORE_KERNELS_CAPSULE);
  m.attr("with_cuda") = static_cast<bool>(LEAKCORE_WITH_CUDA);
  m.attr("sum_digits") = kSumDigits;
  m.attr("max_dims") = kMaxDims;
  m.attr("streams") = py::dict(py::arg("mixture") = static_cast<uint32_t>(Purpose::mixture),
                               py::arg("clip_noise") = static_cast<uint32_t>(Purpose::clip_noise),
                               py::arg("mixture_pick") = static_cast<uint32_t>(Purpose::mixture_pick),
                               py::arg("mixture_one") = static_cast<uint32_t>(Purpose::mixture_one),
                               py::arg("mixture_one_pick") = static_cast<uint32_t>(Purpose::mixture_one_pick));
  m.def("environment", &environment);
  m.def("address", &address);
  m.def("merge", &merge);
  m.def("rows_view", &rows_view);
  m.def("clip_and_noise", &clip_and_noise);
  m.def("clip_scores", &clip_scores);
  m.def("solve_labels", &solve_labels);
  m.def("mixture_log_ratio", &mixture_log_ratio);
  m.def("mixture_tail", &mixture_tail);
  m.def("fill_rows", &fill_rows);
  m.def("ensemble_sums", &ensemble_sums);
  m.def("ensemble_bytes", &ensemble_bytes);
  m.def("philox4x32", &philox);
  m.def("elementary", &elementary);
  m.def("probe", &probe);
  m.def("probe_read", &probe_read);
  m.def("selftest", &selftest);
  m.def("chunk_dependent_sum", [](uint64_t x, int64_t count, int64_t chunk, int threads) {
    return chunk_dependent_sum(pointer<const double>(x), count, chunk, threads);
  });
  m.def("build_info", &build_info);
#ifdef LEAKCORE_EMULATION
  m.attr("emulated") = true;
  m.def("emulation_check", [](const std::string& kernel, uint64_t data, int64_t count) {
    return outcome(emulation_check(kernel, pointer<double>(data), count));
  });
#else
  m.attr("emulated") = false;
#endif
}
