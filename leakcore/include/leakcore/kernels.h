/* leakcore's kernels for another extension module, in C or C++: on the CPU, and on a CUDA device where leakcore was
 * built with CUDA.
 *
 * Nothing is linked: the installed leakcore hands over a table of functions at run time, so an extension compiled once
 * works with every leakcore of the same LEAKCORE_KERNELS_VERSION. Compile with leakcore.get_include() among the include
 * folders (CMake: find_package(leakcore CONFIG), target leakcore::kernels) and call, with the GIL held and Python.h
 * included first,
 *
 *     const leakcore_kernels* kernels = leakcore_import_kernels();  // NULL: a Python exception is set
 *
 * once; the table lives as long as the process.
 *
 * Every function takes one struct of arguments, whose initial values are zeros ({0} in C, {} in C++); fields that stay
 * zero or NULL are left out where the comment says so. The functions neither need nor take the GIL (release it around
 * them), may run in several threads at once, allocate nothing that the caller has to free, and never print or exit.
 *
 * Errors: a leakcore_status with the code LEAKCORE_OK, or what was wrong. LEAKCORE_BAD_ARGUMENT comes before anything
 * was written, and `message` names the argument and what is allowed.
 *
 * Determinism: same arguments, same bits as the Python function of the same name, whatever `threads` is. On a device
 * random integers are equal, floating results to a few units in the last place.
 *
 * What raises the version, and what an embedder may rely on: docs/how-to/embedding.md.
 */
#ifndef LEAKCORE_KERNELS_H
#define LEAKCORE_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a function, a struct or a meaning changes. New functions are appended to the table without raising it. */
#define LEAKCORE_KERNELS_VERSION 2
#define LEAKCORE_KERNELS_CAPSULE "leakcore._C.kernels"

/* Codes of a leakcore_status. */
#define LEAKCORE_OK 0
#define LEAKCORE_BAD_ARGUMENT 1 /* an argument is out of range; nothing was written */
#define LEAKCORE_NON_FINITE 2   /* CPU: data is not finite; `index` says which row, problem or column */
#define LEAKCORE_OUT_OF_MEMORY 3
#define LEAKCORE_NO_CUDA 4    /* this leakcore was built without CUDA */
#define LEAKCORE_CUDA_ERROR 5 /* a launch failed, or a graph is being captured; `message` says which */

typedef struct leakcore_status {
  int32_t code;
  int64_t index;       /* of the row, problem or column that is not finite, else -1 */
  const char* message; /* "" or a constant text that nobody frees */
} leakcore_status;

/* Types of elements. */
#define LEAKCORE_FLOAT16 0
#define LEAKCORE_BFLOAT16 1
#define LEAKCORE_FLOAT32 2
#define LEAKCORE_FLOAT64 3

/* Where arrays lie, and what runs. On a device the work is queued on `stream` and the call returns; every array of
 * leakcore_rows and every output is device memory then, what is marked as host memory is not. Norms are not looked at
 * there: a row that is not finite makes its sum NaN. */
typedef struct leakcore_place {
  int32_t threads; /* CPU: in [1, 4096]; no result depends on it */
  int32_t cuda;    /* 0: CPU, 1: a CUDA device */
  int32_t device;  /* its number */
  void* stream;    /* a cudaStream_t */
  /* CUDA: gives `bytes` of device memory, aligned to 256, that live until the stream has done the call's work. */
  void* (*allocate)(void* context, int64_t bytes);
  void* context;
} leakcore_place;

/* Element (run, row, column) is at data[run*run_stride + row*row_stride + column*column_stride], strides counted in
 * elements, negative ones allowed. */
typedef struct leakcore_rows {
  void* data; /* may be NULL if there are no elements */
  int32_t dtype;
  int64_t columns;
  int64_t run_stride;
  int64_t row_stride;
  int64_t column_stride;
} leakcore_rows;

/* leakcore.clip_and_noise: sum[run] = sum over rows of g*min(1, C/norm) + sigma*C*z, z ~ N(0, 1), for the gradients of
 * several parameters that are clipped by their joint norm (flat clipping). Not divided by the number of rows. */
typedef struct leakcore_clip_and_noise_args {
  leakcore_place place;
  int64_t num_runs;           /* >= 0 */
  int64_t num_rows;           /* >= 0; without rows the sum is noise */
  int32_t num_params;         /* in [1, 2^20] */
  const leakcore_rows* grads; /* [num_params], host; (runs, rows, columns) each, all of one dtype, any of the four */
  const leakcore_rows*
      sum;              /* [num_params], host; written: (runs, columns) each, float32 or float64; row_stride unused */
  double* norms;        /* written: [runs][rows], the joint norms before clipping, of all rows */
  double max_grad_norm; /* C in (0, inf) */
  double noise_multiplier;    /* sigma in [0, inf) */
  uint64_t seed;              /* of the noise, a function of (seed, step, run, column). For simulations only */
  uint32_t step;              /* in [0, 2^24): two calls with one seed and step have the same noise */
  uint64_t first_run;         /* the number of run 0 in the noise; at most 2^63 */
  const leakcore_rows* noise; /* NULL, or [num_params], host: standard normals like `sum`, instead of the seed's */
  const uint8_t* mask;        /* NULL, or 0 at mask[run*mask_run_stride + row*mask_row_stride] leaves a row out */
  int64_t mask_run_stride;
  int64_t mask_row_stride;
} leakcore_clip_and_noise_args;

/* leakcore.clip_scores: dots[run][m][row] = <clip_C(g_row), o_m> and norms[run][row], in one read of the gradients.
 * Products are
 * accumulated in float64, norms of 16-bit types partly in float32. */
typedef struct leakcore_clip_scores_args {
  leakcore_place place;
  int64_t num_runs;
  int64_t num_rows;
  int64_t num_observed;
  leakcore_rows grads;    /* (runs, rows, columns), any dtype */
  leakcore_rows observed; /* (runs, observed, columns), any dtype; as many columns */
  double max_grad_norm;   /* C in (0, inf) */
  int32_t float_products; /* not 0: inner products in float32, for arrays of at most 32 bits an element */
  double* dots;           /* written: [runs][observed][rows] */
  double* norms;          /* written: [runs][rows], before clipping; after it they are min(norm, C) */
} leakcore_clip_scores_args;

/* leakcore.solve_labels: residual = N*pinv(C)*G for each problem, C (d, N) and G (d, K). The results are Python's for
 * float64 input; for narrower input they are what Python rounds to float32. */
typedef struct leakcore_solve_labels_args {
  leakcore_place place;
  int64_t num_problems;   /* >= 0 */
  int64_t num_samples;    /* N >= 0 */
  int64_t num_outputs;    /* K >= 0 */
  leakcore_rows jacobian; /* run = problem, row = sample r, columns = d: dZ_r/dW */
  leakcore_rows gradient; /* run = problem, row = output k, columns = d: the gradient averaged over samples */
  double rcond;           /* singular values up to rcond*(largest) are zero; in [0, 1), or below 0: as in Python */
  double* residual;       /* written: [problems][N][K], estimates of p - y */
  double* error;          /* written: likewise, bounds of the rounding errors; infinite where not identifiable */
  double* leverage;       /* written: [problems][N], diag((C'C)+) */
  uint8_t* identifiable;  /* written: [problems][N], 1 where the system determines the sample's label */
  int64_t* rank;          /* written: [problems]; on a device -1 or -2 for a jacobian or gradient that is not finite */
} leakcore_solve_labels_args;

/* What leakcore.mixture_log_ratio and leakcore.mixture_tail share: samples of L, the privacy loss of Poisson-sampled
 * DP-SGD. Sample i depends on (seed, alternative, first_sample + i) alone. */
typedef struct leakcore_mixture {
  int64_t num_samples; /* >= 0; of a tail on a device at most 2^31 - 2^20 */
  uint64_t first_sample;
  uint64_t seed;
  int32_t alternative;            /* 0: x ~ nu, else x ~ mu */
  int32_t single;                 /* not 0: float32 arithmetic where it is safe */
  int64_t configs;                /* in [0, 2^32]: settings over the same random numbers; on a device at most 262140 */
  int64_t steps;                  /* T in [0, 2^24] */
  const double* noise_multiplier; /* host: [configs][steps], in [0, inf) */
  const double* sample_rate;      /* host: [configs][steps], in [0, 1] */
} leakcore_mixture;

typedef struct leakcore_mixture_log_ratio_args {
  leakcore_place place;
  leakcore_mixture mixture;
  void* out; /* written: [configs][num_samples], float where `single`, else double */
} leakcore_mixture_log_ratio_args;

/* Exact sums have this many digits of 32 bits, each in 64, the lowest first, in units of 2^-1074. */
#define LEAKCORE_SUM_DIGITS 68

/* Counts and exact sums, added to what the arrays hold, so that zeros come first and parts of the samples, wherever
 * they were computed, add up to the same bits. Bracket j holds the samples with t_j <= L < t_(j+1). A sample is far
 * where |L| > 700: there exp(-L) may be no normal double. */
typedef struct leakcore_tail {
  int64_t num_thresholds;   /* m >= 0 */
  const double* thresholds; /* host: [configs][m], each strictly ascending, not NaN, infinities allowed */
  int64_t* counts;          /* [configs][m][2]: samples in the bracket, and those among them that are far */
  uint64_t* sums; /* [configs][m][3][LEAKCORE_SUM_DIGITS]: of exp(-L) over the bracket's near samples; over its
                     far ones; of 1 - exp(t_j - L) over all far samples with L >= t_j */
} leakcore_tail;

typedef struct leakcore_mixture_tail_args {
  leakcore_place place;
  leakcore_mixture mixture;
  leakcore_tail tail;
} leakcore_mixture_tail_args;

/* What leakcore.kernels.allocation_log_ratio and allocation_tail share: samples of the privacy loss of random
 * allocation, whose target is in one of `bins` bins, or in `chosen` of them, in each of `epochs`. With chosen > 1 the
 * last bit may differ from Python's. */
typedef struct leakcore_allocation {
  int64_t num_samples;
  uint64_t first_sample;
  uint64_t seed;
  int32_t alternative;
  int32_t single;
  double noise_multiplier; /* sigma in (0, inf), so large that log ratios stay within 1e300 */
  int64_t bins;            /* b in [1, 2^24] */
  int64_t epochs;          /* >= 1; epochs*bins, or epochs*columns, at most 2^34 */
  int64_t chosen;          /* k in [1, b], min(k, b - k) <= 4096; 1 with a factor */
  /* A factor F (bins, columns) of the noise's covariance in host memory; columns = 0: none. Row j has the values
   * [row_start[j], row_start[j + 1]) from column row_column[j] on, and zeros elsewhere. */
  int64_t columns;
  const int64_t* row_column; /* [bins] */
  const int64_t* row_start;  /* [bins + 1] */
  const double* values;      /* [row_start[bins]] */
} leakcore_allocation;

typedef struct leakcore_allocation_log_ratio_args {
  leakcore_place place;
  leakcore_allocation allocation;
  void* out; /* written: [num_samples], float where `single`, else double */
} leakcore_allocation_log_ratio_args;

typedef struct leakcore_allocation_tail_args {
  leakcore_place place;
  leakcore_allocation allocation;
  leakcore_tail tail; /* of one configuration */
} leakcore_allocation_tail_args;

/* What draws are for, so that two uses of one seed never share a number. */
#define LEAKCORE_PURPOSE_CLIP_NOISE 2 /* what clip_and_noise adds: row = run, column = column of all parameters */
#define LEAKCORE_PURPOSE_CALLER 255   /* yours */

/* leakcore.kernels.standard_normal and uniform: row r is a function of (seed, purpose, step, first_row + r). */
typedef struct leakcore_random_args {
  leakcore_place place;
  int32_t normal;    /* 0: uniform in (0, 1), else N(0, 1) by Box-Muller, |z| <= 6.7637 */
  int64_t num_rows;  /* >= 0 */
  leakcore_rows out; /* written: (rows, columns), float32 or float64; at most 2^34 columns */
  uint64_t seed;
  uint32_t purpose;   /* one of the above */
  uint32_t step;      /* in [0, 2^24) */
  uint64_t first_row; /* plus num_rows at most 2^64 */
} leakcore_random_args;

typedef struct leakcore_kernels {
  uint32_t version; /* LEAKCORE_KERNELS_VERSION of the installed leakcore */
  uint32_t size;    /* sizeof(leakcore_kernels) there */
  int32_t cuda;     /* whether it has CUDA kernels */

  leakcore_status (*clip_and_noise)(const leakcore_clip_and_noise_args* args);
  leakcore_status (*clip_scores)(const leakcore_clip_scores_args* args);
  leakcore_status (*solve_labels)(const leakcore_solve_labels_args* args);
  leakcore_status (*mixture_log_ratio)(const leakcore_mixture_log_ratio_args* args);
  leakcore_status (*mixture_tail)(const leakcore_mixture_tail_args* args);
  leakcore_status (*allocation_log_ratio)(const leakcore_allocation_log_ratio_args* args);
  leakcore_status (*allocation_tail)(const leakcore_allocation_tail_args* args);
  leakcore_status (*random)(const leakcore_random_args* args);
  /* One block of Philox4x32-10 (Salmon et al. 2011): four words from a counter and a key. */
  void (*philox4x32)(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
  /* An exact sum rounded to the nearest double, ties to even; infinite beyond the largest. */
  double (*round_sum)(const uint64_t digits[LEAKCORE_SUM_DIGITS]);
} leakcore_kernels;

#ifdef Py_PYTHON_H
static inline const leakcore_kernels* leakcore_import_kernels(void) {
  const leakcore_kernels* kernels;
  PyObject* module = PyImport_ImportModule("leakcore._C");
  if (module == NULL) return NULL;
  Py_DECREF(module);
  kernels = (const leakcore_kernels*)PyCapsule_Import(LEAKCORE_KERNELS_CAPSULE, 0);
  if (kernels == NULL) return NULL;
  if (kernels->version != LEAKCORE_KERNELS_VERSION || kernels->size < sizeof(leakcore_kernels)) {
    PyErr_Format(PyExc_ImportError,
                 "the installed leakcore has kernel table %u of %u bytes; this extension was compiled for table %u of "
                 "%u bytes or more: compile it again, or install the leakcore it was compiled with",
                 (unsigned)kernels->version, (unsigned)kernels->size, (unsigned)LEAKCORE_KERNELS_VERSION,
                 (unsigned)sizeof(leakcore_kernels));
    return NULL;
  }
  return kernels;
}
#endif

#ifdef __cplusplus
}
#endif
#endif
