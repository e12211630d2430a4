// Two trainings in one program: the second begins with what the first learnt, in the launcher and
// in the workers. Prints the held-out losses of both and the first weight at the end.
#include <iostream>

#include "train/fit.h"

using namespace tutti;

int main(int argc, char** argv) {
  auto net = std::make_shared<torch::nn::LinearImpl>(2, 1);
  {
    torch::NoGradGuard no_grad;
    net->weight.fill_(0.5);
    net->bias.zero_();
  }
  auto task = train::make_task(net, [](torch::nn::LinearImpl& line, const parallel::Batch& batch) {
    const auto wrong = line.forward(batch[0]).squeeze(1) - batch[1];
    return parallel::Loss{wrong.square().sum(), static_cast<double>(batch[1].size(0))};
  });
  const auto x = torch::arange(128).view({64, 2}).to(torch::kFloat).mul(0.37).sin();
  train::TensorSamples samples({x, x.sum(1) * 3});
  recipe::Recipe recipe;
  recipe.name = "line";
  recipe.duration = {20, recipe::Duration::Unit::steps};
  recipe.batch = {16, 8};
  recipe.optimizer.lr = 0.1;
  recipe.optimizer.weight_decay = 0;
  recipe.parallel.workers = 2;
  recipe.parallel.threads = 1;
  recipe.logging.report = false;
  train::FitOptions options;
  options.quiet = true;
  const auto first = train::fit(argc, argv, recipe, *task, samples, &samples, {}, options);
  const auto second = train::fit(argc, argv, recipe, *task, samples, &samples, {}, options);
  std::cout << "first " << *first.validation_loss << " second " << *second.validation_loss
            << " weight " << net->weight[0][0].item<float>() << std::endl;
}
