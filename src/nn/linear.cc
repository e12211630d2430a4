#include <ATen/Parallel.h>

#include "base/error.h"
#include "nn/deferred.h"
#include "nn/destination.h"
#include "nn/gemm.h"
#include "nn/kernels.h"
#include "nn/ops.h"
#include "nn/plain.h"
#include "nn/product.h"
#include "nn/record.h"

namespace tutti::nn {
namespace {

// One matrix product: columns [column, column + out) of the packed output.
struct Part {
  const float* weight;
  std::int64_t column, out;
  bool transposed;
};

std::int64_t out_of(const Projection& p) { return p.weight.size(p.transposed ? 1 : 0); }

bool follows(const torch::Tensor& before, const torch::Tensor& after) {
  return before.data_ptr<float>() + before.numel() == after.data_ptr<float>();
}

// Neighbouring [out, in] weights become one part.
std::vector<Part> parts_of(const std::vector<Projection>& projections) {
  std::vector<Part> parts;
  std::int64_t column = 0;
  for (std::size_t i = 0; i < projections.size(); ++i) {
    const auto& p = projections[i];
    const std::int64_t out = out_of(p);
    if (i > 0 && !p.transposed && !projections[i - 1].transposed &&
        follows(projections[i - 1].weight, p.weight)) {
      parts.back().out += out;
    } else {
      parts.push_back({p.weight.data_ptr<float>(), column, out, p.transposed});
    }
    column += out;
  }
  return parts;
}

// dW of projections [first, end), whose places are neighbours, in one product.
void weight_gradient(const torch::Tensor& x, const float* dy, std::int64_t width, std::int64_t out,
                     bool transposed, const Destination& to) {
  const std::int64_t tokens = x.size(0), in = x.size(1);
  const Matrix activations{x.data_ptr<float>(), in}, gradients{dy, width};
  if (transposed)
    gemm(in, out, tokens, {activations.data, in, true}, gradients, to.beta(), to.data(), out);
  else
    gemm(out, in, tokens, {gradients.data, width, true}, activations, to.beta(), to.data(), in);
}

Tensors weight_gradients(const torch::Tensor& x, const torch::Tensor& dy,
                         const std::vector<Projection>& projections) {
  const std::int64_t width = dy.size(1);
  std::vector<Destination> places;
  for (const auto& p : projections) places.emplace_back(p.weight, Use::only);
  std::int64_t column = 0;
  for (std::size_t i = 0; i < places.size();) {
    std::size_t end = i + 1;
    std::int64_t out = out_of(projections[i]);
    while (end < places.size() && places[i].wanted() && places[end].wanted() &&
           !projections[i].transposed && !projections[end].transposed &&
           places[i].beta() == places[end].beta() &&
           follows(places[end - 1].tensor(), places[end].tensor()))
      out += out_of(projections[end++]);
    if (places[i].wanted())
      weight_gradient(x, dy.data_ptr<float>() + column, width, out, projections[i].transposed,
                      places[i]);
    column += out;
    i = end;
  }
  Tensors results;
  for (auto& place : places) results.push_back(place.wanted() ? place.done() : torch::Tensor());
  return results;
}

Tensors bias_gradients(const torch::Tensor& dy, const std::vector<Projection>& projections) {
  Tensors results;
  std::int64_t column = 0;
  for (const auto& p : projections) {
    Destination to(p.bias, Use::only);
    if (to.wanted()) {
      kernels().add_column_sums(dy.data_ptr<float>() + column, dy.size(1), to.data_to_add(),
                                dy.size(0), out_of(p));
      results.push_back(to.done());
    } else {
      results.push_back({});
    }
    column += out_of(p);
  }
  return results;
}

bool fusable(const torch::Tensor& x, const std::vector<Projection>& projections) {
  if (!fused(x)) return false;
  for (const auto& p : projections)
    if (!fused(p.weight) || (p.bias.defined() && !fused(p.bias))) return false;
  return true;
}

}  // namespace

Product::Product(const torch::Tensor& x, std::vector<Projection> projections)
    : projections_(std::move(projections)), fused_(fusable(x, projections_)) {
  if (fused_) return;
  for (auto& p : projections_) p = {sunk(p.weight), sunk(p.bias), p.transposed};
}

std::int64_t Product::width() const {
  std::int64_t width = 0;
  for (const auto& p : projections_) width += out_of(p);
  return width;
}

Tensors Product::inputs(const torch::Tensor& x) const {
  Tensors inputs{x};
  for (const auto& p : projections_) inputs.push_back(p.weight);
  for (const auto& p : projections_) inputs.push_back(p.bias);
  return inputs;
}

void Product::add_biases(const torch::Tensor& y) const {
  const std::int64_t tokens = y.size(0), width = y.size(1);
  float* out = y.data_ptr<float>();
  for (const auto& p : projections_) {
    if (p.bias.defined())
      at::parallel_for(0, tokens, 64, [&](std::int64_t begin, std::int64_t end) {
        kernels().add_to_rows(out + begin * width, width, p.bias.data_ptr<float>(), end - begin,
                              out_of(p));
      });
    out += out_of(p);
  }
}

void Product::forward(const torch::Tensor& x, const torch::Tensor& y) const {
  if (!fused_) {
    y.copy_(plain::linear(x, projections_));
    return;
  }
  const std::int64_t tokens = x.size(0), in = x.size(1), width = y.size(1);
  for (const auto& part : parts_of(projections_))
    gemm(tokens, part.out, in, {x.data_ptr<float>(), in},
         {part.weight, part.transposed ? part.out : in, !part.transposed}, 0,
         y.data_ptr<float>() + part.column, width);
  add_biases(y);
}

void Product::input_gradient(const torch::Tensor& dy, const torch::Tensor& dx) const {
  if (!fused_) return plain_input_gradient(dy, dx);
  const std::int64_t tokens = dy.size(0), width = dy.size(1), in = dx.size(1);
  float beta = 0;
  for (const auto& part : parts_of(projections_)) {
    gemm(tokens, in, part.out, {dy.data_ptr<float>() + part.column, width},
         {part.weight, part.transposed ? part.out : in, part.transposed}, beta,
         dx.data_ptr<float>(), in);
    beta = 1;
  }
}

Tensors Product::gradients_now(const torch::Tensor& x, const torch::Tensor& dy) const {
  if (!fused_) return plain_weight_gradients(x, dy);
  Tensors results = nn::weight_gradients(x, dy, projections_);
  for (auto& g : bias_gradients(dy, projections_)) results.push_back(g);
  return results;
}

// Torch's gradients reach the sink, and what waits, through the edges (destination.h's sunk()).
Tensors Product::weight_gradients(const torch::Tensor& x, const torch::Tensor& dy) const {
  WeightWork* later = fused_ ? weight_work() : nullptr;
  if (!later) return gradients_now(x, dy);
  later->add([x, dy, product = *this] { product.gradients_now(x, dy); });
  return Tensors(2 * projections_.size());
}

void Product::plain_input_gradient(const torch::Tensor& dy, const torch::Tensor& dx) const {
  std::int64_t column = 0;
  for (const auto& p : projections_) {
    const torch::Tensor part = dy.narrow(1, column, out_of(p));
    const torch::Tensor weight = p.transposed ? p.weight.t() : p.weight;
    if (column == 0)
      dx.copy_(at::mm(part, weight));
    else
      dx.addmm_(part, weight);
    column += out_of(p);
  }
}

Tensors Product::plain_weight_gradients(const torch::Tensor& x, const torch::Tensor& dy) const {
  Tensors results(2 * projections_.size());
  std::int64_t column = 0;
  for (std::size_t i = 0; i < projections_.size(); ++i) {
    const Projection& p = projections_[i];
    const torch::Tensor part = dy.narrow(1, column, out_of(p));
    if (p.weight.requires_grad())
      results[i] = p.transposed ? at::mm(x.t(), part) : at::mm(part.t(), x);
    if (p.bias.defined() && p.bias.requires_grad()) results[projections_.size() + i] = part.sum(0);
    column += out_of(p);
  }
  return results;
}

torch::Tensor linear(const torch::Tensor& x, const std::vector<Projection>& projections) {
  const Product product(x, projections);
  if (!product.fused()) return plain::linear(x, product.projections());
  const Tensors inputs = product.inputs(x);
  const bool history = wants_gradient(inputs), wants_input = history && x.requires_grad();
  const torch::NoGradGuard no_grad;
  torch::Tensor y = torch::empty({x.size(0), product.width()}, x.options());
  product.forward(x, y);
  if (history)
    record({y}, inputs, "linear", [x = x.detach(), product, wants_input](Tensors&& gradients) {
      const torch::Tensor dy = gradients[0].contiguous();
      Tensors results = product.weight_gradients(x, dy);
      results.insert(results.begin(), torch::Tensor());
      if (wants_input) {
        results[0] = torch::empty_like(x);
        product.input_gradient(dy, results[0]);
      }
      return results;
    });
  return y;
}

}  // namespace tutti::nn
