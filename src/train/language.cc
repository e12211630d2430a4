#include "train/language.h"

#include <vector>

#include "base/error.h"
#include "nn/hugging_face.h"
#include "nn/spread.h"
#include "plan/memory.h"
#include "recipe/show.h"

namespace tutti::train {
namespace {

// A folder says what a mixture of experts is, the recipe how it is trained.
void train_experts_as(const recipe::Moe& asked, recipe::Moe& moe) {
  moe.balance_bias_rate = asked.balance_bias_rate;
  moe.aux_loss = asked.aux_loss;
  moe.aux_scope = asked.aux_scope;
  moe.z_loss = asked.z_loss;
  moe.capacity_factor = asked.capacity_factor;
}

std::vector<recipe::Recompute> recompute_of(recipe::Recipe recipe, const recipe::Model& sized) {
  using recipe::Recompute;
  const auto layers = static_cast<std::size_t>(sized.layers);
  if (recipe.recompute == "none") return std::vector(layers, Recompute::none);
  if (recipe.recompute == "selective") return std::vector(layers, Recompute::selective);
  if (recipe.recompute == "full") return std::vector(layers, Recompute::full);
  recipe.model = sized;
  recipe.model.from.clear();
  return plan::recompute_of(recipe, plan::make_layout(recipe));
}

}  // namespace

LanguageTask::LanguageTask(std::shared_ptr<nn::LanguageModel> model, const recipe::Recipe& recipe)
    : model_(std::move(model)),
      sequence_(recipe.data.sequence),
      micro_(recipe.batch.micro),
      seed_(recipe.seed) {
  model_->set_recompute(recompute_of(recipe, model_->config()));
}

parallel::Loss LanguageTask::loss(const parallel::Batch& batch) {
  return run_stage({0, layers()}, {}, batch).loss;
}

parallel::StagedTask::Output LanguageTask::run_stage(const nn::Stage& stage,
                                                     const torch::Tensor& in,
                                                     const parallel::Batch& batch) {
  const nn::TokenBatch tokens{batch[0], batch[1], batch.size() > 2 ? batch[2] : torch::Tensor()};
  const nn::StageOutput out = model_->run_stage(stage, in, tokens);
  return {out.activation, {out.loss.sum, static_cast<double>(out.loss.tokens)}};
}

std::vector<std::int64_t> LanguageTask::activation_shape(const parallel::Batch& batch) const {
  const torch::Tensor positions = nn::spread().positions(batch[0].size(1));
  const std::int64_t here = positions.defined() ? positions.size(0) : batch[0].size(1);
  const std::int64_t tokens = batch[0].size(0) * here;
  return {nn::spread().stream_rows(tokens), model_->config().embed};
}

std::vector<std::string> LanguageTask::units(const nn::Stage& stage) const {
  const char* prefix = model_->config().family == "gpt2" ? "transformer.h." : "model.layers.";
  std::vector<std::string> units;
  for (std::int64_t layer = stage.begin; layer < stage.end; ++layer)
    units.push_back(str(prefix, layer));
  return units;
}

double LanguageTask::flops_per_sample() const {
  return model_->flops_per_token(sequence_) * static_cast<double>(sequence_);
}

std::string LanguageTask::description() const {
  recipe::Recipe recipe;
  recipe.model = model_->config();
  recipe.model.from.clear();
  return recipe::to_json(recipe, "model").dump();
}

bool LanguageTask::input_first(const std::string& parameter) const {
  return model_->config().family == "gpt2" && parameter.find(".c_") != std::string::npos;
}

void LanguageTask::at(std::int64_t step, std::int64_t micro_batch) {
  model_->set_dropout_key({seed_, static_cast<std::uint64_t>(step), micro_batch * micro_});
}

parallel::Batch TokenSamples::batch(std::int64_t first, std::int64_t count) {
  const std::int64_t sequence = sampler_.sequence();
  const auto size = static_cast<std::size_t>(sequence);
  std::vector<torch::Tensor> rows;
  for (int i = 0; i < (documents_ ? 3 : 2); ++i)
    rows.push_back(torch::empty({count, sequence}, torch::kInt));
  const auto row = [&](int kind, std::int64_t sample) {
    return std::span(
        rows[static_cast<std::size_t>(kind)].data_ptr<std::int32_t>() + sample * sequence, size);
  };
  for (std::int64_t s = 0; s < count; ++s)
    sampler_.fill(static_cast<std::uint64_t>(first + s), row(0, s), row(1, s),
                  documents_ ? row(2, s) : std::span<std::int32_t>());
  rows[0] = rows[0].to(torch::kLong);
  rows[1] = rows[1].to(torch::kLong);
  return rows;
}

std::shared_ptr<nn::LanguageModel> make_language_model(const recipe::Recipe& recipe,
                                                       std::int64_t vocab) {
  recipe::Model config = recipe.model;
  if (!config.from.empty()) {
    config = nn::read_config(recipe.model.from);
    config.dropout = recipe.model.dropout;
    train_experts_as(recipe.model.moe, config.moe);
    if (recipe.data.tokenizer == "bytes" && config.vocab > 512)
      throw ConfigError(
          {{"data.tokenizer", "", "bytes", str("has 256 ids, but the model has ", config.vocab),
            "name the tokenizer that the model was trained with"}});
  } else if (config.vocab == 0) {
    config.vocab = vocab;
  }
  config = nn::resolve(config, recipe.data.sequence);
  if (config.vocab < vocab)
    throw ConfigError(
        {{"model.vocab", "", str(config.vocab), str("the tokenizer has ids up to ", vocab - 1),
          str("set model.vocab to at least ", vocab, " or use a smaller tokenizer")}});
  auto model = nn::make_model(config);
  if (recipe.model.from.empty())
    nn::initialise(*model, recipe.seed);
  else
    nn::load_weights(*model, recipe.model.from);
  return model;
}

std::shared_ptr<nn::LanguageModel> make_language_model(const recipe::Recipe& recipe,
                                                       const checkpoint::Loader& checkpoint) {
  recipe::Recipe described = recipe;
  recipe::from_json(described, "model", checkpoint.state().at("model"), "the checkpoint");
  return nn::make_model(described.model);
}

}  // namespace tutti::train
