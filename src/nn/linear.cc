#include <ATen/Parallel.h>

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

std::int64_t width_of(const std::vector<Projection>& projections) {
  std::int64_t width = 0;
  for (const auto& p : projections) width += out_of(p);
  return width;
}

torch::Tensor forward(const torch::Tensor& x, const std::vector<Projection>& projections) {
  const std::int64_t tokens = x.size(0), in = x.size(1), width = width_of(projections);
  torch::Tensor y = torch::empty({tokens, width}, x.options());
  float* out = y.data_ptr<float>();
  for (const auto& part : parts_of(projections))
    gemm(tokens, part.out, in, {x.data_ptr<float>(), in},
         {part.weight, part.transposed ? part.out : in, !part.transposed}, 0, out + part.column,
         width);
  std::int64_t column = 0;
  for (const auto& p : projections) {
    if (p.bias.defined())
      at::parallel_for(0, tokens, 64, [&](std::int64_t begin, std::int64_t end) {
        kernels().add_to_rows(out + begin * width + column, width, p.bias.data_ptr<float>(),
                              end - begin, out_of(p));
      });
    column += out_of(p);
  }
  return y;
}

torch::Tensor input_gradient(const torch::Tensor& dy, const std::vector<Projection>& projections,
                             std::int64_t in) {
  const std::int64_t tokens = dy.size(0), width = dy.size(1);
  torch::Tensor dx = torch::empty({tokens, in}, dy.options());
  float beta = 0;
  for (const auto& part : parts_of(projections)) {
    gemm(tokens, in, part.out, {dy.data_ptr<float>() + part.column, width},
         {part.weight, part.transposed ? part.out : in, part.transposed}, beta,
         dx.data_ptr<float>(), in);
    beta = 1;
  }
  return dx;
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

torch::Tensor linear(const torch::Tensor& x, const std::vector<Projection>& projections) {
  if (!fusable(x, projections)) {
    std::vector<Projection> through;
    for (const auto& p : projections)
      through.push_back({sunk(p.weight), sunk(p.bias), p.transposed});
    return plain::linear(x, through);
  }
  Tensors inputs{x};
  for (const auto& p : projections) inputs.push_back(p.weight);
  for (const auto& p : projections) inputs.push_back(p.bias);
  const bool history = wants_gradient(inputs), wants_input = history && x.requires_grad();
  torch::NoGradGuard no_grad;
  torch::Tensor y = forward(x, projections);
  if (history)
    record({y}, inputs, "linear", [x = x.detach(), projections, wants_input](Tensors&& gradients) {
      const torch::Tensor dy = gradients[0].contiguous();
      Tensors results{torch::Tensor()};
      if (WeightWork* later = weight_work()) {
        later->add([x, dy, projections] {
          weight_gradients(x, dy, projections);
          bias_gradients(dy, projections);
        });
        results.resize(1 + 2 * projections.size());
      } else {
        for (auto& g : weight_gradients(x, dy, projections)) results.push_back(g);
        for (auto& g : bias_gradients(dy, projections)) results.push_back(g);
      }
      if (wants_input) results[0] = input_gradient(dy, projections, x.size(1));
      return results;
    });
  return y;
}

}  // namespace tutti::nn
