// What is done with the rows: dispatch, the experts' products, combine.
#include "nn/moe.h"

#include <ATen/Parallel.h>

#include <cstring>

#include "base/error.h"
#include "nn/deferred.h"
#include "nn/destination.h"
#include "nn/gemm.h"
#include "nn/kernels.h"
#include "nn/ops.h"
#include "nn/plain.h"
#include "nn/record.h"

namespace tutti::nn {
namespace {

constexpr std::int64_t rows_a_task = 32;

std::int64_t choices_a_token(const SlotOrder& order) { return order.places.size(1); }

// out[t] = sum over choices of weight x rows[place]; weights null: 1.
void gather_sum(const float* rows, const float* weights, const SlotOrder& order, float* out,
                std::int64_t dim) {
  const std::int64_t k = choices_a_token(order);
  const auto* place = order.places.data_ptr<std::int64_t>();
  at::parallel_for(0, order.places.size(0), rows_a_task, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      float* to = out + t * dim;
      std::fill(to, to + dim, 0.0f);
      for (std::int64_t s = t * k; s < (t + 1) * k; ++s) {
        if (place[s] < 0) continue;
        const float* from = rows + place[s] * dim;
        const float weight = weights ? weights[s] : 1.0f;
        for (std::int64_t i = 0; i < dim; ++i) to[i] += weight * from[i];
      }
    }
  });
}

// out[row] = weight x x[token of the row]
void scatter_rows(const float* x, const float* weights, const SlotOrder& order, float* out,
                  std::int64_t dim) {
  const std::int64_t k = choices_a_token(order);
  const auto* slot = order.slots.data_ptr<std::int64_t>();
  at::parallel_for(0, order.slots.size(0), rows_a_task, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const float* from = x + slot[r] / k * dim;
      float* to = out + r * dim;
      if (!weights) {
        std::memcpy(to, from, static_cast<std::size_t>(dim) * sizeof(float));
        continue;
      }
      const float weight = weights[slot[r]];
      for (std::int64_t i = 0; i < dim; ++i) to[i] = weight * from[i];
    }
  });
}

void weight_dots(const float* rows, const float* d_out, const SlotOrder& order, float* d_weights,
                 std::int64_t dim) {
  const std::int64_t k = choices_a_token(order);
  const auto* place = order.places.data_ptr<std::int64_t>();
  at::parallel_for(0, order.places.size(0), rows_a_task, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t s = begin * k; s < end * k; ++s)
      d_weights[s] =
          place[s] < 0 ? 0 : kernels().dot(rows + place[s] * dim, d_out + s / k * dim, dim);
  });
}

// One expert's rows [begin, begin + rows) of a batch sorted by expert.
struct Run {
  std::int64_t expert, begin, rows;
};

std::vector<Run> runs_of(const std::vector<std::int64_t>& counts) {
  std::vector<Run> runs;
  std::int64_t begin = 0;
  for (std::size_t e = 0; e < counts.size(); begin += counts[e++])
    runs.push_back({static_cast<std::int64_t>(e), begin, counts[e]});
  return runs;
}

// y[:, column ...] = x w_e^T (+ y) for each expert; w [experts, out, in].
struct Grouped {
  const std::vector<Run>& runs;

  void products(const float* x, std::int64_t x_width, const torch::Tensor& w, bool transposed,
                float beta, float* y, std::int64_t y_width) const {
    const std::int64_t out = w.size(1), in = w.size(2);
    for (const Run& run : runs) {
      if (run.rows == 0) continue;
      const Matrix weight{w.data_ptr<float>() + run.expert * out * in, in, transposed};
      gemm(run.rows, transposed ? out : in, transposed ? in : out,
           {x + run.begin * x_width, x_width}, weight, beta, y + run.begin * y_width, y_width);
    }
  }

  // dw_e = dy_e^T x_e
  torch::Tensor weight_gradient(const torch::Tensor& w, const float* dy, std::int64_t dy_width,
                                const float* x, std::int64_t x_width) const {
    Destination to(w, Use::only);
    if (!to.wanted()) return {};
    const std::int64_t out = w.size(1), in = w.size(2);
    for (const Run& run : runs) {
      float* place = to.data() + run.expert * out * in;
      if (run.rows > 0)
        gemm(out, in, run.rows, {dy + run.begin * dy_width, dy_width, true},
             {x + run.begin * x_width, x_width}, to.beta(), place, in);
      else if (!to.accumulate())
        std::fill(place, place + out * in, 0.0f);
    }
    return to.done();
  }
};

struct Experts {
  torch::Tensor x, gate_up, gate, up, down;
  std::vector<Run> runs;

  std::int64_t rows() const { return x.size(0); }
  std::int64_t embed() const { return x.size(1); }
  std::int64_t mlp() const { return gate.size(1); }
};

void swiglu_rows(const Experts& e, torch::Tensor& active) {
  at::parallel_for(0, e.rows(), rows_a_task, [&](std::int64_t begin, std::int64_t end) {
    kernels().swiglu(e.gate_up.data_ptr<float>() + begin * 2 * e.mlp(),
                     active.data_ptr<float>() + begin * e.mlp(), end - begin, e.mlp());
  });
}

torch::Tensor forward(Experts& e) {
  const Grouped grouped{e.runs};
  const std::int64_t wide = 2 * e.mlp();
  e.gate_up = torch::empty({e.rows(), wide}, e.x.options());
  float* out = e.gate_up.data_ptr<float>();
  grouped.products(e.x.data_ptr<float>(), e.embed(), e.gate, true, 0, out, wide);
  grouped.products(e.x.data_ptr<float>(), e.embed(), e.up, true, 0, out + e.mlp(), wide);
  torch::Tensor active = torch::empty({e.rows(), e.mlp()}, e.x.options());
  swiglu_rows(e, active);
  torch::Tensor y = torch::empty({e.rows(), e.embed()}, e.x.options());
  grouped.products(active.data_ptr<float>(), e.mlp(), e.down, true, 0, y.data_ptr<float>(),
                   e.embed());
  return y;
}

Tensors weight_gradients(const Experts& e, const torch::Tensor& dy, const torch::Tensor& active,
                         const torch::Tensor& d_gate_up) {
  const Grouped grouped{e.runs};
  const float *x = e.x.data_ptr<float>(), *d = d_gate_up.data_ptr<float>();
  Tensors gradients(3);
  gradients[2] = grouped.weight_gradient(e.down, dy.data_ptr<float>(), e.embed(),
                                         active.data_ptr<float>(), e.mlp());
  gradients[1] = grouped.weight_gradient(e.up, d + e.mlp(), 2 * e.mlp(), x, e.embed());
  gradients[0] = grouped.weight_gradient(e.gate, d, 2 * e.mlp(), x, e.embed());
  return gradients;
}

// `active` is computed again: a product's worth of memory for an element's worth of work.
Tensors backward(const Experts& e, const torch::Tensor& dy, bool wants_input) {
  const Grouped grouped{e.runs};
  const std::int64_t wide = 2 * e.mlp();
  torch::Tensor active = torch::empty({e.rows(), e.mlp()}, e.x.options());
  swiglu_rows(e, active);
  torch::Tensor d_active = torch::empty_like(active), d_gate_up = torch::empty_like(e.gate_up);
  grouped.products(dy.data_ptr<float>(), e.embed(), e.down, false, 0, d_active.data_ptr<float>(),
                   e.mlp());
  at::parallel_for(0, e.rows(), rows_a_task, [&](std::int64_t begin, std::int64_t end) {
    kernels().swiglu_backward(e.gate_up.data_ptr<float>() + begin * wide,
                              d_active.data_ptr<float>() + begin * e.mlp(),
                              d_gate_up.data_ptr<float>() + begin * wide, end - begin, e.mlp());
  });
  Tensors results(4);
  if (WeightWork* later = weight_work()) {
    later->add([e, dy, active, d_gate_up] { weight_gradients(e, dy, active, d_gate_up); });
  } else {
    const Tensors gradients = weight_gradients(e, dy, active, d_gate_up);
    std::copy(gradients.begin(), gradients.end(), results.begin() + 1);
  }
  if (!wants_input) return results;
  results[0] = torch::empty({e.rows(), e.embed()}, e.x.options());
  float* dx = results[0].data_ptr<float>();
  const float* d = d_gate_up.data_ptr<float>();
  grouped.products(d, wide, e.gate, false, 0, dx, e.embed());
  grouped.products(d + e.mlp(), wide, e.up, false, 1, dx, e.embed());
  return results;
}

torch::Tensor rows_of(const torch::Tensor& x, const SlotOrder& order) {
  return x.index_select(0, order.slots.div(choices_a_token(order), "floor"));
}

// A row of zeros stands for what was dropped.
torch::Tensor plain_combine(const torch::Tensor& rows, const torch::Tensor& weights,
                            const SlotOrder& order) {
  const auto padded = torch::cat({rows, torch::zeros({1, rows.size(1)}, rows.options())});
  const auto places = order.places.masked_fill(order.places < 0, rows.size(0)).flatten();
  const auto slots =
      padded.index_select(0, places).view({weights.size(0), weights.size(1), rows.size(1)});
  return (slots * weights.unsqueeze(-1)).sum(1);
}

torch::Tensor plain_experts(const torch::Tensor& rows, const std::vector<std::int64_t>& counts,
                            const torch::Tensor& gate, const torch::Tensor& up,
                            const torch::Tensor& down) {
  const auto gates = gate.unbind(0), ups = up.unbind(0), downs = down.unbind(0);
  Tensors parts;
  for (const Run& run : runs_of(counts)) {
    if (run.rows == 0) continue;
    const auto e = static_cast<std::size_t>(run.expert);
    const auto x = rows.narrow(0, run.begin, run.rows);
    const auto wide = plain::linear(x, {{gates[e], {}}, {ups[e], {}}});
    parts.push_back(torch::linear(plain::swiglu(wide), downs[e]));
  }
  // Nothing to do, but backward passes come by.
  if (parts.empty()) return rows + 0 * (gate.sum() + up.sum() + down.sum());
  return torch::cat(parts);
}

}  // namespace

torch::Tensor dispatch(const torch::Tensor& x, const SlotOrder& order) {
  if (!fused(x)) return rows_of(x, order);
  const bool history = wants_gradient({x});
  torch::NoGradGuard no_grad;
  const std::int64_t dim = x.size(1);
  torch::Tensor rows = torch::empty({order.slots.size(0), dim}, x.options());
  scatter_rows(x.data_ptr<float>(), nullptr, order, rows.data_ptr<float>(), dim);
  if (history)
    record({rows}, {x}, "dispatch", [order, dim](Tensors&& g) -> Tensors {
      const torch::Tensor d_rows = g[0].contiguous();
      torch::Tensor dx = torch::empty({order.places.size(0), dim}, d_rows.options());
      gather_sum(d_rows.data_ptr<float>(), nullptr, order, dx.data_ptr<float>(), dim);
      return {dx};
    });
  return rows;
}

torch::Tensor combine(const torch::Tensor& rows, const torch::Tensor& weights,
                      const SlotOrder& order) {
  if (!fused(rows) || !fused(weights)) return plain_combine(rows, weights, order);
  const bool history = wants_gradient({rows, weights});
  torch::NoGradGuard no_grad;
  const std::int64_t dim = rows.size(1);
  torch::Tensor out = torch::empty({weights.size(0), dim}, rows.options());
  gather_sum(rows.data_ptr<float>(), weights.data_ptr<float>(), order, out.data_ptr<float>(), dim);
  if (history)
    record({out}, {rows, weights}, "combine",
           [order, dim, rows = rows.detach(), weights = weights.detach()](Tensors&& g) -> Tensors {
             const torch::Tensor d_out = g[0].contiguous();
             torch::Tensor d_rows = torch::empty_like(rows), d_weights = torch::empty_like(weights);
             scatter_rows(d_out.data_ptr<float>(), weights.data_ptr<float>(), order,
                          d_rows.data_ptr<float>(), dim);
             weight_dots(rows.data_ptr<float>(), d_out.data_ptr<float>(), order,
                         d_weights.data_ptr<float>(), dim);
             return {d_rows, d_weights};
           });
  return out;
}

torch::Tensor experts_mlp(const torch::Tensor& rows, const std::vector<std::int64_t>& counts,
                          const torch::Tensor& gate, const torch::Tensor& up,
                          const torch::Tensor& down) {
  TUTTI_ASSERT(static_cast<std::int64_t>(counts.size()) == gate.size(0));
  if (!fused(rows) || !fused(gate) || !fused(up) || !fused(down))
    return plain_experts(rows, counts, sunk(gate), sunk(up), sunk(down));
  const bool history = wants_gradient({rows, gate, up, down});
  const bool wants_input = history && rows.requires_grad();
  torch::NoGradGuard no_grad;
  Experts e{rows.detach(), {}, gate, up, down, runs_of(counts)};
  torch::Tensor y = forward(e);
  if (history)
    record({y}, {rows, gate, up, down}, "experts",
           [e, wants_input](Tensors&& g) { return backward(e, g[0].contiguous(), wants_input); });
  return y;
}

}  // namespace tutti::nn
