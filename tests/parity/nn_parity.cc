// What models.py compares with transformers, from a Hugging Face folder and raw int64 tokens:
//   nn_parity logits   FOLDER TOKENS BATCH SEQUENCE OUT          fp32 logits to OUT
//   nn_parity train    FOLDER TOKENS BATCH SEQUENCE OUT STEPS LR  AdamW, fp64; losses to OUT.
//                      TOKENS holds STEPS x BATCH x (SEQUENCE+1)
//   nn_parity generate FOLDER TOKENS 1 LENGTH OUT COUNT           greedy; int64 tokens to OUT
//   nn_parity export   FOLDER TO                                  loads and saves
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "nn/generate.h"
#include "nn/hugging_face.h"

namespace nn = tutti::nn;

namespace {

std::shared_ptr<nn::LanguageModel> load(const std::string& folder) {
  auto model = nn::make_model(nn::read_config(folder));
  nn::load_weights(*model, folder);
  return model;
}

torch::Tensor read_tokens(const std::string& path, std::vector<std::int64_t> shape) {
  const std::string content = tutti::read_file(path);
  return torch::from_blob(const_cast<char*>(content.data()), shape, torch::kLong).clone();
}

void write_raw(const std::string& path, const torch::Tensor& values) {
  const auto flat = values.contiguous();
  tutti::write_file(path, {static_cast<const char*>(flat.data_ptr()), flat.nbytes()});
}

torch::Tensor train(nn::LanguageModel& model, const torch::Tensor& tokens, double lr) {
  const std::int64_t steps = tokens.size(0), sequence = tokens.size(2) - 1;
  model.to(torch::kDouble);
  torch::optim::AdamW optimizer(
      model.parameters(),
      torch::optim::AdamWOptions(lr).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.1));
  torch::Tensor losses = torch::empty({steps}, torch::kDouble);
  for (std::int64_t s = 0; s < steps; ++s) {
    const auto loss = model.loss({tokens[s].narrow(1, 0, sequence).contiguous(),
                                  tokens[s].narrow(1, 1, sequence).contiguous(),
                                  {}});
    const auto mean = loss.sum / static_cast<double>(loss.tokens);
    losses[s] = mean.detach();
    optimizer.zero_grad();
    mean.backward();
    optimizer.step();
  }
  return losses;
}

int run(const std::vector<std::string>& args) {
  const auto model = load(args.at(1));
  if (args[0] == "export") {
    nn::save_pretrained(*model, args.at(2), {tutti::DType::f32, 100'000});
    return 0;
  }
  const auto batch = std::stoll(args.at(3)), sequence = std::stoll(args.at(4));
  if (args[0] == "logits") {
    torch::NoGradGuard no_grad;
    write_raw(args.at(5), model->logits(read_tokens(args[2], {batch, sequence})));
  } else if (args[0] == "train") {
    const auto tokens = read_tokens(args[2], {std::stoll(args.at(6)), batch, sequence + 1});
    write_raw(args.at(5), train(*model, tokens, std::stod(args.at(7))));
  } else {
    const auto prompt = read_tokens(args[2], {sequence});
    const std::vector<std::int64_t> ids(prompt.data_ptr<std::int64_t>(),
                                        prompt.data_ptr<std::int64_t>() + sequence);
    const auto made = nn::generate(*model, ids, std::stoll(args.at(6)), {.temperature = 0});
    write_raw(args.at(5), torch::tensor(made, torch::kLong));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  try {
    return run({argv + 1, argv + argc});
  } catch (const tutti::ConfigError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return tutti::exit_config;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return tutti::exit_world;
  }
}
