// The passes with moments in bf16. Philox keys a cheap hash, which the compiler turns into vector
// code within the pass: Philox for each element would take longer than the update.
#include <algorithm>
#include <bit>

#include "base/rng.h"
#include "optim/kernels.h"
#include "optim/update.h"

#define TUTTI_LAMBDA __attribute__((always_inline))

namespace tutti::optim {
namespace {

constexpr std::int64_t block = 4096;  // elements that share the words of one counter

struct Keys {
  std::uint32_t first, second;
};

Keys keys_of(std::int64_t number, const Draws& draws) {
  const auto at = static_cast<std::uint64_t>(number);
  const auto words = philox4x32(
      {static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32),
       static_cast<std::uint32_t>(draws.step), static_cast<std::uint32_t>(draws.step >> 32)},
      draws.key);
  return {words[0], words[1]};
}

// Wellons' lowbias32, with a second key between its products.
TUTTI_INLINE std::uint32_t draw(std::uint32_t element, const Keys& keys) {
  std::uint32_t x = element ^ keys.first;
  x ^= x >> 16;
  x *= 0x7FEB352D;
  x ^= x >> 15;
  x += keys.second;
  x *= 0x846CA68B;
  return x ^ x >> 16;
}

TUTTI_INLINE float widened(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

TUTTI_INLINE std::uint16_t rounded(float value, std::uint32_t draw) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  return static_cast<std::uint16_t>((nan ? bits | 0x400000 : bits + draw) >> 16);
}

// Calls run(index, element of the block, keys, n) for runs of elements of one block.
template <class Run>
TUTTI_INLINE void for_blocks(std::int64_t count, const Draws& draws, std::int64_t place,
                             const Run& run) {
  for (std::int64_t i = 0, n = 0; i < count; i += n) {
    const std::int64_t into = (place + i) % block;
    n = std::min<std::int64_t>(block - into, count - i);
    run(i, static_cast<std::uint32_t>(into), keys_of((place + i) / block, draws), n);
  }
}

template <class T>
TUTTI_INLINE void adamw_loop(T* __restrict w, const T* __restrict g, std::uint16_t* __restrict m,
                             std::uint16_t* __restrict v, std::uint32_t element, const Keys& keys,
                             std::int64_t count, const AdamW& o) {
  const auto update = AdamWUpdate<T>::of(o);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t word = draw(element + static_cast<std::uint32_t>(i), keys);
    T first = static_cast<T>(widened(m[i])), square = static_cast<T>(widened(v[i]));
    w[i] = update(w[i], g[i], first, square);
    m[i] = rounded(static_cast<float>(first), word & 0xFFFF);
    v[i] = rounded(static_cast<float>(square), word >> 16);
  }
}

template <class T>
TUTTI_INLINE void sgd_loop(T* __restrict w, const T* __restrict g, std::uint16_t* __restrict b,
                           std::uint32_t element, const Keys& keys, std::int64_t count,
                           const Sgd& o) {
  const auto update = SgdUpdate<T>::of(o);
  for (std::int64_t i = 0; i < count; ++i) {
    T buffer = static_cast<T>(widened(b[i]));
    w[i] = update(w[i], g[i], buffer);
    b[i] = rounded(static_cast<float>(buffer),
                   draw(element + static_cast<std::uint32_t>(i), keys) & 0xFFFF);
  }
}

template <class T>
TUTTI_INLINE void adamw_blocks(T* w, const T* g, std::uint16_t* m, std::uint16_t* v,
                               std::int64_t count, const AdamW& o, const Draws& draws,
                               std::int64_t place) {
  for_blocks(count, draws, place,
             [&](std::int64_t i, std::uint32_t element, const Keys& keys, std::int64_t n)
                 TUTTI_LAMBDA { adamw_loop(w + i, g + i, m + i, v + i, element, keys, n, o); });
}

template <class T>
TUTTI_INLINE void sgd_blocks(T* w, const T* g, std::uint16_t* b, std::int64_t count, const Sgd& o,
                             const Draws& draws, std::int64_t place) {
  for_blocks(count, draws, place,
             [&](std::int64_t i, std::uint32_t element, const Keys& keys, std::int64_t n)
                 TUTTI_LAMBDA { sgd_loop(w + i, g + i, b + i, element, keys, n, o); });
}

template <class T>
TUTTI_INLINE void round_blocks(const T* x, std::uint16_t* out, std::int64_t count,
                               const Draws& draws, std::int64_t place) {
  for_blocks(
      count, draws, place,
      [&](std::int64_t i, std::uint32_t element, const Keys& keys, std::int64_t n) TUTTI_LAMBDA {
        for (std::int64_t j = 0; j < n; ++j)
          out[i + j] = rounded(static_cast<float>(x[i + j]),
                               draw(element + static_cast<std::uint32_t>(j), keys) & 0xFFFF);
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
