#include "core/products/dense_cpu.h"

#include <cmath>

namespace leakcore {

double dot(const double* x, const double* y, int64_t count) {
  double lane[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int k = 0; k < 8; ++k) lane[k] += x[i + k] * y[i + k];
  }
  for (int k = 0; i < count; ++i, ++k) lane[k] += x[i] * y[i];
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

double norm2(const double* x, int64_t count) {
  return std::sqrt(dot(x, x, count));
}

void axpy(double factor, const double* x, double* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] += factor * x[i];
}

Reflection make_reflection(double* x, int64_t count) {
  const double norm = norm2(x, count);
  if (norm == 0.0) return {};
  const double value = x[0] > 0.0 ? -norm : norm;
  x[0] -= value;
  return {1.0 / (norm * std::abs(x[0])), value};  // 2/vᵀv, as vᵀv = 2‖x‖·|v_0|
}

void reflect(double tau, const double* v, double* y, int64_t count) {
  if (tau != 0.0) axpy(-tau * dot(v, y, count), v, y, count);
}

Matrix upper_inverse(const Matrix& u) {
  Matrix x(u.rows, u.rows);
  for (int64_t j = 0; j < u.rows; ++j) {
    double* out = x.col(j);
    out[j] = 1.0;
    for (int64_t l = j; l >= 0; --l) {
      out[l] /= u.at(l, l);
      axpy(-out[l], u.col(l), out, l);
    }
  }
  return x;
}

void jacobi_svd(const Matrix& a, Matrix* u, std::vector<double>* s, Matrix* v) {
  const int64_t n = a.cols;
  *u = a;
  *v = Matrix(n, n);
  for (int64_t j = 0; j < n; ++j) v->at(j, j) = 1.0;
  const double small = 1e-15;  // columns this near to orthogonal are left alone: the rounding of one dot product
  for (int sweep = 0; sweep < 60; ++sweep) {
    bool rotated = false;
    for (int64_t p = 0; p < n; ++p) {
      for (int64_t q = p + 1; q < n; ++q) {
        double *x = u->col(p), *y = u->col(q);
        const double xx = dot(x, x, n), yy = dot(y, y, n), xy = dot(x, y, n);
        if (!(std::abs(xy) > small * std::sqrt(xx) * std::sqrt(yy))) continue;
        rotated = true;
        const double zeta = (yy - xx) / (2.0 * xy);
        // √(1 + ζ²) without std::hypot, whose newest version would tie the module to glibc 2.35; beyond 2³⁰ it is |ζ|.
        const double size = std::abs(zeta), root = size < 0x1p30 ? std::sqrt(1.0 + size * size) : size;
        const double t = std::copysign(1.0, zeta) / (size + root);
        const double c = 1.0 / std::sqrt(1.0 + t * t), sine = c * t;
        for (Matrix* m : {u, v}) {
          double *first = m->col(p), *second = m->col(q);
          for (int64_t i = 0; i < n; ++i) {
            const double keep = first[i];
            first[i] = c * keep - sine * second[i];
            second[i] = sine * keep + c * second[i];
          }
        }
      }
    }
    if (!rotated) break;
  }
  s->assign(static_cast<size_t>(n), 0.0);
  for (int64_t j = 0; j < n; ++j) {
    const double norm = norm2(u->col(j), n);
    (*s)[static_cast<size_t>(j)] = norm;
    for (int64_t i = 0; i < n && norm > 0.0; ++i) u->col(j)[i] /= norm;
  }
}

}  // namespace leakcore
