// The clipping kernels on CUDA: not written yet, and loud about it.
#include "clip/clip.h"

namespace leakcore {

int64_t clip_and_noise_cuda_scratch(const ClipArgs&) {
  return 0;
}
int64_t clip_scores_cuda_scratch(const ClipScoresArgs&) {
  return 0;
}
Status clip_and_noise_cuda(const ClipArgs&) {
  return {Code::not_implemented, "clip_and_noise"};
}
Status clip_scores_cuda(const ClipScoresArgs&) {
  return {Code::not_implemented, "clip_scores"};
}

}  // namespace leakcore
