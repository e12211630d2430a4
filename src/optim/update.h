// The updates of one element, for the passes over fp32 and bf16 moments: kernels.cc and
// kernels_bf16.cc inline them in their loops, which are compiled for several instruction sets.
#pragma once
#include <cmath>

#include "optim/kernels.h"

#if defined(__x86_64__)
#define TUTTI_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define TUTTI_CLONES
#endif
#define TUTTI_INLINE __attribute__((always_inline)) inline

namespace tutti::optim {

template <class T>
struct AdamWUpdate {
  T beta1, beta2, rest1, rest2, eps, decay, rate, v_factor, scale;

  static TUTTI_INLINE AdamWUpdate of(const AdamW& o) {
    return {static_cast<T>(o.beta1),     static_cast<T>(o.beta2),    static_cast<T>(1 - o.beta1),
            static_cast<T>(1 - o.beta2), static_cast<T>(o.eps),      static_cast<T>(o.decay),
            static_cast<T>(o.rate),      static_cast<T>(o.v_factor), static_cast<T>(o.scale)};
  }

  // The weight after the update; m and v become the moments.
  TUTTI_INLINE T operator()(T w, T g, T& m, T& v) const {
    const T gradient = g * scale;
    m = beta1 * m + rest1 * gradient;
    v = beta2 * v + rest2 * (gradient * gradient);
    return w * decay - rate * m / (std::sqrt(v) * v_factor + eps);
  }
};

template <class T>
struct SgdUpdate {
  T momentum, decay, lr, scale, look_ahead, own, buffered;

  static TUTTI_INLINE SgdUpdate of(const Sgd& o) {
    const double look_ahead = o.nesterov ? o.momentum : 0;
    return {static_cast<T>(o.momentum),
            static_cast<T>(o.decay),
            static_cast<T>(o.lr),
            static_cast<T>(o.scale),
            static_cast<T>(look_ahead),
            static_cast<T>(o.nesterov ? 1 : 0),
            static_cast<T>(o.nesterov ? 0 : 1)};
  }

  TUTTI_INLINE T operator()(T w, T g, T& b) const {
    const T gradient = g * scale;
    b = momentum * b + gradient;
    return w * decay - lr * (own * gradient + (look_ahead + buffered) * b);
  }
};

}  // namespace tutti::optim
