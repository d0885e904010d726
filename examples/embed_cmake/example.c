/* An extension in plain C that calls leakcore's kernels: the clipped and noised sum of the rows of a float32 array,
 * whose memory it reads by Python's buffer protocol. */
#include <Python.h>
#include <leakcore/kernels.h>
#include <string.h>

static const leakcore_kernels* kernels = NULL;

static PyObject* clipped_sum(PyObject* self, PyObject* arguments) {
  PyObject *array, *sum = NULL;
  double max_grad_norm, noise_multiplier;
  unsigned long long seed;
  Py_buffer rows;
  leakcore_rows in, out;
  leakcore_clip_and_noise_args call;
  leakcore_status status;
  double* norms = NULL;
  (void)self;
  if (!PyArg_ParseTuple(arguments, "OddK", &array, &max_grad_norm, &noise_multiplier, &seed)) return NULL;
  if (PyObject_GetBuffer(array, &rows, PyBUF_FORMAT | PyBUF_STRIDED_RO) != 0) return NULL;
  if (rows.ndim != 2 || rows.format == NULL || strcmp(rows.format, "f") != 0) {
    PyErr_SetString(PyExc_TypeError, "the array must have shape (B, D) and type float32");
    goto done;
  }
  memset(&in, 0, sizeof in);
  memset(&out, 0, sizeof out);
  memset(&call, 0, sizeof call); /* what is not set is left out */
  in.data = rows.buf;
  in.dtype = out.dtype = LEAKCORE_FLOAT32;
  in.columns = out.columns = rows.shape[1];
  in.row_stride = rows.strides[0] / rows.itemsize;
  in.column_stride = rows.strides[1] / rows.itemsize;
  out.column_stride = 1;
  sum = PyBytes_FromStringAndSize(NULL, rows.shape[1] * (Py_ssize_t)sizeof(float));
  norms = (double*)PyMem_Malloc((size_t)(rows.shape[0] + 1) * sizeof(double));
  if (sum == NULL || norms == NULL) {
    PyErr_NoMemory();
    Py_CLEAR(sum);
    goto done;
  }
  out.data = PyBytes_AS_STRING(sum);
  call.place.threads = 2;
  call.num_runs = 1;
  call.num_rows = rows.shape[0];
  call.num_params = 1;
  call.grads = &in;
  call.sum = &out;
  call.norms = norms;
  call.max_grad_norm = max_grad_norm;
  call.noise_multiplier = noise_multiplier;
  call.seed = seed;
  Py_BEGIN_ALLOW_THREADS status = kernels->clip_and_noise(&call);
  Py_END_ALLOW_THREADS if (status.code != LEAKCORE_OK) {
    PyErr_Format(PyExc_ValueError, "%s (row %lld)", status.message, (long long)status.index);
    Py_CLEAR(sum);
  }
done:
  PyMem_Free(norms);
  PyBuffer_Release(&rows);
  return sum;
}

static PyMethodDef methods[] = {
    {"clipped_sum", clipped_sum, METH_VARARGS,
     "clipped_sum(rows, max_grad_norm, noise_multiplier, seed): the bytes of a float32 array"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "embed_cmake", "Calls leakcore's kernels from C.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_embed_cmake(void) {
  kernels = leakcore_import_kernels();
  return kernels == NULL ? NULL : PyModule_Create(&module);
}
