// The passes over flat buffers, as plain loops that the compiler turns into vector code, built for
// several generations of processors and chosen at run time. No contraction to fused multiply-adds:
// an element gets the same bits in a vector and in a loop's remainder.
#pragma once
#include <cstdint>

namespace tutti::optim {

struct AdamW {
  double beta1, beta2, eps;
  double decay;     // 1 - lr * weight_decay
  double rate;      // lr / (1 - beta1^t)
  double v_factor;  // 1 / sqrt(1 - beta2^t)
  double scale;     // of the gradient
};
template <class T>
void adamw(T* w, const T* g, T* m, T* v, std::int64_t count, const AdamW& options);

struct Sgd {
  double momentum, decay, lr, scale;
  bool nesterov;
};
template <class T>
void sgd(T* w, const T* g, T* b, std::int64_t count, const Sgd& options);

template <class T>
double sum_of_squares(const T* x, std::int64_t count);  // one block: lanes of fp64, fixed order

}  // namespace tutti::optim
