// Row-major fp32 matrix product on strided memory: our own for transformer shapes on processors
// with AVX-512 (gemm_v4.cc), else the BLAS inside libtorch.
#pragma once
#include <cstdint>

namespace tutti::nn {

struct Matrix {
  const float* data;
  std::int64_t leading;     // elements from one row to the next, as stored
  bool transposed = false;  // use the transpose of what is stored
};

// c [m, n] = a [m, k] b [k, n] + beta c, beta 0 or 1. Overwrites c, garbage or NaN included, if
// beta is 0. Runs on torch's intra-op threads; inside at::parallel_for, on the calling one.
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, Matrix a, Matrix b, float beta, float* c,
          std::int64_t c_leading);

// The same, always by the BLAS: the twin for tests and benches.
void blas_gemm(std::int64_t m, std::int64_t n, std::int64_t k, Matrix a, Matrix b, float beta,
               float* c, std::int64_t c_leading);

// out [columns, rows] = the transpose of in [rows, columns].
void transposed_copy(const float* in, std::int64_t in_leading, float* out, std::int64_t out_leading,
                     std::int64_t rows, std::int64_t columns);

}  // namespace tutti::nn
