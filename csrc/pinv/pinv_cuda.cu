// Label solving on CUDA: not written yet, and loud about it.
#include "pinv/pinv.h"

namespace leakcore {

Status solve_labels_cuda(const SolveLabelsArgs&) {
  return {Code::not_implemented, "solve_labels"};
}

}  // namespace leakcore
