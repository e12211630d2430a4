// The pointer loops under ops.h: fp32, contiguous rows unless a leading dimension is given. They
// are compiled three times (x86-64, v3 with AVX2, v4 with AVX-512) from kernels.inc, and kernels()
// picks the widest that this processor runs. All sums run over the same sixteen lanes on every
// level, so levels differ only by the contraction of multiply-adds. Serial: callers split rows
// among threads.
#pragma once
#include <cstdint>

namespace tutti::nn {

struct Kernels {
  const char* level;

  // sum = x + add (add may be null; sum may be null then); out = norm(sum) * weight (+ bias).
  // rstd (and mean for layer norm) receive one value a row.
  void (*rms_norm)(const float* x, const float* add, const float* weight, float* sum, float* out,
                   float* rstd, std::int64_t rows, std::int64_t dim, float eps);
  void (*layer_norm)(const float* x, const float* add, const float* weight, const float* bias,
                     float* sum, float* out, float* mean, float* rstd, std::int64_t rows,
                     std::int64_t dim, float eps);
  // dx = d_sum (may be null) + gradient through the norm; d_weight, d_bias are added to.
  void (*rms_norm_backward)(const float* d_sum, const float* d_out, const float* sum,
                            const float* weight, const float* rstd, float* dx, float* d_weight,
                            std::int64_t rows, std::int64_t dim);
  void (*layer_norm_backward)(const float* d_sum, const float* d_out, const float* sum,
                              const float* weight, const float* mean, const float* rstd, float* dx,
                              float* d_weight, float* d_bias, std::int64_t rows, std::int64_t dim);

  // Rows [gate | up] of 2 x dim: out = silu(gate) * up. Backward writes a row [d_gate | d_up].
  void (*swiglu)(const float* gate_up, float* out, std::int64_t rows, std::int64_t dim);
  void (*swiglu_backward)(const float* gate_up, const float* d_out, float* d_gate_up,
                          std::int64_t rows, std::int64_t dim);
  // GPT-2's tanh form ("gelu_new").
  void (*gelu)(const float* x, float* out, std::int64_t size);
  void (*gelu_backward)(const float* x, const float* d_out, float* dx, std::int64_t size);

  // Rotates `heads` heads of one token in place, half-split layout: (a, b) -> (a cos - b sin,
  // b cos + a sin); cos and sin hold head_dim / 2 values. Pass -sin's sign by `direction` = -1.
  void (*rope)(float* x, const float* cosine, const float* sine, float direction,
               std::int64_t heads, std::int64_t head_dim);

  // One row of attention scores over `size` keys of which [low, high) are seen: probabilities in
  // place, zeros elsewhere. Returns log(sum(exp(scale * score))).
  float (*softmax)(float* scores, float scale, std::int64_t low, std::int64_t high,
                   std::int64_t size);
  // scores -> probabilities (from lse), d_probabilities -> d_scores (with scale), both in place.
  void (*softmax_backward)(float* scores, float* d_probabilities, float scale, float lse,
                           float delta, std::int64_t low, std::int64_t high, std::int64_t size);
  float (*dot)(const float* a, const float* b, std::int64_t size);

  // logits -> softmax - onehot(target) in place; returns the cross-entropy in nats.
  float (*cross_entropy)(float* logits, std::int64_t target, std::int64_t size);

  void (*add_to_rows)(float* rows_out, std::int64_t leading, const float* bias, std::int64_t rows,
                      std::int64_t dim);
  void (*add_column_sums)(const float* x, std::int64_t leading, float* out, std::int64_t rows,
                          std::int64_t dim);
};

const Kernels& kernels();

// For tests: every level that this processor runs, narrowest first; `count` receives how many.
const Kernels* const* kernel_levels(int* count);

}  // namespace tutti::nn
