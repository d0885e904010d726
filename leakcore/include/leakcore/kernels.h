/* leakcore's CPU kernels for another extension module, in C or C++.
 *
 * Nothing is linked: the installed leakcore hands over a table of functions at run time, so an extension compiled once
 * works with every leakcore of the same LEAKCORE_KERNELS_VERSION. Compile with leakcore.get_include() among the include
 * folders and call, with the GIL held and Python.h included first,
 *
 *     const leakcore_kernels* kernels = leakcore_import_kernels();  // NULL: a Python exception is set
 *
 * once; the table lives as long as the process. The functions neither need nor take the GIL (release it around them),
 * may run in several threads at once, allocate nothing that the caller has to free, and never print or exit. Each
 * returns NULL, or what was wrong with which argument: a constant string, before anything was written unless said
 * otherwise.
 *
 * Same arguments, same bits as the Python function of the same name, whatever `threads` is.
 */
#ifndef LEAKCORE_KERNELS_H
#define LEAKCORE_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a function or its meaning changes; a new function is appended to the table and leaves it as it is. */
#define LEAKCORE_KERNELS_VERSION 1
#define LEAKCORE_KERNELS_CAPSULE "leakcore._C.kernels"

typedef struct leakcore_kernels {
  uint32_t version; /* LEAKCORE_KERNELS_VERSION of the installed leakcore */
  uint32_t size;    /* sizeof(leakcore_kernels) there */

  /* out[i] = log mu(x)/nu(x) of sample first_sample + i, as leakcore.mixture_log_ratio: x ~ mu when `alternative` is
   * not 0, else x ~ nu. noise_multiplier (>= 0) and sample_rate (in [0, 1]) are arrays of `steps`; threads >= 1. */
  const char* (*mixture_log_ratio)(int64_t num_samples, int64_t steps, const double* noise_multiplier,
                                   const double* sample_rate, int alternative, uint64_t seed, uint64_t first_sample,
                                   int threads, double* out);

  /* sum[j] = sum over rows i of grads[i][j]*min(1, C/norm_i) + N(0, (noise_multiplier*C)^2), norms[i] the norm of row i
   * before clipping, as leakcore.clip_and_noise. grads is float, element (i, j) at i*row_stride + j; sum has num_cols
   * floats. step is the training step, in [0, 2^24): two calls with one seed and step have the same noise. A row that
   * is not finite leaves norms written and sum not. */
  const char* (*clip_and_noise)(int64_t num_rows, int64_t num_cols, const float* grads, int64_t row_stride,
                                double max_grad_norm, double noise_multiplier, uint64_t seed, uint32_t step,
                                int threads, float* sum, double* norms);
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
