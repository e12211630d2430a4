// `tutti parity` holds where nothing is wrong, and finds every bug of base/fault.h: on the axis
// where it is, by the name of a tensor that it reaches.
#include <doctest/doctest.h>

#include <iostream>
#include <random>
#include <set>

#include "base/error.h"
#include "base/fault.h"
#include "nn/model.h"
#include "train/language.h"
#include "train/parity.h"
#include "train/parity_report.h"

namespace tutti::train {
namespace {

constexpr std::int64_t sequence = 12, vocab = 29;

recipe::Recipe base(const std::string& kind) {
  recipe::Recipe r;
  r.name = kind;
  recipe::Model& m = r.model;
  m.family = kind == "gpt2" ? "gpt2" : "llama";
  m.vocab = vocab, m.layers = 2, m.embed = 16, m.heads = 4, m.mlp = 20;
  if (kind == "gpt2") {
    m.tied = true;
    m.dropout = 0.2;
  } else {
    m.kv_heads = 2;
    m.qk_norm = true;
  }
  if (kind == "moe") {
    m.moe.experts = 4, m.moe.expert_mlp = 8;
    m.moe.aux_loss = 0.1, m.moe.z_loss = 0.01;
  }
  r.model = nn::resolve(m, sequence);
  r.data.sequence = sequence;
  r.batch = {8, 2};
  r.optimizer.clip = 0.5;
  r.parallel.engine = "mesh";
  return r;
}

// Ragged: some rows have few targets; two documents a row.
parallel::Batch batch_of(std::int64_t step, std::int64_t id) {
  std::mt19937 random(static_cast<unsigned>(step * 100 + id));
  const auto tokens = [&] {
    torch::Tensor t = torch::empty({2, sequence}, torch::kLong);
    for (std::int64_t i = 0; i < t.numel(); ++i)
      t.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(random() % vocab);
    return t;
  };
  torch::Tensor inputs = tokens(), targets = tokens();
  targets.narrow(1, 2, id).fill_(-1);
  torch::Tensor documents = torch::zeros({2, sequence}, torch::kInt);
  documents.narrow(1, 4 + id, sequence - 4 - id).fill_(1);
  return {inputs, targets, documents};
}

const Parity& parity_of(const std::string& kind, const std::string& precision = "fp64") {
  static std::map<std::string, std::unique_ptr<Parity>> made;
  auto& parity = made[kind + precision];
  if (parity) return *parity;
  ParitySubject subject;
  subject.recipe = base(kind);
  subject.make_task = [recipe = subject.recipe] {
    auto model = nn::make_model(recipe.model);
    nn::initialise(*model, 7);
    return std::make_unique<LanguageTask>(model, recipe);
  };
  subject.batch = batch_of;
  ParityOptions options;
  options.precision = precision;
  parity = std::make_unique<Parity>(subject, options);
  return *parity;
}

struct Degrees {
  int data = 1, zero = 0, tensor = 1, context = 1, pipeline = 1;
  bool sequence_parallel = false;
  std::string context_kind = "ring", schedule = "1f1b";
  int expert = 1, expert_tensor = 1;
};

recipe::Parallel layout(const Degrees& d) {
  recipe::Parallel p;
  p.engine = "mesh";
  p.workers = d.data * d.tensor * d.context * d.pipeline;
  p.zero = d.zero, p.tensor = d.tensor, p.context = d.context, p.pipeline = d.pipeline;
  p.sequence_parallel = d.sequence_parallel;
  p.context_kind = d.context_kind;
  p.pipeline_schedule = d.schedule;
  p.expert = d.expert, p.expert_tensor = d.expert_tensor;
  return p;
}

TEST_CASE("parity holds in every layout without a fault") {
  for (const char* kind : {"llama", "gpt2", "moe"}) {
    CAPTURE(kind);
    const ParityReport report = parity_of(kind).check(
        layout({.data = 2, .zero = 3, .tensor = 2, .context = 2, .sequence_parallel = true}));
    INFO(parity_text(report));
    CHECK(report.holds);
    CHECK(report.runs.size() == 6);  // the whole, data, zero, tensor, sequence, context
    CHECK(report.verdict.find("In parity") == 0);
  }
  const ParityReport report =
      parity_of("llama", "fp32").check(layout({.data = 2, .zero = 1, .pipeline = 2}));
  INFO(parity_text(report));
  CHECK(report.holds);
}

TEST_CASE("parity: experts dealt over ranks, alone and among all else") {
  const ParityReport report = parity_of("moe").check(layout({.data = 2,
                                                             .zero = 2,
                                                             .tensor = 2,
                                                             .sequence_parallel = true,
                                                             .expert = 2,
                                                             .expert_tensor = 2}));
  INFO(parity_text(report));
  CHECK(report.holds);
  CHECK(report.runs.size() == 7);  // the whole, data, zero, tensor, sequence, both of experts
}

TEST_CASE("parity: the engine of a recipe that spreads only data is held to it too") {
  recipe::Parallel p;
  p.workers = 2;
  const ParityReport report = parity_of("llama").check(p);
  INFO(parity_text(report));
  CHECK(report.holds);
  CHECK(report.runs.size() == 1);
}

struct Seeded {
  const char *fault, *kind;
  Degrees degrees;
  const char *axis, *names;  // of the verdict: the axis, and a tensor or a quantity
};

const Degrees tensor_context{.tensor = 2, .context = 2};
const Degrees sequence_data{.data = 2, .tensor = 2, .sequence_parallel = true};
const Degrees tensor_pipeline{.tensor = 2, .pipeline = 2};
const Degrees split_pipeline{.data = 2, .pipeline = 2, .schedule = "zb-h1"};
const Degrees data_context{.data = 2, .context = 2};
const Degrees experts{.data = 2, .tensor = 2, .expert = 2};
const Degrees sharded{.data = 2, .zero = 3, .tensor = 2};

const Seeded seeded[] = {
    {"row-parallel-sum", "llama", tensor_context, "Tensor parallelism", "loss"},
    {"input-gradient-sum", "llama", tensor_context, "Tensor parallelism", "gradient of"},
    {"uncut-gradient", "llama", sequence_data, "Tensor parallelism", "norm.weight"},
    {"uncut-norm", "llama", tensor_context, "Tensor parallelism", "norm by"},
    {"vocabulary-sum", "llama", tensor_context, "Tensor parallelism", "loss"},
    {"vocabulary-max", "llama", tensor_context, "Tensor parallelism", "loss"},
    {"dropout-rows", "gpt2", sequence_data, "Tensor parallelism with sequence parallel", "loss"},
    {"router-loss-share", "moe", sequence_data, "Tensor parallelism", "router.weight"},
    {"rope-offset", "llama", tensor_context, "Context parallelism", "loss"},
    {"ring-rescale", "llama", tensor_context, "Context parallelism", "loss"},
    {"ring-home", "llama", data_context, "Context parallelism", "gradient of"},
    {"gather-gradient",
     "llama",
     {.tensor = 2, .context = 2, .context_kind = "gather"},
     "Context parallelism",
     "gradient of"},
    {"ulysses-heads",
     "llama",
     {.data = 2, .context = 2, .context_kind = "ulysses"},
     "Context parallelism",
     "loss"},
    {"document-edge", "llama", tensor_context, "Context parallelism", "loss"},
    {"dropout-position", "gpt2", data_context, "Context parallelism", "loss"},
    {"context-gradient", "llama", tensor_context, "Context parallelism", "gradient of"},
    {"context-norm", "llama", tensor_context, "Context parallelism", "norm by"},
    {"expert-load", "moe", data_context, "Context parallelism", "loss"},
    {"expert-way-home", "moe", experts, "Expert parallelism", "loss"},
    {"expert-norm", "moe", experts, "Expert parallelism", "norm by"},
    {"tied-twice", "gpt2", tensor_pipeline, "Pipeline parallelism", "wte.weight"},
    {"tied-once", "gpt2", tensor_pipeline, "Pipeline parallelism", "wte.weight"},
    {"split-weights", "llama", split_pipeline, "Pipeline parallelism", "gradient of"},
    {"stage-loss", "moe", tensor_pipeline, "Pipeline parallelism", "loss"},
    {"data-gradient", "llama", data_context, "Data parallelism", "gradient of"},
    {"last-micro-batch", "llama", data_context, "Data parallelism", "gradient of"},
    {"local-count", "llama", data_context, "Data parallelism", "targets"},
    {"replica-norm", "llama", data_context, "Data parallelism", "norm by"},
    {"stale-gather", "llama", sharded, "ZeRO", "passes do not see after an update"},
    {"bias-correction", "llama", sharded, "ZeRO", "update of"},
    {"shard-boundary", "llama", sharded, "ZeRO", "gradient of"},
};

TEST_CASE("parity finds every seeded bug and names its axis and what it spoils") {
  std::set<std::string> tried;
  for (const Seeded& s : seeded) {
    const ParityReport report = parity_of(s.kind).check(layout(s.degrees), s.fault);
    if (std::getenv("TUTTI_PARITY_TRACE")) std::cerr << parity_text(report) << std::endl;
    INFO(parity_text(report));
    CHECK_FALSE(report.holds);
    CHECK_FALSE(report.runs[0].holds);
    CHECK(report.verdict.starts_with(s.axis + std::string(" alone (")));
    CHECK(report.verdict.find(s.names) != std::string::npos);
    CHECK(report.verdict.find("alone", report.verdict.find("alone") + 1) == std::string::npos);
    tried.insert(s.fault);
  }
  for (const Fault& fault : faults)
    CHECK_MESSAGE(tried.contains(std::string(fault.name)), fault.name);
}

TEST_CASE("parity: the report is whole as a page, and escapes what it is told") {
  ParityReport report;
  report.recipe = "<a & b>";
  ParityRun run;
  run.name = "the layout", run.error = "rank 0: \"x\" < y", run.holds = false;
  report.runs.push_back(run);
  report.verdict = "a < b";
  const std::string html = parity_html(report);
  CHECK(html.find("&lt;a &amp; b&gt;") != std::string::npos);
  CHECK(html.find("<a &") == std::string::npos);
  CHECK(html.find("&quot;x&quot; &lt; y") != std::string::npos);
  CHECK(html.find("http") == std::string::npos);
}

TEST_CASE("parity: a fault that does not exist is refused with the nearest name") {
  CHECK_THROWS_WITH_AS(parity_of("llama").check(layout({.data = 2}), "tied-twise"),
                       doctest::Contains("tied-twice"), ConfigError);
}

}  // namespace
}  // namespace tutti::train
