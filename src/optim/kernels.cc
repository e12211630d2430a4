#include "optim/kernels.h"

#include <cmath>

#if defined(__x86_64__)
#define TUTTI_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define TUTTI_CLONES
#endif

namespace tutti::optim {
namespace {

template <class T>
__attribute__((always_inline)) inline void adamw_loop(T* __restrict w, const T* __restrict g,
                                                      T* __restrict m, T* __restrict v,
                                                      std::int64_t count, const AdamW& o) {
  const T beta1 = static_cast<T>(o.beta1), beta2 = static_cast<T>(o.beta2),
          rest1 = static_cast<T>(1 - o.beta1), rest2 = static_cast<T>(1 - o.beta2),
          eps = static_cast<T>(o.eps), decay = static_cast<T>(o.decay),
          rate = static_cast<T>(o.rate), v_factor = static_cast<T>(o.v_factor),
          scale = static_cast<T>(o.scale);
  for (std::int64_t i = 0; i < count; ++i) {
    const T gradient = g[i] * scale;
    const T first = beta1 * m[i] + rest1 * gradient;
    const T second = beta2 * v[i] + rest2 * (gradient * gradient);
    m[i] = first;
    v[i] = second;
    w[i] = w[i] * decay - rate * first / (std::sqrt(second) * v_factor + eps);
  }
}

template <class T>
__attribute__((always_inline)) inline void sgd_loop(T* __restrict w, const T* __restrict g,
                                                    T* __restrict b, std::int64_t count,
                                                    const Sgd& o) {
  const T momentum = static_cast<T>(o.momentum), decay = static_cast<T>(o.decay),
          lr = static_cast<T>(o.lr), scale = static_cast<T>(o.scale),
          look_ahead = static_cast<T>(o.nesterov ? o.momentum : 0),
          own = static_cast<T>(o.nesterov ? 1 : 0), buffered = static_cast<T>(o.nesterov ? 0 : 1);
  for (std::int64_t i = 0; i < count; ++i) {
    const T gradient = g[i] * scale;
    const T buffer = momentum * b[i] + gradient;
    b[i] = buffer;
    w[i] = w[i] * decay - lr * (own * gradient + (look_ahead + buffered) * buffer);
  }
}

template <class T>
__attribute__((always_inline)) inline double squares_loop(const T* x, std::int64_t count) {
  constexpr int lanes = 16;
  double sums[lanes] = {};
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes)
    for (int lane = 0; lane < lanes; ++lane) {
      const double value = static_cast<double>(x[i + lane]);
      sums[lane] += value * value;
    }
  for (int lane = 0; i < count; ++i, ++lane) {
    const double value = static_cast<double>(x[i]);
    sums[lane] += value * value;
  }
  for (int width = lanes / 2; width > 0; width /= 2)
    for (int lane = 0; lane < width; ++lane) sums[lane] += sums[lane + width];
  return sums[0];
}

TUTTI_CLONES void adamw_f32(float* w, const float* g, float* m, float* v, std::int64_t n,
                            const AdamW& o) {
  adamw_loop(w, g, m, v, n, o);
}
TUTTI_CLONES void adamw_f64(double* w, const double* g, double* m, double* v, std::int64_t n,
                            const AdamW& o) {
  adamw_loop(w, g, m, v, n, o);
}
TUTTI_CLONES void sgd_f32(float* w, const float* g, float* b, std::int64_t n, const Sgd& o) {
  sgd_loop(w, g, b, n, o);
}
TUTTI_CLONES void sgd_f64(double* w, const double* g, double* b, std::int64_t n, const Sgd& o) {
  sgd_loop(w, g, b, n, o);
}
TUTTI_CLONES double squares_f32(const float* x, std::int64_t n) { return squares_loop(x, n); }
TUTTI_CLONES double squares_f64(const double* x, std::int64_t n) { return squares_loop(x, n); }

}  // namespace

template <>
void adamw(float* w, const float* g, float* m, float* v, std::int64_t n, const AdamW& o) {
  adamw_f32(w, g, m, v, n, o);
}
template <>
void adamw(double* w, const double* g, double* m, double* v, std::int64_t n, const AdamW& o) {
  adamw_f64(w, g, m, v, n, o);
}
template <>
void sgd(float* w, const float* g, float* b, std::int64_t n, const Sgd& o) {
  sgd_f32(w, g, b, n, o);
}
template <>
void sgd(double* w, const double* g, double* b, std::int64_t n, const Sgd& o) {
  sgd_f64(w, g, b, n, o);
}
template <>
double sum_of_squares(const float* x, std::int64_t n) {
  return squares_f32(x, n);
}
template <>
double sum_of_squares(const double* x, std::int64_t n) {
  return squares_f64(x, n);
}

}  // namespace tutti::optim
