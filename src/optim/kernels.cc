#include "optim/kernels.h"

#include "optim/update.h"

namespace tutti::optim {
namespace {

template <class T>
TUTTI_INLINE void adamw_loop(T* __restrict w, const T* __restrict g, T* __restrict m,
                             T* __restrict v, std::int64_t count, const AdamW& o) {
  const auto update = AdamWUpdate<T>::of(o);
  for (std::int64_t i = 0; i < count; ++i) w[i] = update(w[i], g[i], m[i], v[i]);
}

template <class T>
TUTTI_INLINE void sgd_loop(T* __restrict w, const T* __restrict g, T* __restrict b,
                           std::int64_t count, const Sgd& o) {
  const auto update = SgdUpdate<T>::of(o);
  for (std::int64_t i = 0; i < count; ++i) w[i] = update(w[i], g[i], b[i]);
}

template <class T>
TUTTI_INLINE double squares_loop(const T* x, std::int64_t count) {
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
