// A module, a loss and data of your own, trained on two processes: which of two spirals is a point
// on?
//   ./dev build release example_two_spirals
//   build/release/bin/example_two_spirals
// A copy of this file beside it, my.cc, is built the same way as example_my.
#include <cmath>
#include <iostream>

#include "train/fit.h"

using namespace tutti;

struct Net : torch::nn::Module {
  Net() {
    hidden = register_module("hidden", torch::nn::Linear(2, 64));
    deep = register_module("deep", torch::nn::Linear(64, 64));
    out = register_module("out", torch::nn::Linear(64, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out(torch::silu(deep(torch::silu(hidden(x)))));
  }
  torch::nn::Linear hidden{nullptr}, deep{nullptr}, out{nullptr};
};

train::TensorSamples spirals(std::int64_t count, double shift) {
  const auto which = torch::arange(count) % 2;
  const auto angle = (torch::arange(count) / 2 + shift) * (4 * M_PI / static_cast<double>(count));
  const auto sign = 1 - 2 * which;
  const auto x = torch::stack({angle.cos() * angle * sign, angle.sin() * angle * sign}, 1) / 6;
  return train::TensorSamples({x.to(torch::kFloat), which});
}

// Callbacks run on every rank; what they print is in the run's logs/.
struct PrintLoss : train::Callback {
  void on_evaluation(std::int64_t step, double loss) override {
    std::cout << "after step " << step << " the held-out loss is " << loss << std::endl;
  }
};

int main(int argc, char** argv) {
  torch::manual_seed(1);
  auto net = std::make_shared<Net>();
  auto task = train::make_task(net, [](Net& module, const parallel::Batch& batch) {
    const auto logits = module.forward(batch[0]);
    const auto sum = torch::nn::functional::cross_entropy(
        logits, batch[1], torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
    return parallel::Loss{sum, static_cast<double>(batch[1].size(0))};
  });

  recipe::Recipe recipe;
  recipe.name = "two_spirals";
  recipe.duration = {400, recipe::Duration::Unit::steps};
  recipe.batch = {64, 16};
  recipe.optimizer.lr = 1e-2;
  recipe.parallel.workers = 2;
  recipe.evaluation.every = {50, recipe::Duration::Unit::steps};
  recipe.logging.every = {50, recipe::Duration::Unit::steps};

  auto training = spirals(1000, 0.0), held_out = spirals(200, 0.25);
  const auto result =
      train::fit(argc, argv, recipe, *task, training, &held_out,
                 {std::make_shared<PrintLoss>(), std::make_shared<train::EarlyStop>(3)});
  std::cout << result.steps << " steps, held-out loss " << result.validation_loss.value_or(0)
            << "\n";
}
