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

// Rounding to bf16 by chance: an element goes up if 16 drawn bits and the 16 that are cut off
// carry. Element j of a tensor draws the low half of h(j % 4096, words 0 and 1 of philox4x32({j /
// 4096, step}, key)), where h(x, a, b) is x ^ a through the hash lowbias32 (Wellons, "Prospecting
// for hash functions", 2018) with b added before the second product. An infinity and a NaN stay as
// they are.
struct Draws {
  std::uint64_t key = 0, step = 0;
};

// The same updates with moments in bf16, of `count` elements from `place` on. The low half
// rounds m and b, the high half v. The update takes the moments as they are before rounding.
template <class T>
void adamw_bf16(T* w, const T* g, std::uint16_t* m, std::uint16_t* v, std::int64_t count,
                const AdamW& options, const Draws& draws, std::int64_t place);
template <class T>
void sgd_bf16(T* w, const T* g, std::uint16_t* b, std::int64_t count, const Sgd& options,
              const Draws& draws, std::int64_t place);
template <class T>
void round_bf16(const T* x, std::uint16_t* out, std::int64_t count, const Draws& draws,
                std::int64_t place);

template <class T>
double sum_of_squares(const T* x, std::int64_t count);  // one block: lanes of fp64, fixed order

}  // namespace tutti::optim
