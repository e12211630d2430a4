#include "train/parity.h"

#include <unistd.h>

#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/fault.h"
#include "base/text.h"
#include "collective/group.h"
#include "data/tokenizer.h"
#include "parallel/engines.h"
#include "train/language.h"
#include "train/parity_compare.h"
#include "train/parity_layouts.h"
#include "train/parity_verdict.h"
#include "train/thread_ranks.h"

namespace tutti::train {
namespace {

// Weights, their gradients, two moments and the tensors they are compared with, on all ranks.
std::string cost_note(const Twin& twin, int ranks, std::int64_t steps, bool wide) {
  const double bytes = static_cast<double>(twin.parameters) * (wide ? 8 : 4) *
                       static_cast<double>(6 * ranks + 7 * steps);
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  if (bytes < memory / 2) return "";
  return str("all ranks live in this process: that takes about ", human_bytes(bytes),
             " besides activations, of ", human_bytes(memory),
             "; a model with fewer layers shows the same");
}

// ConfigError if the layout has no part in which the fault is.
void require_reached(const std::string& name, const std::vector<SubLayout>& singles) {
  for (const Fault& one : faults) {
    if (one.name != name) continue;
    const std::string axis(one.axis);
    for (const SubLayout& sub : singles)
      for (const std::string& has : sub.axes)
        if (has == axis || contains_axis(has, axis)) return;
    throw ConfigError({{"--with-fault", "", name, "does nothing in a layout without " + axis,
                        "docs/parity.md tells where each fault is"}});
  }
}

}  // namespace

struct Parity::One {
  ParitySubject subject;
  ParityOptions options;
  Twin twin = {};
  std::string asked = {};  // the recipe's precision

  ParityRun run(const SubLayout& layout) const;
};

Parity::Parity(ParitySubject subject, const ParityOptions& options)
    : one_(std::make_unique<One>(std::move(subject), options)) {
  recipe::Recipe& recipe = one_->subject.recipe;
  if (recipe.parallel.local_steps > 0)
    throw ConfigError({{"parallel.local_steps", "", str(recipe.parallel.local_steps),
                        "trains another model than one device, by intent",
                        "0 looks at the layout of an island: --set parallel.local_steps=0 --set "
                        "parallel.islands=1"}});
  if (recipe.parallel.compress != "none")
    throw ConfigError({{"parallel.compress", "", recipe.parallel.compress,
                        "sends other gradients than one device has, by intent",
                        "none looks at the layout: --set parallel.compress=none"}});
  one_->asked = std::exchange(recipe.precision, "fp32");  // fp64: the parameters' own type
  one_->twin = run_twin(one_->subject, one_->options);
}

Parity::~Parity() = default;

ParityRun Parity::One::run(const SubLayout& layout) const {
  ParityRun run;
  run.name = layout.name;
  run.axes = layout.axes;
  run.layout = describe_layout(layout.parallel);
  run.ranks = static_cast<int>(layout.parallel.workers);
  recipe::Recipe recipe = subject.recipe;
  recipe.parallel = layout.parallel;
  const double start = real_clock().now();
  Comparison comparison(twin, options);
  const auto type = options.precision == "fp64" ? torch::kDouble : torch::kFloat;
  std::vector<std::unique_ptr<parallel::Task>> tasks;
  for (int rank = 0; rank < run.ranks; ++rank) tasks.push_back(make_typed_task(subject, type));
  // Their groups outlive a rank that throws, so that its peers are told.
  std::vector<std::unique_ptr<parallel::Engine>> engines(tasks.size());
  const std::string failure =
      on_thread_ranks(run.ranks, [&](int rank, std::shared_ptr<collective::Group> group) {
        const auto at = static_cast<std::size_t>(rank);
        engines[at] = parallel::make_engine(recipe, *tasks[at], std::move(group));
        for (std::int64_t step = 0; step < options.steps; ++step) {
          const auto outcome = engines[at]->step(parity_input(recipe, twin, step));
          comparison.outcome(rank, step, outcome);
          comparison.gradients(rank, step, outcome, engines[at]->gradients());
          comparison.state(rank, step, engines[at]->state());
        }
      });
  if (failure.empty())
    comparison.finish(run);
  else
    run.error = failure;
  run.holds = run.holds && run.error.empty();
  run.seconds = real_clock().now() - start;
  return run;
}

ParityReport Parity::check(const recipe::Parallel& layout, const std::string& fault) const {
  ParityReport report;
  report.options = one_->options;
  if (!fault.empty()) report.options.fault = fault;
  report.recipe = one_->subject.recipe.name;
  report.parameters = one_->twin.parameters;
  const FaultScope scope(fault);
  recipe::Recipe recipe = one_->subject.recipe;
  if (one_->asked != "fp32")
    report.notes.push_back(
        str("the recipe's precision is ", one_->asked,
            "; rounding would hide what is looked for, so both sides compute in ",
            report.options.precision));
  recipe.parallel = layout;
  if (const std::string note = cost_note(one_->twin, static_cast<int>(layout.workers),
                                         one_->options.steps, one_->options.precision == "fp64");
      !note.empty())
    report.notes.push_back(note);
  const auto add = [&](const SubLayout& sub) {
    report.runs.push_back(one_->run(sub));
    if (one_->options.on_run) one_->options.on_run(report.runs.back());
  };
  const std::vector<SubLayout> singles = single_layouts(recipe, report.notes);
  require_reached(report.options.fault, singles);
  if (layout.workers == 1) report.notes.push_back("nothing is spread: set parallel.*");
  add({"the layout", {}, layout});
  for (const SubLayout& sub : singles) {
    if (describe_layout(sub.parallel) == report.runs[0].layout)
      report.runs[0].axes = sub.axes;  // it is all of the layout
    else
      add(sub);
  }
  if (no_part_differs(report))
    for (const SubLayout& sub : paired_layouts(recipe)) add(sub);
  for (const ParityRun& run : report.runs) report.holds = report.holds && run.holds;
  report.verdict = verdict_of(report);
  return report;
}

ParityReport check_parity(const recipe::Recipe& recipe, const ParityOptions& options) {
  const auto tokenizer = data::open_tokenizer(recipe.data.tokenizer);
  const data::Dataset dataset =
      data::open_dataset(recipe.data, *tokenizer, recipe.seed, {recipe.data.text_field, {}});
  TokenSamples samples(*dataset.train, recipe.data.document_mask);
  ParitySubject subject;
  const std::shared_ptr<nn::LanguageModel> first =
      make_language_model(recipe, tokenizer->vocab_size());
  subject.recipe = recipe;
  subject.recipe.model = first->config();
  subject.recipe.model.from.clear();
  subject.make_task = [&]() -> std::unique_ptr<parallel::Task> {
    auto model = nn::make_model(first->config());
    const torch::NoGradGuard no_grad;
    const auto weights = first->named_parameters();
    for (auto& named : model->named_parameters()) named.value().copy_(weights[named.key()]);
    const auto buffers = first->named_buffers();
    for (auto& named : model->named_buffers())
      if (named.value().defined()) named.value().copy_(buffers[named.key()]);
    return std::make_unique<LanguageTask>(model, recipe);
  };
  subject.batch = [&](std::int64_t step, std::int64_t id) {
    return samples.batch(step * recipe.batch.global + id * recipe.batch.micro, recipe.batch.micro);
  };
  return Parity(std::move(subject), options).check(recipe.parallel, options.fault);
}

}  // namespace tutti::train
