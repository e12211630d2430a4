#include "nn/gemm.h"

#include <torch/torch.h>

// libtorch_cpu exports its BLAS under the Fortran name (MKL or OpenBLAS, 32-bit integers). Weak: a
// libtorch built without one still works, through at::addmm.
extern "C" __attribute__((weak)) void sgemm_(const char* transpose_a, const char* transpose_b,
                                             const int* m, const int* n, const int* k,
                                             const float* alpha, const float* a, const int* lda,
                                             const float* b, const int* ldb, const float* beta,
                                             float* c, const int* ldc);

namespace tutti::nn {
namespace {

torch::Tensor view(Matrix matrix, std::int64_t rows, std::int64_t columns) {
  auto* data = const_cast<float*>(matrix.data);
  return matrix.transposed
             ? torch::from_blob(data, {rows, columns}, {1, matrix.leading}, torch::kFloat)
             : torch::from_blob(data, {rows, columns}, {matrix.leading, 1}, torch::kFloat);
}

}  // namespace

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, Matrix a, Matrix b, float beta, float* c,
          std::int64_t c_leading) {
  if (m == 0 || n == 0) return;
  if (sgemm_ == nullptr || k == 0) {
    torch::NoGradGuard no_grad;
    torch::Tensor out = view({c, c_leading}, m, n);
    at::addmm_out(out, out, view(a, m, k), view(b, k, n), beta);
    return;
  }
  // Column-major BLAS computes c' = b' a'.
  const int rows = static_cast<int>(m), columns = static_cast<int>(n), inner = static_cast<int>(k);
  const int lda = static_cast<int>(a.leading), ldb = static_cast<int>(b.leading);
  const int ldc = static_cast<int>(c_leading);
  const float one = 1;
  sgemm_(b.transposed ? "T" : "N", a.transposed ? "T" : "N", &columns, &rows, &inner, &one, b.data,
         &ldb, a.data, &lda, &beta, c, &ldc);
}

}  // namespace tutti::nn
