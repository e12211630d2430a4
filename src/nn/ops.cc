// Embeddings, norms, activations; linear.cc, attention.cc and head_loss.cc hold the rest of ops.h.
#include "nn/ops.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/engine.h>

#include "base/error.h"
#include "nn/destination.h"
#include "nn/kernels.h"
#include "nn/plain.h"
#include "nn/record.h"

namespace tutti::nn {
namespace {

thread_local bool plain_only = false;

// Weight gradients of norms are summed over fixed groups of rows, whatever the thread count.
constexpr std::int64_t rows_a_group = 128;
constexpr std::int64_t rows_a_task = 32;

struct Norm {
  torch::Tensor sum, weight, bias, mean, rstd;
};

Tensors norm_backward(const Norm& n, bool has_add, Tensors&& gradients) {
  const std::int64_t rows = n.sum.size(0), dim = n.sum.size(1);
  if (!gradients[1].defined())
    return {gradients[0], has_add ? gradients[0] : torch::Tensor(), {}, {}};
  const torch::Tensor through = gradients[0].defined() ? gradients[0].contiguous() : gradients[0];
  const torch::Tensor d_out = gradients[1].contiguous();
  const std::int64_t groups = (rows + rows_a_group - 1) / rows_a_group;
  const bool layer = n.bias.defined();
  torch::Tensor dx = torch::empty_like(n.sum);
  torch::Tensor partial = torch::zeros({groups, layer ? 2 : 1, dim}, n.sum.options());
  at::parallel_for(0, groups, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t g = begin; g < end; ++g) {
      const std::int64_t first = g * rows_a_group, at = first * dim;
      const std::int64_t count = std::min(rows_a_group, rows - first);
      const float* from = through.defined() ? through.data_ptr<float>() + at : nullptr;
      float* d_weight = partial.data_ptr<float>() + g * dim * (layer ? 2 : 1);
      if (layer) {
        kernels().layer_norm_backward(from, d_out.data_ptr<float>() + at,
                                      n.sum.data_ptr<float>() + at, n.weight.data_ptr<float>(),
                                      n.mean.data_ptr<float>() + first,
                                      n.rstd.data_ptr<float>() + first, dx.data_ptr<float>() + at,
                                      d_weight, d_weight + dim, count, dim);
      } else {
        kernels().rms_norm_backward(from, d_out.data_ptr<float>() + at,
                                    n.sum.data_ptr<float>() + at, n.weight.data_ptr<float>(),
                                    n.rstd.data_ptr<float>() + first, dx.data_ptr<float>() + at,
                                    d_weight, count, dim);
      }
    }
  });
  const auto put = [&](const torch::Tensor& parameter, std::int64_t which) -> torch::Tensor {
    Destination to(parameter, Use::only);
    if (!to.wanted()) return {};
    kernels().add_column_sums(partial.data_ptr<float>() + which * dim, dim * (layer ? 2 : 1),
                              to.data_to_add(), groups, dim);
    return to.done();
  };
  return {dx, has_add ? dx : torch::Tensor(), put(n.weight, 0), put(n.bias, 1)};
}

std::pair<torch::Tensor, torch::Tensor> fused_norm(const torch::Tensor& x, const torch::Tensor& add,
                                                   const torch::Tensor& weight,
                                                   const torch::Tensor& bias, double eps) {
  const std::int64_t rows = x.size(0), dim = x.size(1);
  const bool history = wants_gradient({x, add, weight, bias});
  torch::NoGradGuard no_grad;
  Norm n{add.defined() ? torch::empty_like(x) : x.detach(), weight, bias, {}, {}};
  n.rstd = torch::empty({rows}, x.options());
  if (bias.defined()) n.mean = torch::empty({rows}, x.options());
  torch::Tensor out = torch::empty_like(x);
  at::parallel_for(0, rows, rows_a_task, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t at = begin * dim;
    const float* more = add.defined() ? add.data_ptr<float>() + at : nullptr;
    float* sum = n.sum.data_ptr<float>() + at;
    if (bias.defined()) {
      kernels().layer_norm(x.data_ptr<float>() + at, more, weight.data_ptr<float>(),
                           bias.data_ptr<float>(), sum, out.data_ptr<float>() + at,
                           n.mean.data_ptr<float>() + begin, n.rstd.data_ptr<float>() + begin,
                           end - begin, dim, static_cast<float>(eps));
    } else {
      kernels().rms_norm(x.data_ptr<float>() + at, more, weight.data_ptr<float>(), sum,
                         out.data_ptr<float>() + at, n.rstd.data_ptr<float>() + begin, end - begin,
                         dim, static_cast<float>(eps));
    }
  });
  torch::Tensor sum = n.sum.variable_data();
  if (history)
    record({sum, out}, {x, add, weight, bias}, "add_norm",
           [n, has_add = add.defined()](Tensors&& g) {
             return norm_backward(n, has_add, std::move(g));
           });
  return {sum, out};
}

void run_swiglu(const torch::Tensor& x, torch::Tensor& out) {
  const std::int64_t dim = out.size(1);
  at::parallel_for(0, x.size(0), rows_a_task, [&](std::int64_t begin, std::int64_t end) {
    kernels().swiglu(x.data_ptr<float>() + begin * 2 * dim, out.data_ptr<float>() + begin * dim,
                     end - begin, dim);
  });
}

// Overwrites x when nothing needs it any more: that saves a third of the memory traffic.
torch::Tensor run_swiglu_backward(const torch::Tensor& x, const torch::Tensor& d_out, bool ours) {
  const bool in_place = ours && !torch::autograd::get_current_graph_task_keep_graph();
  torch::Tensor dx = in_place ? x : torch::empty_like(x);
  const std::int64_t dim = d_out.size(1);
  at::parallel_for(0, x.size(0), rows_a_task, [&](std::int64_t begin, std::int64_t end) {
    kernels().swiglu_backward(x.data_ptr<float>() + begin * 2 * dim,
                              d_out.data_ptr<float>() + begin * dim,
                              dx.data_ptr<float>() + begin * 2 * dim, end - begin, dim);
  });
  return dx;
}

void add_rows(const torch::Tensor& ids, const torch::Tensor& gradient, float* out) {
  const std::int64_t dim = gradient.size(1), count = ids.numel();
  const auto* id = ids.data_ptr<std::int64_t>();
  const auto* from = gradient.data_ptr<float>();
  at::parallel_for(0, dim, 64, [&](std::int64_t begin, std::int64_t end) {  // columns: no two meet
    for (std::int64_t t = 0; t < count; ++t)
      kernels().add_to_rows(out + id[t] * dim + begin, dim, from + t * dim + begin, 1, end - begin);
  });
}

torch::Tensor fused_embedding(const torch::Tensor& ids, const torch::Tensor& weight, Use use) {
  const torch::Tensor flat = ids.reshape({-1}).contiguous();
  const bool history = wants_gradient({weight});
  torch::NoGradGuard no_grad;
  torch::Tensor out = torch::embedding(weight.detach(), flat);
  if (history)
    record({out}, {weight}, "embedding", [flat, weight, use](Tensors&& gradients) -> Tensors {
      Destination to(weight, use);
      const torch::Tensor gradient = gradients[0].contiguous();
      add_rows(flat, gradient, to.data_to_add());
      return {to.done()};
    });
  return out;
}

}  // namespace

PlainOps::PlainOps(bool on) : outer_(plain_only) { plain_only = on; }
PlainOps::~PlainOps() { plain_only = outer_; }

bool fused(const torch::Tensor& x) {
  return !plain_only && x.is_cpu() && x.scalar_type() == torch::kFloat && x.is_contiguous();
}

torch::Tensor embedding(const torch::Tensor& ids, const torch::Tensor& weight, Use use) {
  if (fused(weight)) return fused_embedding(ids, weight, use);
  return plain::embedding(ids, sunk(weight, use));
}

torch::Tensor position_embedding(const torch::Tensor& weight, std::int64_t batch,
                                 std::int64_t sequence, std::int64_t offset) {
  return sunk(weight)
      .narrow(0, offset, sequence)
      .unsqueeze(0)
      .expand({batch, -1, -1})
      .reshape({batch * sequence, weight.size(1)});
}

std::pair<torch::Tensor, torch::Tensor> add_norm(const torch::Tensor& x, const torch::Tensor& add,
                                                 const torch::Tensor& weight,
                                                 const torch::Tensor& bias, double eps) {
  if (fused(x) && fused(weight) && (!add.defined() || fused(add)))
    return fused_norm(x, add, weight, bias, eps);
  const torch::Tensor sum = add.defined() ? x + add : x;
  return {sum, plain::add_norm(sum, sunk(weight), sunk(bias), eps)};
}

torch::Tensor swiglu(const torch::Tensor& gate_up) {
  if (!fused(gate_up)) return plain::swiglu(gate_up);
  const bool history = wants_gradient({gate_up});
  torch::NoGradGuard no_grad;
  torch::Tensor x = gate_up.detach();
  torch::Tensor out = torch::empty({x.size(0), x.size(1) / 2}, x.options());
  run_swiglu(x, out);
  if (history)
    record({out}, {gate_up}, "swiglu", [x, ours = !gate_up.is_leaf()](Tensors&& g) -> Tensors {
      return {run_swiglu_backward(x, g[0].contiguous(), ours)};
    });
  return out;
}

torch::Tensor gelu(const torch::Tensor& input) {
  if (!fused(input)) return plain::gelu(input);
  const bool history = wants_gradient({input});
  torch::NoGradGuard no_grad;
  torch::Tensor x = input.detach(), out = torch::empty_like(x);
  constexpr std::int64_t grain = 4096;
  at::parallel_for(0, x.numel(), grain, [&](std::int64_t begin, std::int64_t end) {
    kernels().gelu(x.data_ptr<float>() + begin, out.data_ptr<float>() + begin, end - begin);
  });
  if (history)
    record({out}, {input}, "gelu", [x](Tensors&& g) -> Tensors {
      const torch::Tensor d_out = g[0].contiguous();
      torch::Tensor dx = torch::empty_like(x);
      at::parallel_for(0, x.numel(), grain, [&](std::int64_t begin, std::int64_t end) {
        kernels().gelu_backward(x.data_ptr<float>() + begin, d_out.data_ptr<float>() + begin,
                                dx.data_ptr<float>() + begin, end - begin);
      });
      return {dx};
    });
  return out;
}

torch::Tensor first_keys(const torch::Tensor& documents) {
  const auto sequence = documents.size(1);
  auto starts = torch::zeros_like(documents, torch::kLong);
  if (sequence > 1) {
    const auto position = torch::arange(1, sequence, starts.options());
    const auto changes =
        documents.narrow(1, 1, sequence - 1) != documents.narrow(1, 0, sequence - 1);
    starts.narrow(1, 1, sequence - 1).copy_(changes * position);
  }
  return std::get<0>(starts.cummax(1)).to(torch::kInt).contiguous();
}

}  // namespace tutti::nn
