// Label solving on CUDA: not written yet, and loud about it.
#include "pinv/pinv.h"

namespace leakcore {

int64_t solve_labels_cuda_scratch(const SolveLabelsArgs&) {
  return 0;
}
Status solve_labels_cuda(const SolveLabelsArgs&) {
  return {Code::not_implemented, "solve_labels"};
}

}  // namespace leakcore
