// Small dense linear algebra in double, column-major: Householder reflections, a triangular inverse, and a one-sided
// Jacobi singular value decomposition for the systems whose rank a QR factorisation leaves in doubt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace leakcore {

// A column-major matrix that owns its storage.
struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<double> data;

  Matrix() = default;
  Matrix(int64_t r, int64_t c) : rows(r), cols(c), data(static_cast<size_t>(r * c)) {}
  double* col(int64_t j) { return data.data() + j * rows; }
  const double* col(int64_t j) const { return data.data() + j * rows; }
  double& at(int64_t i, int64_t j) { return data[static_cast<size_t>(j * rows + i)]; }
  double at(int64_t i, int64_t j) const { return data[static_cast<size_t>(j * rows + i)]; }
};

// Eight fixed lanes: the same bits whatever the compiler vectorises.
double dot(const double* x, const double* y, int64_t count);
double norm2(const double* x, int64_t count);
void axpy(double factor, const double* x, double* y, int64_t count);

// A reflection I − tau·v·vᵀ whose v overwrites x[0..count) except for the value it maps x to, ‖x‖·(∓1, 0, …), which is
// returned.
struct Reflection {
  double tau = 0.0;  // 0: the identity
  double value = 0.0;
};
Reflection make_reflection(double* x, int64_t count);
void reflect(double tau, const double* v, double* y, int64_t count);

// Inverse of an upper triangular matrix with a non-zero diagonal.
Matrix upper_inverse(const Matrix& u);

// a = U·diag(s)·Vᵀ for a square matrix; s not ordered. Columns of u with s = 0 are 0.
void jacobi_svd(const Matrix& a, Matrix* u, std::vector<double>* s, Matrix* v);

}  // namespace leakcore
