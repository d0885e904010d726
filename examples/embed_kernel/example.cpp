// An extension that calls leakcore's kernels from C++: the share of samples whose log likelihood ratio is above a
// threshold, computed block by block so that no array of all samples exists.
#include <pybind11/pybind11.h>
// pybind11 has included Python.h, so leakcore_import_kernels is declared, too.
#include <leakcore/kernels.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace py = pybind11;

namespace {

const leakcore_kernels* kernels = nullptr;

double share_above(double threshold, int64_t num_samples, double noise_multiplier, double sample_rate, int64_t steps,
                   uint64_t seed, int threads) {
  if (num_samples < 1 || steps < 0) throw py::value_error("num_samples must be at least 1 and steps at least 0");
  py::gil_scoped_release release;
  const std::vector<double> sigma(steps, noise_multiplier), rate(steps, sample_rate);
  std::vector<double> ratios(std::min<int64_t>(num_samples, 1 << 16));
  leakcore_mixture_log_ratio_args call = {};  // what is not set is left out
  call.place.threads = threads;
  call.mixture.configs = 1;
  call.mixture.steps = steps;
  call.mixture.noise_multiplier = sigma.data();
  call.mixture.sample_rate = rate.data();
  call.mixture.alternative = 1;
  call.mixture.seed = seed;
  call.out = ratios.data();
  int64_t above = 0;
  for (int64_t begin = 0; begin < num_samples; begin += static_cast<int64_t>(ratios.size())) {
    const int64_t count = std::min<int64_t>(num_samples - begin, static_cast<int64_t>(ratios.size()));
    call.mixture.first_sample = static_cast<uint64_t>(begin);
    call.mixture.num_samples = count;
    const leakcore_status status = kernels->mixture_log_ratio(&call);
    if (status.code != LEAKCORE_OK) throw std::invalid_argument(status.message);
    above += std::count_if(ratios.begin(), ratios.begin() + count, [&](double ratio) { return ratio >= threshold; });
  }
  return static_cast<double>(above) / static_cast<double>(num_samples);
}

}  // namespace

PYBIND11_MODULE(embed_kernel, m) {
  kernels = leakcore_import_kernels();
  if (kernels == nullptr) throw py::error_already_set();
  m.def("share_above", &share_above, py::arg("threshold"), py::arg("num_samples"), py::kw_only(),
        py::arg("noise_multiplier"), py::arg("sample_rate"), py::arg("steps"), py::arg("seed") = 0,
        py::arg("threads") = 1);
}
