#include "train/restore.h"

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/loader.h"
#include "events/run_folder.h"
#include "recipe/parse.h"
#include "train/language.h"

namespace tutti::train {
namespace {

fs::path checkpoint_of(const fs::path& folder, std::optional<std::int64_t> step) {
  const fs::path checkpoints = folder / "checkpoints";
  if (step) {
    const fs::path path = checkpoints / checkpoint::step_folder_name(*step);
    if (fs::exists(path)) return path;
    throw ConfigError({{"--checkpoint", "", str(*step), "the run has no checkpoint of this step",
                        "there are:\n" + checkpoint::list_text(checkpoints)}});
  }
  const auto found = checkpoint::latest(checkpoints);
  for (const std::string& refused : found.refused) log_warning(refused);
  if (found.path.empty())
    throw ConfigError({{"", folder.string(), "", "has no whole checkpoint yet", "train it first"}});
  return found.path;
}

}  // namespace

recipe::Recipe recipe_of(const fs::path& folder) {
  const events::RunFolder run = events::open_run(folder);
  recipe::Recipe recipe = recipe::parse(read_file(run.recipe()), run.recipe().string(), {}, folder,
                                        recipe::Inputs::none)
                              .recipe;
  if (fs::exists(run.tokenizer())) recipe.data.tokenizer = run.tokenizer();
  return recipe;
}

Restored restore(const fs::path& folder, std::optional<std::int64_t> step) {
  Restored restored;
  restored.recipe = recipe_of(folder);
  const checkpoint::Loader loader(checkpoint_of(folder, step));
  restored.step = loader.step();
  restored.tokenizer = data::open_tokenizer(restored.recipe.data.tokenizer);
  restored.model = make_language_model(restored.recipe, loader);
  torch::NoGradGuard no_grad;
  const auto read = [&](const std::string& name, const torch::Tensor& value) {
    loader.read("model/" + name, whole(value.sizes().vec()),
                static_cast<std::byte*>(value.data_ptr()));
  };
  for (auto& named : restored.model->named_parameters()) read(named.key(), named.value());
  for (auto& named : restored.model->named_buffers()) read(named.key(), named.value());
  restored.model->eval();
  return restored;
}

Evaluation evaluate(Restored& restored) {
  const recipe::Recipe& recipe = restored.recipe;
  const data::Dataset dataset = data::open_dataset(recipe.data, *restored.tokenizer, recipe.seed,
                                                   {recipe.data.text_field, {}});
  if (!dataset.validation)
    throw ConfigError({{"data.validation", "", "", "is missing: there is nothing to evaluate on",
                        "--set data.validation=PATH"}});
  TokenSamples samples(*dataset.validation, recipe.data.document_mask);
  LanguageTask task(restored.model, recipe);
  torch::InferenceMode inference;
  Evaluation total;
  const std::int64_t count = samples.epoch_size();
  for (std::int64_t first = 0; first < count; first += recipe.batch.micro) {
    const auto loss = task.loss(samples.batch(first, std::min(recipe.batch.micro, count - first)));
    total.loss += loss.sum.item<double>();
    total.targets += loss.count;
  }
  total.loss /= std::max(1.0, total.targets);
  total.nats_per_byte = total.loss / dataset.bytes_per_token;
  return total;
}

}  // namespace tutti::train
