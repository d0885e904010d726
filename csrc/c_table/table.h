// The kernels that other extensions may call: the table of leakcore/kernels.h, which python.cpp hands out as a capsule.
// Here, unlike in kernels called from Python, nobody has validated anything.
#pragma once

#include "leakcore/kernels.h"

namespace leakcore {

const leakcore_kernels& kernel_table();

namespace c_table {

leakcore_status clip_and_noise(const leakcore_clip_and_noise_args* args);
leakcore_status clip_scores(const leakcore_clip_scores_args* args);
leakcore_status solve_labels(const leakcore_solve_labels_args* args);
leakcore_status mixture_log_ratio(const leakcore_mixture_log_ratio_args* args);
leakcore_status mixture_tail(const leakcore_mixture_tail_args* args);
leakcore_status allocation_log_ratio(const leakcore_allocation_log_ratio_args* args);
leakcore_status allocation_tail(const leakcore_allocation_tail_args* args);
leakcore_status random(const leakcore_random_args* args);
void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
double round_sum(const uint64_t digits[LEAKCORE_SUM_DIGITS]);

}  // namespace c_table
}  // namespace leakcore
