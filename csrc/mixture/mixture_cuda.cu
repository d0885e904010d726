// The mixture kernels on CUDA: not written yet, and loud about it.
#include "mixture/mixture.h"

namespace leakcore {

int64_t mixture_log_ratio_cuda_scratch(const MixtureLogRatioArgs&) {
  return 0;
}
int64_t mixture_tail_cuda_scratch(const MixtureTailArgs&) {
  return 0;
}
Status mixture_log_ratio_cuda(const MixtureLogRatioArgs&) {
  return {Code::not_implemented, "mixture_log_ratio"};
}
Status mixture_tail_cuda(const MixtureTailArgs&) {
  return {Code::not_implemented, "mixture_tail"};
}

}  // namespace leakcore
