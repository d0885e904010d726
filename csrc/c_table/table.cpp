#include "c_table/table.h"

#include "leakcore_build.h"

namespace leakcore {

const leakcore_kernels& kernel_table() {
  static const leakcore_kernels table = {
      LEAKCORE_KERNELS_VERSION,   sizeof(leakcore_kernels), LEAKCORE_WITH_CUDA,
      c_table::clip_and_noise,    c_table::clip_scores,     c_table::solve_labels,
      c_table::mixture_log_ratio, c_table::mixture_tail,    c_table::allocation_log_ratio,
      c_table::allocation_tail,   c_table::random,          c_table::philox4x32,
      c_table::round_sum,
  };
  return table;
}

}  // namespace leakcore
