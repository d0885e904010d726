// The module _probe, which the benchmark builds for itself (`setup.py build_probe`): how fast this processor computes
// and reads at best.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/released.h"
#include "core/runtime/parallel.h"
#include "core/simd/isa.h"
#include "testing/probe/probe.h"

namespace py = pybind11;

namespace leakcore {
namespace {

const ProbeLoops& probe_loops() {
  return LEAKCORE_TIERED(probe_loops);
}

double compute(const std::string& name, int64_t count) {
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

// Every byte of these ranges (address, bytes) once, except for up to 255 at the end of each.
void read(const std::vector<std::pair<uint64_t, int64_t>>& ranges, int threads) {
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
}  // namespace leakcore

PYBIND11_MODULE(_probe, m) {
  m.doc() = "Loops that the benchmark divides by.";
  m.def("compute", &leakcore::compute);
  m.def("read", &leakcore::read);
}
