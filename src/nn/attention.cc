// Causal attention for CPU: one task per (sample, key head), a block of queries at a time. Scores
// of a block live in cache; key blocks that no query of the block may see are skipped. Backward
// recomputes the probabilities from the log-sum-exp of each row (Dao et al., "FlashAttention",
// 2022, without the online softmax: a block holds whole rows).
#include <ATen/Parallel.h>

#include <cmath>

#include "base/error.h"
#include "nn/destination.h"
#include "nn/gemm.h"
#include "nn/kernels.h"
#include "nn/ops.h"
#include "nn/plain.h"
#include "nn/record.h"

namespace tutti::nn {
namespace {

constexpr std::int64_t query_block = 32;

struct Problem {
  Heads heads;
  torch::Tensor qkv, lse, out, first_key;  // qkv rotated

  float scale() const { return 1.0f / std::sqrt(static_cast<float>(heads.dim)); }
  std::int64_t group() const { return heads.heads / heads.kv_heads; }
  std::int64_t first(std::int64_t sample, std::int64_t query) const {
    return first_key.defined() ? first_key.data_ptr<int>()[sample * heads.sequence + query] : 0;
  }
};

// Where one head's rows begin in a [tokens, q | k | v] buffer.
struct Pointers {
  float *query, *key, *value;
};
Pointers pointers(const Heads& h, const torch::Tensor& qkv, std::int64_t sample, std::int64_t head,
                  std::int64_t kv_head) {
  float* row = qkv.data_ptr<float>() + sample * h.sequence * h.row();
  return {row + head * h.dim, row + (h.heads + kv_head) * h.dim,
          row + (h.heads + h.kv_heads + kv_head) * h.dim};
}

// One block of queries [begin, end) of one head; the keys it may see are [low, end).
struct Block {
  std::int64_t begin, end, low;
  std::int64_t rows() const { return end - begin; }
  std::int64_t keys() const { return end - low; }
};
Block block_at(const Problem& p, std::int64_t sample, std::int64_t begin) {
  return {begin, std::min(begin + query_block, p.heads.sequence), p.first(sample, begin)};
}

float* scratch(std::size_t which, std::int64_t size) {
  thread_local std::vector<float> buffers[4];
  auto& buffer = buffers[which];
  if (buffer.size() < static_cast<std::size_t>(size)) buffer.resize(static_cast<std::size_t>(size));
  return buffer.data();
}

void rotate(const Heads& h, const Rope& rope, const torch::Tensor& qkv, float direction) {
  if (!rope.cosine.defined()) return;
  const float *cosine = rope.cosine.data_ptr<float>(), *sine = rope.sine.data_ptr<float>();
  float* rows = qkv.data_ptr<float>();
  at::parallel_for(0, h.tokens(), 32, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const std::int64_t at = t % h.sequence * (h.dim / 2);
      kernels().rope(rows + t * h.row(), cosine + at, sine + at, direction, h.heads + h.kv_heads,
                     h.dim);
    }
  });
}

// A head's rows [sequence, dim] as [dim, sequence]: products with it need no further copy.
const float* transposed_head(const Heads& h, const float* rows, std::size_t which) {
  float* out = scratch(which, h.dim * h.sequence);
  transposed_copy(rows, h.row(), out, h.sequence, h.sequence, h.dim);
  return out;
}

void forward_block(const Problem& p, std::int64_t sample, std::int64_t head, const Block& b,
                   const float* key_columns) {
  const Heads& h = p.heads;
  const auto [query, key, value] = pointers(h, p.qkv, sample, head, head / p.group());
  const std::int64_t row = h.row(), width = h.heads * h.dim;
  float* scores = scratch(0, b.rows() * b.keys());
  gemm(b.rows(), b.keys(), h.dim, {query + b.begin * row, row}, {key_columns + b.low, h.sequence},
       0, scores, b.keys());
  float* lse = p.lse.data_ptr<float>() + (sample * h.heads + head) * h.sequence;
  for (std::int64_t i = b.begin; i < b.end; ++i)
    lse[i] = kernels().softmax(scores + (i - b.begin) * b.keys(), p.scale(),
                               p.first(sample, i) - b.low, i + 1 - b.low, b.keys());
  float* out = p.out.data_ptr<float>() + (sample * h.sequence + b.begin) * width + head * h.dim;
  gemm(b.rows(), h.dim, b.keys(), {scores, b.keys()}, {value + b.low * row, row}, 0, out, width);
}

void forward(const Problem& p) {
  const Heads& h = p.heads;
  at::parallel_for(0, h.batch * h.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t sample = task / h.kv_heads, kv_head = task % h.kv_heads;
      const float* key_columns = transposed_head(h, pointers(h, p.qkv, sample, 0, kv_head).key, 2);
      for (std::int64_t head = kv_head * p.group(); head < (kv_head + 1) * p.group(); ++head)
        for (std::int64_t q = 0; q < h.sequence; q += query_block)
          forward_block(p, sample, head, block_at(p, sample, q), key_columns);
    }
  });
}

// d_qkv's key and value rows are added to; its query rows are written.
void backward_block(const Problem& p, const torch::Tensor& d_out, const torch::Tensor& d_qkv,
                    std::int64_t sample, std::int64_t head, const Block& b,
                    const float* key_columns, const float* value_columns) {
  const Heads& h = p.heads;
  const std::int64_t row = h.row(), width = h.heads * h.dim, keys = b.keys();
  const auto [query, key, value] = pointers(h, p.qkv, sample, head, head / p.group());
  const auto [d_query, d_key, d_value] = pointers(h, d_qkv, sample, head, head / p.group());
  const std::int64_t at = (sample * h.sequence + b.begin) * width + head * h.dim;
  const float *out = p.out.data_ptr<float>() + at, *gradient = d_out.data_ptr<float>() + at;
  float *scores = scratch(0, b.rows() * keys), *d_scores = scratch(1, b.rows() * keys);

  gemm(b.rows(), keys, h.dim, {query + b.begin * row, row}, {key_columns + b.low, h.sequence}, 0,
       scores, keys);
  gemm(b.rows(), keys, h.dim, {gradient, width}, {value_columns + b.low, h.sequence}, 0, d_scores,
       keys);
  const float* lse = p.lse.data_ptr<float>() + (sample * h.heads + head) * h.sequence;
  for (std::int64_t i = b.begin; i < b.end; ++i) {
    const std::int64_t r = i - b.begin;
    const float delta = kernels().dot(out + r * width, gradient + r * width, h.dim);
    kernels().softmax_backward(scores + r * keys, d_scores + r * keys, p.scale(), lse[i], delta,
                               p.first(sample, i) - b.low, i + 1 - b.low, keys);
  }
  gemm(keys, h.dim, b.rows(), {scores, keys, true}, {gradient, width}, 1, d_value + b.low * row,
       row);
  gemm(keys, h.dim, b.rows(), {d_scores, keys, true}, {query + b.begin * row, row}, 1,
       d_key + b.low * row, row);
  gemm(b.rows(), h.dim, keys, {d_scores, keys}, {key + b.low * row, row}, 0,
       d_query + b.begin * row, row);
}

torch::Tensor backward(const Problem& p, const torch::Tensor& d_out) {
  const Heads& h = p.heads;
  torch::Tensor d_qkv = torch::zeros_like(p.qkv);
  // A task owns a key head, and with it the gradients of that head's keys and values.
  at::parallel_for(0, h.batch * h.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t sample = task / h.kv_heads, kv_head = task % h.kv_heads;
      const auto rows = pointers(h, p.qkv, sample, 0, kv_head);
      const float* key_columns = transposed_head(h, rows.key, 2);
      const float* value_columns = transposed_head(h, rows.value, 3);
      for (std::int64_t head = kv_head * p.group(); head < (kv_head + 1) * p.group(); ++head)
        for (std::int64_t q = 0; q < h.sequence; q += query_block)
          backward_block(p, d_out, d_qkv, sample, head, block_at(p, sample, q), key_columns,
                         value_columns);
    }
  });
  return d_qkv;
}

// kernels().rms_norm over the query and the key heads of each token; v is copied.
void each_head_span(const Heads& h, const std::function<void(std::int64_t token, std::int64_t at,
                                                             std::int64_t heads, bool key)>& run) {
  for (std::int64_t t = 0; t < h.tokens(); ++t) {
    run(t, t * h.row(), h.heads, false);
    run(t, t * h.row() + h.heads * h.dim, h.kv_heads, true);
  }
}

struct HeadNorm {
  Heads heads;
  torch::Tensor x, query_weight, key_weight, rstd;
  const float* weight(bool key) const {
    return (key ? key_weight : query_weight).data_ptr<float>();
  }
  float* scales(std::int64_t token, bool key) const {
    return rstd.data_ptr<float>() + token * (heads.heads + heads.kv_heads) +
           (key ? heads.heads : 0);
  }
};

Tensors norm_heads_backward(const HeadNorm& n, const torch::Tensor& d_out) {
  const Heads& h = n.heads;
  torch::Tensor dx = d_out.clone();
  torch::Tensor d_weight = torch::zeros({2, h.dim}, n.x.options());
  each_head_span(h, [&](std::int64_t t, std::int64_t at, std::int64_t count, bool key) {
    kernels().rms_norm_backward(nullptr, d_out.data_ptr<float>() + at, n.x.data_ptr<float>() + at,
                                n.weight(key), n.scales(t, key), dx.data_ptr<float>() + at,
                                d_weight.data_ptr<float>() + (key ? h.dim : 0), count, h.dim);
  });
  const auto put = [&](const torch::Tensor& parameter, int which) -> torch::Tensor {
    Destination to(parameter, Use::only);
    if (!to.wanted()) return {};
    kernels().add_column_sums(d_weight.data_ptr<float>() + which * h.dim, h.dim, to.data_to_add(),
                              1, h.dim);
    return to.done();
  };
  return {dx, put(n.query_weight, 0), put(n.key_weight, 1)};
}

}  // namespace

torch::Tensor norm_heads(const torch::Tensor& qkv, const Heads& heads,
                         const torch::Tensor& query_weight, const torch::Tensor& key_weight,
                         double eps) {
  if (!fused(qkv) || !fused(query_weight) || !fused(key_weight))
    return plain::norm_heads(qkv, heads, sunk(query_weight), sunk(key_weight), eps);
  const bool history = wants_gradient({qkv, query_weight, key_weight});
  torch::NoGradGuard no_grad;
  const HeadNorm n{heads, qkv.detach(), query_weight, key_weight,
                   torch::empty({heads.tokens(), heads.heads + heads.kv_heads}, qkv.options())};
  torch::Tensor out = n.x.clone();
  each_head_span(heads, [&](std::int64_t t, std::int64_t at, std::int64_t count, bool key) {
    kernels().rms_norm(n.x.data_ptr<float>() + at, nullptr, n.weight(key), nullptr,
                       out.data_ptr<float>() + at, n.scales(t, key), count, heads.dim,
                       static_cast<float>(eps));
  });
  if (history)
    record({out}, {qkv, query_weight, key_weight}, "norm_heads",
           [n](Tensors&& g) { return norm_heads_backward(n, g[0].contiguous()); });
  return out;
}

torch::Tensor attention(const torch::Tensor& qkv, const Heads& heads, const Rope& rope,
                        const torch::Tensor& first_key) {
  TUTTI_ASSERT(qkv.size(0) == heads.tokens() && qkv.size(1) == heads.row());
  if (!fused(qkv)) return plain::attention(qkv, heads, rope, first_key);
  const bool history = wants_gradient({qkv});
  torch::NoGradGuard no_grad;
  Problem p{heads, qkv.detach(), {}, {}, first_key};
  p.lse = torch::empty({heads.batch, heads.heads, heads.sequence}, qkv.options());
  p.out = torch::empty({heads.tokens(), heads.heads * heads.dim}, qkv.options());
  rotate(heads, rope, p.qkv, 1);
  forward(p);
  torch::Tensor out = p.out.variable_data();
  if (history)
    record({out}, {qkv}, "attention", [p, rope](Tensors&& gradients) -> Tensors {
      torch::Tensor d_qkv = backward(p, gradients[0].contiguous());
      rotate(p.heads, rope, d_qkv, -1);
      return {d_qkv};
    });
  return out;
}

}  // namespace tutti::nn
