// A model of your own, written once for one device and spread by its recipe: over data, tensor and
// pipeline ranks, with ZeRO. It names the axes of its parameters and computes with the typed
// operations of nn/value.h; what has to be sent, they send.
//   ./dev build release example_spread_net
//   build/release/bin/example_spread_net                  # one process
//   build/release/bin/example_spread_net tensor=2         # the same numbers, spread
//   build/release/bin/example_spread_net pipeline=2 zero=1 data=2
#include <cstdlib>
#include <iostream>
#include <string>

#include "nn/value.h"
#include "parallel/staged_task.h"
#include "train/fit.h"

using namespace tutti;

constexpr std::int64_t embed = 32, wide = 96, classes = 10, blocks = 4;

struct Net : torch::nn::Module {
  Net() {
    const auto make = [&](const std::string& name, std::int64_t rows, std::int64_t columns) {
      return register_parameter(
          name, torch::randn({rows, columns}) / std::sqrt(static_cast<double>(columns)));
    };
    in = make("in", embed, 2);
    for (std::int64_t i = 0; i < blocks; ++i) {
      norm.push_back(register_parameter("norm" + std::to_string(i), torch::ones({embed})));
      up.push_back(make("up" + std::to_string(i), wide, embed));
      down.push_back(make("down" + std::to_string(i), embed, wide));
    }
    last_norm = register_parameter("last_norm", torch::ones({embed}));
    head = make("head", classes, embed);
  }
  torch::Tensor in, last_norm, head;
  std::vector<torch::Tensor> norm, up, down;
};

class NetTask : public parallel::StagedTask {
 public:
  torch::nn::Module& module() override { return net_; }
  std::int64_t layers() const override { return blocks; }
  parallel::Loss loss(const parallel::Batch& batch) override {
    return run_stage({0, blocks}, {}, batch).loss;
  }

  Output run_stage(const nn::Stage& stage, const torch::Tensor& in,
                   const parallel::Batch& batch) override {
    const std::int64_t rows = batch[0].size(0);
    nn::Value x{in, rows, nn::spread().stream()}, delta;
    if (stage.first) x = nn::to_stream(torch::matmul(batch[0], net_.in.t()), net_.in);
    const auto normed = [&](const torch::Tensor& weight) {
      auto [sum, value] = nn::add_norm(x, delta, {weight, {}}, 1e-5);
      x = sum;
      return value;
    };
    for (auto i = static_cast<std::size_t>(stage.begin); i < static_cast<std::size_t>(stage.end);
         ++i) {
      const nn::Value hidden = nn::linear(normed(net_.norm[i]), {{net_.up[i], {}}});
      delta = nn::linear(nn::gelu(hidden), {{net_.down[i], {}}});
    }
    if (!stage.last) return {delta.defined() ? x.tensor + delta.tensor : x.tensor, {}};
    const torch::Tensor sum =
        nn::head_loss(normed(net_.last_norm), net_.head, batch[1], nn::Use::only);
    return {{}, {sum, static_cast<double>(rows)}};
  }

  bool in_stage(const nn::Stage& stage, const std::string& parameter) const override {
    if (parameter == "in") return stage.first;
    if (parameter == "head" || parameter == "last_norm") return stage.last;
    const std::int64_t block = parameter.back() - '0';
    return stage.begin <= block && block < stage.end;
  }

  std::vector<std::int64_t> activation_shape(const parallel::Batch& batch) const override {
    return {nn::spread().stream_rows(batch[0].size(0)), embed};
  }

  // Names of your own; parallel.rules says which are cut over the tensor ranks.
  parallel::Axes axes() const override {
    parallel::Axes axes;
    axes.of["head"] = {"class", "embed"};
    for (std::int64_t i = 0; i < blocks; ++i) {
      axes.of["up" + std::to_string(i)] = {"wide", "embed"};
      axes.of["down" + std::to_string(i)] = {"embed", "wide"};
    }
    return axes;
  }

 private:
  Net net_;
};

// Points of a plane, in ten sectors that turn with the distance.
train::TensorSamples sectors(std::int64_t count, double shift) {
  const auto at = torch::arange(count, torch::kDouble) + shift;
  const auto radius = (at * 0.618034).frac() * 2, angle = (at * 0.754878).frac();
  const auto which = ((angle + radius * 0.2).frac() * classes).floor().clamp(0, classes - 1);
  const auto x =
      torch::stack({(angle * 2 * M_PI).cos() * radius, (angle * 2 * M_PI).sin() * radius}, 1);
  return train::TensorSamples({x.to(torch::kFloat), which.to(torch::kLong)});
}

int main(int argc, char** argv) {
  recipe::Recipe recipe;
  recipe.name = "spread_net";
  recipe.duration = {300, recipe::Duration::Unit::steps};
  recipe.batch = {64, 8};
  recipe.optimizer.lr = 3e-3;
  recipe.evaluation.every = {100, recipe::Duration::Unit::steps};
  recipe.logging.every = {100, recipe::Duration::Unit::steps};
  recipe::Parallel& p = recipe.parallel;
  p.engine = "mesh";
  p.threads = 1;
  p.rules = "wide=tensor class=tensor";
  std::int64_t data = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i], name = word.substr(0, word.find('='));
    const std::string value = word.substr(std::min(word.size(), name.size() + 1));
    std::int64_t* number = name == "tensor"     ? &p.tensor
                           : name == "pipeline" ? &p.pipeline
                           : name == "context"  ? &p.context
                           : name == "zero"     ? &p.zero
                           : name == "data"     ? &data
                                                : nullptr;
    if (number) {
      *number = std::atoi(value.c_str());
    } else if (name == "rules") {
      p.rules = value;
    } else {
      std::cerr << "usage: " << argv[0] << " [tensor=N] [pipeline=N] [context=N] [zero=N] [data=N] "
                << "[rules='wide=tensor ...']\n";
      return exit_config;
    }
  }
  p.workers = data * p.tensor * p.pipeline * p.context;
  try {
    torch::manual_seed(1);
    NetTask task;
    auto training = sectors(2000, 0), held_out = sectors(400, 0.5);
    const auto result = train::fit(argc, argv, recipe, task, training, &held_out);
    std::cout << "held-out loss " << result.validation_loss.value_or(0) << "\n";
  } catch (const ConfigError& error) {
    std::cerr << error.what() << "\n";
    return exit_config;
  } catch (const WorldError& error) {
    std::cerr << error.what() << "\n";
    return exit_world;
  }
}
