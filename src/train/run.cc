#include "train/run.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "base/version.h"
#include "checkpoint/loader.h"
#include "data/tokenizer.h"
#include "nn/generate.h"
#include "parallel/engines.h"
#include "plan/memory.h"
#include "train/language.h"
#include "train/recorder.h"
#include "train/restore.h"

namespace tutti::train {
namespace {

Json facts_of(const recipe::Recipe& recipe, const collective::Group& group,
              const parallel::Engine& engine) {
  return {{"name", recipe.name},
          {"parameters", engine.parameter_count()},
          {"threads", recipe.parallel.threads},
          {"transport", group.transport()},
          {"engine", recipe.parallel.engine},
          {"precision", recipe.precision},
          {"tutti", version},
          {"torch", TORCH_VERSION},
          {"cpu", at::get_cpu_capability()}};
}

std::string write_sample(nn::LanguageModel& model, const data::Tokenizer& tokenizer,
                         const recipe::Recipe& recipe) {
  std::vector<std::int64_t> prompt;
  for (const std::int32_t id : tokenizer.encode(recipe.logging.sample_prompt)) prompt.push_back(id);
  if (prompt.empty()) return "";
  const auto ids = nn::generate(model, prompt, recipe.logging.sample_tokens,
                                {0.8, 0, 0.95, recipe.seed, tokenizer.vocab_size()});
  const std::vector<std::int32_t> text(ids.begin(), ids.end());
  return recipe.logging.sample_prompt + tokenizer.decode(text);
}

// What recompute: auto has chosen, for the one who watches.
void tell_recompute(const recipe::Recipe& sized, const nn::LanguageModel& model) {
  if (sized.recompute != "auto") return;
  int selective = 0, full = 0;
  for (std::size_t layer = 0; layer < static_cast<std::size_t>(sized.model.layers); ++layer) {
    if (model.recompute(layer) == recipe::Recompute::selective) ++selective;
    if (model.recompute(layer) == recipe::Recompute::full) ++full;
  }
  const plan::Layout layout = plan::make_layout(sized);
  double most = 0;
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank)
    most = std::max(most, plan::memory_of(sized, layout, rank).total());
  log_info(str("recompute: auto: of ", sized.model.layers, " layers ", full, " whole and ",
               selective, " selectively; about ", std::llround(most),
               " bytes on the fullest worker, memory_budget = ", sized.memory_budget));
}

// A resumed run of model.from no longer needs that folder.
std::shared_ptr<nn::LanguageModel> model_of(const recipe::Recipe& recipe, const Worker& worker,
                                            std::int64_t vocab) {
  if (worker.resume && !recipe.model.from.empty())
    if (const auto found = checkpoint::latest(worker.folder / "checkpoints"); !found.path.empty())
      return make_language_model(recipe, checkpoint::Loader(found.path, false));
  return make_language_model(recipe, vocab);
}

}  // namespace

// recipe -> mesh -> engine -> step -> events + checkpoint.
Result run(const recipe::Recipe& recipe, const Worker& worker) {
  const auto tokenizer = data::open_tokenizer(recipe.data.tokenizer);
  const data::Dataset dataset =
      data::open_dataset(recipe.data, *tokenizer, recipe.seed, {recipe.data.text_field, {}});
  TokenSamples samples(*dataset.train, recipe.data.document_mask);
  std::unique_ptr<TokenSamples> validation;
  if (dataset.validation)
    validation = std::make_unique<TokenSamples>(*dataset.validation, recipe.data.document_mask);

  LanguageTask task(model_of(recipe, worker, tokenizer->vocab_size()), recipe);
  const auto group = open_group(worker, recipe.parallel);
  recipe::Recipe sized = recipe;  // every size of the model is known now
  sized.model = task.model().config();
  if (worker.rank == 0) tell_recompute(sized, task.model());
  const auto engine = parallel::make_engine(sized, task, group);

  const auto recorder =
      std::make_shared<Recorder>(worker, recipe, facts_of(recipe, *group, *engine));
  Trainer trainer(recipe, worker, *engine, task, samples, validation.get(), {recorder}, group);
  const Result result = trainer.run();

  if (worker.rank == 0 && !result.interrupted && recipe.logging.sample_tokens > 0)
    recorder->sample(result.steps, write_sample(*restore(worker.folder).model, *tokenizer, recipe));
  const double tokens =
      static_cast<double>(result.steps * recipe.batch.global * recipe.data.sequence);
  recorder->done(result, {{"name", recipe.name},
                          {"tokens", tokens},
                          {"parameters", engine->parameter_count()},
                          {"nats_per_byte", result.validation_loss ? Json(*result.validation_loss /
                                                                          dataset.bytes_per_token)
                                                                   : Json()}});
  return result;
}

}  // namespace tutti::train
