// Products whose weights are cut over ranks: those of linear.cc, on the runs of rows of an
// exchange.
#include <utility>

#include "nn/deferred.h"
#include "nn/destination.h"
#include "nn/plain.h"
#include "nn/product.h"
#include "nn/row_exchange.h"

namespace tutti::nn {
namespace {

torch::Tensor rows_of(const torch::Tensor& x, Span rows) {
  return x.narrow(0, rows.begin, rows.size);
}

}  // namespace

torch::Tensor RowExchange::gathered(const torch::Tensor& x, const Use& use) {
  use({0, rows_}, x);
  return x;
}

torch::Tensor RowExchange::summed(std::int64_t features, const torch::TensorOptions& options,
                                  const Make& make, const std::function<void()>& meanwhile) {
  const torch::Tensor out = torch::empty({rows_, features}, options);
  make({0, rows_}, out);
  meanwhile();
  return out;
}

torch::Tensor linear(const torch::Tensor& x, const std::vector<Projection>& projections,
                     std::shared_ptr<RowExchange> exchange, CutAlong cut) {
  const Product product(x, projections);
  const Tensors inputs = product.inputs(x);
  const bool history = wants_gradient(inputs), wants_input = history && x.requires_grad();
  const bool gathers = cut == CutAlong::outputs;
  const torch::NoGradGuard no_grad;
  torch::Tensor seen = x.detach(), y;
  if (gathers) {
    y = torch::empty({exchange->rows(), product.width()}, x.options());
    seen = exchange->gathered(seen, [&](Span rows, const torch::Tensor& part) {
      product.forward(part, rows_of(y, rows));
    });
  } else {
    const auto make = [&](Span rows, const torch::Tensor& out) {
      product.forward(rows_of(seen, rows), out);
    };
    y = exchange->summed(product.width(), x.options(), make, [] {});
  }
  if (!history) return y;
  record({y}, inputs, "linear", [=](Tensors&& gradients) -> Tensors {
    torch::Tensor dy = gradients[0].contiguous(), dx;
    Tensors results;
    const auto weights = [&] { results = product.weight_gradients(seen, dy); };
    if (gathers && wants_input) {
      const auto make = [&](Span rows, const torch::Tensor& out) {
        product.input_gradient(rows_of(dy, rows), out);
      };
      dx = exchange->summed(seen.size(1), dy.options(), make, weights);
    } else if (gathers) {
      weights();
    } else {
      if (wants_input) dx = torch::empty_like(seen);
      dy = exchange->gathered(dy, [&](Span rows, const torch::Tensor& part) {
        if (wants_input) product.input_gradient(part, rows_of(dx, rows));
      });
      weights();
    }
    results.insert(results.begin(), dx);
    return results;
  });
  return y;
}

}  // namespace tutti::nn
