#include "nn/gemm.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <cstring>

#include "base/error.h"
#include "nn/kernels.h"

// libtorch_cpu exports its BLAS under the Fortran name (MKL or OpenBLAS, 32-bit integers). Weak: a
// libtorch built without one still works, through at::addmm.
extern "C" __attribute__((weak)) void sgemm_(const char* transpose_a, const char* transpose_b,
                                             const int* m, const int* n, const int* k,
                                             const float* alpha, const float* a, const int* lda,
                                             const float* b, const int* ldb, const float* beta,
                                             float* c, const int* ldc);

namespace tutti::nn {

#if defined(__x86_64__)
namespace v4 {
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, Matrix a, Matrix b, float beta, float* c,
          std::int64_t c_leading);
void transposed_copy(const float* in, std::int64_t in_leading, float* out, std::int64_t out_leading,
                     std::int64_t rows, std::int64_t columns);
}  // namespace v4
#endif

namespace {

bool has_avx512() {
  static const bool found = std::strcmp(kernels().level, "x86-64-v4") == 0;
  return found;
}

// Where our product was measured to be at least as fast as MKL's (nn_ops_bench).
bool suits_ours(std::int64_t m, std::int64_t n, std::int64_t k, Matrix a) {
  if (!has_avx512() || n % 16 != 0 || k == 0) return false;
  return m * n * k <= (1 << 20) || (!a.transposed && n <= 512 && k <= 2048);
}

torch::Tensor view(Matrix matrix, std::int64_t rows, std::int64_t columns) {
  auto* data = const_cast<float*>(matrix.data);
  return matrix.transposed
             ? torch::from_blob(data, {rows, columns}, {1, matrix.leading}, torch::kFloat)
             : torch::from_blob(data, {rows, columns}, {matrix.leading, 1}, torch::kFloat);
}

// precision: fp32-fast. Products of some size go where inputs may be rounded to bf16 (oneDNN).
bool may_round(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m * n * k > (1 << 20) &&
         at::globalContext().float32MatmulPrecision() != at::Float32MatmulPrecision::HIGHEST;
}

void torch_gemm(std::int64_t m, std::int64_t n, std::int64_t k, Matrix a, Matrix b, float beta,
                float* c, std::int64_t c_leading) {
  torch::NoGradGuard no_grad;
  torch::Tensor out = view({c, c_leading}, m, n);
  if (beta == 0)
    at::mm_out(out, view(a, m, k), view(b, k, n));
  else
    at::addmm_out(out, out, view(a, m, k), view(b, k, n), beta);
}

}  // namespace

void blas_gemm(std::int64_t m, std::int64_t n, std::int64_t k, Matrix a, Matrix b, float beta,
               float* c, std::int64_t c_leading) {
  if (m == 0 || n == 0) return;
  if (sgemm_ == nullptr || k == 0) return torch_gemm(m, n, k, a, b, beta, c, c_leading);
  // Column-major BLAS computes c' = b' a'.
  const int rows = static_cast<int>(m), columns = static_cast<int>(n), inner = static_cast<int>(k);
  const int lda = static_cast<int>(a.leading), ldb = static_cast<int>(b.leading);
  const int ldc = static_cast<int>(c_leading);
  const float one = 1;
  sgemm_(b.transposed ? "T" : "N", a.transposed ? "T" : "N", &columns, &rows, &inner, &one, b.data,
         &ldb, a.data, &lda, &beta, c, &ldc);
}

void gemm(std::int64_t m, std::int64_t n, std::int64_t k, Matrix a, Matrix b, float beta, float* c,
          std::int64_t c_leading) {
  TUTTI_ASSERT(beta == 0 || beta == 1);
  if (m == 0 || n == 0) return;
  if (may_round(m, n, k)) return torch_gemm(m, n, k, a, b, beta, c, c_leading);
#if defined(__x86_64__)
  if (suits_ours(m, n, k, a)) {
    constexpr std::int64_t tile = 8;  // a thread takes whole tiles of rows
    const std::int64_t grain = std::max<std::int64_t>(1, (std::int64_t{1} << 21) / (n * k * tile));
    at::parallel_for(0, (m + tile - 1) / tile, grain, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t first = begin * tile, rows = std::min(m, end * tile) - first;
      Matrix part = a;
      part.data += a.transposed ? first : first * a.leading;
      v4::gemm(rows, n, k, part, b, beta, c + first * c_leading, c_leading);
    });
    return;
  }
#endif
  blas_gemm(m, n, k, a, b, beta, c, c_leading);
}

void transposed_copy(const float* in, std::int64_t in_leading, float* out, std::int64_t out_leading,
                     std::int64_t rows, std::int64_t columns) {
#if defined(__x86_64__)
  if (has_avx512()) return v4::transposed_copy(in, in_leading, out, out_leading, rows, columns);
#endif
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c) out[c * out_leading + r] = in[r * in_leading + c];
}

}  // namespace tutti::nn
