// The passes with moments in bf16. Philox in loops over counters side by side, which the compiler
// turns into vector code; base/rng.h has its slow twin.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "optim/kernels.h"

#if defined(__x86_64__)
#define TUTTI_CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define TUTTI_CLONES
#endif
#define TUTTI_INLINE __attribute__((always_inline)) inline
#define TUTTI_LAMBDA __attribute__((always_inline))

namespace tutti::optim {
namespace {

constexpr int counters = 64, words = 4 * counters, block = 2 * words;  // elements of a block
using Draw = std::array<std::uint16_t, block>;

// Ten rounds (Salmon et al., section 4.3); each number is below 2^32, in 64 bits so that a product
// takes one instruction.
TUTTI_INLINE void draw(std::uint64_t number, const Draws& draws, Draw& out) {
  std::array<std::uint32_t, words> whole;
  const std::uint64_t first = number * counters;
  for (int i = 0; i < counters; ++i) {
    const std::uint64_t position = first + static_cast<std::uint64_t>(i);
    std::uint64_t c0 = position & 0xFFFFFFFF, c1 = position >> 32, c2 = draws.step & 0xFFFFFFFF,
                  c3 = draws.step >> 32;
    auto low = static_cast<std::uint32_t>(draws.key);
    auto high = static_cast<std::uint32_t>(draws.key >> 32);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t a = std::uint64_t{0xD2511F53} * c0, b = std::uint64_t{0xCD9E8D57} * c2;
      c0 = (b >> 32) ^ c1 ^ low;
      c1 = b & 0xFFFFFFFF;
      c2 = (a >> 32) ^ c3 ^ high;
      c3 = a & 0xFFFFFFFF;
      low += 0x9E3779B9;
      high += 0xBB67AE85;
    }
    const auto at = static_cast<std::size_t>(i);
    whole[at] = static_cast<std::uint32_t>(c0);
    whole[at + counters] = static_cast<std::uint32_t>(c1);
    whole[at + 2 * counters] = static_cast<std::uint32_t>(c2);
    whole[at + 3 * counters] = static_cast<std::uint32_t>(c3);
  }
  for (std::size_t i = 0; i < words; ++i) {
    out[i] = static_cast<std::uint16_t>(whole[i]);
    out[i + words] = static_cast<std::uint16_t>(whole[i] >> 16);
  }
}

TUTTI_INLINE float widened(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

TUTTI_INLINE std::uint16_t rounded(float value, std::uint32_t draw) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  return static_cast<std::uint16_t>((nan ? bits | 0x400000 : bits + draw) >> 16);
}

// Another draw of the same 16 bits: an odd factor leaves none out.
TUTTI_INLINE std::uint16_t second(std::uint16_t draw) {
  return static_cast<std::uint16_t>(draw * 0x9E37U);
}

// Calls run(index, drawn, n) for runs of elements whose draws are drawn[0, n).
template <class Run>
TUTTI_INLINE void for_blocks(std::int64_t count, const Draws& draws, std::int64_t place,
                             const Run& run) {
  Draw drawn;
  for (std::int64_t i = 0, n = 0; i < count; i += n) {
    const std::int64_t into = (place + i) % block;
    n = std::min<std::int64_t>(block - into, count - i);
    draw(static_cast<std::uint64_t>((place + i) / block), draws, drawn);
    run(i, drawn.data() + into, n);
  }
}

template <class T>
TUTTI_INLINE void adamw_loop(T* __restrict w, const T* __restrict g, std::uint16_t* __restrict m,
                             std::uint16_t* __restrict v, const std::uint16_t* __restrict drawn,
                             std::int64_t count, const AdamW& o) {
  const T beta1 = static_cast<T>(o.beta1), beta2 = static_cast<T>(o.beta2),
          rest1 = static_cast<T>(1 - o.beta1), rest2 = static_cast<T>(1 - o.beta2),
          eps = static_cast<T>(o.eps), decay = static_cast<T>(o.decay),
          rate = static_cast<T>(o.rate), v_factor = static_cast<T>(o.v_factor),
          scale = static_cast<T>(o.scale);
  for (std::int64_t i = 0; i < count; ++i) {
    const T gradient = g[i] * scale;
    const T first = beta1 * static_cast<T>(widened(m[i])) + rest1 * gradient;
    const T square = beta2 * static_cast<T>(widened(v[i])) + rest2 * (gradient * gradient);
    m[i] = rounded(static_cast<float>(first), drawn[i]);
    v[i] = rounded(static_cast<float>(square), second(drawn[i]));
    w[i] = w[i] * decay - rate * first / (std::sqrt(square) * v_factor + eps);
  }
}

template <class T>
TUTTI_INLINE void sgd_loop(T* __restrict w, const T* __restrict g, std::uint16_t* __restrict b,
                           const std::uint16_t* __restrict drawn, std::int64_t count,
                           const Sgd& o) {
  const T momentum = static_cast<T>(o.momentum), decay = static_cast<T>(o.decay),
          lr = static_cast<T>(o.lr), scale = static_cast<T>(o.scale),
          look_ahead = static_cast<T>(o.nesterov ? o.momentum : 0),
          own = static_cast<T>(o.nesterov ? 1 : 0), buffered = static_cast<T>(o.nesterov ? 0 : 1);
  for (std::int64_t i = 0; i < count; ++i) {
    const T gradient = g[i] * scale;
    const T buffer = momentum * static_cast<T>(widened(b[i])) + gradient;
    b[i] = rounded(static_cast<float>(buffer), drawn[i]);
    w[i] = w[i] * decay - lr * (own * gradient + (look_ahead + buffered) * buffer);
  }
}

template <class T>
TUTTI_INLINE void adamw_blocks(T* w, const T* g, std::uint16_t* m, std::uint16_t* v,
                               std::int64_t count, const AdamW& o, const Draws& draws,
                               std::int64_t place) {
  for_blocks(count, draws, place,
             [&](std::int64_t i, const std::uint16_t* drawn, std::int64_t n)
                 TUTTI_LAMBDA { adamw_loop(w + i, g + i, m + i, v + i, drawn, n, o); });
}

template <class T>
TUTTI_INLINE void sgd_blocks(T* w, const T* g, std::uint16_t* b, std::int64_t count, const Sgd& o,
                             const Draws& draws, std::int64_t place) {
  for_blocks(count, draws, place,
             [&](std::int64_t i, const std::uint16_t* drawn, std::int64_t n)
                 TUTTI_LAMBDA { sgd_loop(w + i, g + i, b + i, drawn, n, o); });
}

template <class T>
TUTTI_INLINE void round_blocks(const T* x, std::uint16_t* out, std::int64_t count,
                               const Draws& draws, std::int64_t place) {
  for_blocks(count, draws, place,
             [&](std::int64_t i, const std::uint16_t* drawn, std::int64_t n) TUTTI_LAMBDA {
               for (std::int64_t j = 0; j < n; ++j)
                 out[i + j] = rounded(static_cast<float>(x[i + j]), drawn[j]);
             });
}

TUTTI_CLONES void adamw_f32(float* w, const float* g, std::uint16_t* m, std::uint16_t* v,
                            std::int64_t n, const AdamW& o, const Draws& draws,
                            std::int64_t place) {
  adamw_blocks(w, g, m, v, n, o, draws, place);
}
TUTTI_CLONES void adamw_f64(double* w, const double* g, std::uint16_t* m, std::uint16_t* v,
                            std::int64_t n, const AdamW& o, const Draws& draws,
                            std::int64_t place) {
  adamw_blocks(w, g, m, v, n, o, draws, place);
}
TUTTI_CLONES void sgd_f32(float* w, const float* g, std::uint16_t* b, std::int64_t n, const Sgd& o,
                          const Draws& draws, std::int64_t place) {
  sgd_blocks(w, g, b, n, o, draws, place);
}
TUTTI_CLONES void sgd_f64(double* w, const double* g, std::uint16_t* b, std::int64_t n,
                          const Sgd& o, const Draws& draws, std::int64_t place) {
  sgd_blocks(w, g, b, n, o, draws, place);
}
TUTTI_CLONES void round_f32(const float* x, std::uint16_t* out, std::int64_t n, const Draws& draws,
                            std::int64_t place) {
  round_blocks(x, out, n, draws, place);
}
TUTTI_CLONES void round_f64(const double* x, std::uint16_t* out, std::int64_t n, const Draws& draws,
                            std::int64_t place) {
  round_blocks(x, out, n, draws, place);
}

}  // namespace

template <>
void adamw_bf16(float* w, const float* g, std::uint16_t* m, std::uint16_t* v, std::int64_t n,
                const AdamW& o, const Draws& draws, std::int64_t place) {
  adamw_f32(w, g, m, v, n, o, draws, place);
}
template <>
void adamw_bf16(double* w, const double* g, std::uint16_t* m, std::uint16_t* v, std::int64_t n,
                const AdamW& o, const Draws& draws, std::int64_t place) {
  adamw_f64(w, g, m, v, n, o, draws, place);
}
template <>
void sgd_bf16(float* w, const float* g, std::uint16_t* b, std::int64_t n, const Sgd& o,
              const Draws& draws, std::int64_t place) {
  sgd_f32(w, g, b, n, o, draws, place);
}
template <>
void sgd_bf16(double* w, const double* g, std::uint16_t* b, std::int64_t n, const Sgd& o,
              const Draws& draws, std::int64_t place) {
  sgd_f64(w, g, b, n, o, draws, place);
}
template <>
void round_bf16(const float* x, std::uint16_t* out, std::int64_t n, const Draws& draws,
                std::int64_t place) {
  round_f32(x, out, n, draws, place);
}
template <>
void round_bf16(const double* x, std::uint16_t* out, std::int64_t n, const Draws& draws,
                std::int64_t place) {
  round_f64(x, out, n, draws, place);
}

}  // namespace tutti::optim
