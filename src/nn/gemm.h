// Row-major fp32 matrix product on strided memory, on the BLAS inside libtorch.
#pragma once
#include <cstdint>

namespace tutti::nn {

struct Matrix {
  const float* data;
  std::int64_t leading;      // elements from one row to the next, as stored
  bool transposed = false;   // use the transpose of what is stored
};

// c [m, n] = a [m, k] b [k, n] + beta c. Overwrites c, garbage or NaN included, if beta is 0.
// Runs on torch's intra-op threads; inside at::parallel_for, on the calling one.
void gemm(std::int64_t m, std::int64_t n, std::int64_t k, Matrix a, Matrix b, float beta, float* c,
          std::int64_t c_leading);

}  // namespace tutti::nn
