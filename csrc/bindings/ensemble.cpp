#include "ensemble/ensemble.h"

#include <algorithm>
#include <vector>

#include "bindings/call.h"
#include "bindings/kernels.h"
#include "bindings/released.h"

namespace py = pybind11;

namespace leakcore {
namespace {

struct Networks : EnsembleArgs {
  bool float32;
  std::vector<int64_t> layers;
};

py::object networks(Networks& fields) {
  EnsembleArgs args = fields;
  if (fields.layers.size() < 2 || fields.layers.size() > kMaxLayers + 1) {
    throw py::value_error("ensemble: too many layers");
  }
  args.dtype = fields.float32 ? DType::f32 : DType::f64;
  args.num_layers = static_cast<int32_t>(fields.layers.size()) - 1;
  std::copy(fields.layers.begin(), fields.layers.end(), args.sizes);
  return py::cast(args);
}

py::object rows(EnsembleRows& fields) {
  return py::cast(fields);
}

struct Sums {
  EnsembleArgs networks;
  std::vector<uint64_t> weights, common_sums, extra_sums;  // addresses, one per layer
  EnsembleRows common, extra;
  void* scratch;
};

py::object ensemble_sums(Sums& sums) {
  EnsembleArgs args = sums.networks;
  args.common = sums.common;
  args.extra = sums.extra;
  for (int32_t l = 0; l < args.num_layers; ++l) {
    const auto at = static_cast<size_t>(l);
    args.weights[l] = pointer<const void>(sums.weights.at(at));
    args.common_sums[l] = pointer<void>(sums.common_sums.at(at));
    args.extra_sums[l] = pointer<void>(sums.extra_sums.at(at));
  }
  args.scratch = sums.scratch;
  {
    const Released released;
    ensemble_sums_cpu(args);
  }
  return py::none();
}

}  // namespace

void bind_ensemble(py::module_& m) {
  py::class_<EnsembleRows> rows_class(m, "EnsembleRows");
  rows_class.def_static("none", [] { return EnsembleRows(); });
  Call<EnsembleRows>::define(rows_class, "of", rows,
                             {
                                 LEAKCORE_FIELD(EnsembleRows, inputs),
                                 LEAKCORE_FIELD(EnsembleRows, classes),
                                 LEAKCORE_FIELD(EnsembleRows, squares),
                                 LEAKCORE_FIELD(EnsembleRows, count),
                                 LEAKCORE_FIELD(EnsembleRows, stride),
                                 LEAKCORE_FIELD(EnsembleRows, run_stride),
                                 LEAKCORE_FIELD(EnsembleRows, index),
                                 LEAKCORE_FIELD(EnsembleRows, offsets),
                             });
  py::class_<EnsembleArgs> networks_class(m, "Networks");
  networks_class.def("scratch_bytes", &ensemble_scratch);
  Call<Networks>::define(networks_class, "of", networks,
                         {
                             LEAKCORE_FIELD(Networks, float32),
                             LEAKCORE_FIELD(Networks, num_runs),
                             LEAKCORE_FIELD(Networks, layers),
                             LEAKCORE_FIELD(Networks, activation),
                             LEAKCORE_FIELD(Networks, max_grad_norm),
                             LEAKCORE_FIELD(Networks, slack),
                         });
  Call<Sums>::define(m, "ensemble_sums", ensemble_sums,
                     {
                         LEAKCORE_FIELD(Sums, networks),
                         LEAKCORE_FIELD(Sums, weights),
                         LEAKCORE_FIELD(Sums, common),
                         LEAKCORE_FIELD(Sums, extra),
                         LEAKCORE_FIELD(Sums, common_sums),
                         LEAKCORE_FIELD(Sums, extra_sums),
                         LEAKCORE_FIELD(Sums, scratch),
                     });
}

}  // namespace leakcore
