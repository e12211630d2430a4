#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>

#include "base/json.h"
#include "base/rng.h"
#include "base/text.h"
#include "recipe/check.h"
#include "recipe/fields.h"
#include "recipe/parse.h"
#include "recipe/quantity.h"
#include "recipe/show.h"

using namespace tutti;
using namespace tutti::recipe;

namespace {

using Unit = Duration::Unit;

Parsed read(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  return parse("data: {train: a.txt}\n" + yaml, "r.yaml", overrides, ".", Inputs::none);
}

void put(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool noted(const Parsed& parsed, const std::string& field, const std::string& why) {
  for (const Violation& note : parsed.notes)
    if (note.field == field && has(note.rule, why)) return true;
  return false;
}

// Names are promised to users: a change here breaks recipes.
constexpr const char* frozen =
    "name seed duration precision recompute memory_budget reproducible on_nan model.family "
    "model.from "
    "model.vocab "
    "model.layers model.embed model.heads model.kv_heads model.head_dim model.mlp model.context "
    "model.norm_eps model.rope_theta model.rope_scaling.kind model.rope_scaling.factor "
    "model.rope_scaling.low_frequency_factor model.rope_scaling.high_frequency_factor "
    "model.rope_scaling.original_context model.tied model.qkv_bias model.qk_norm "
    "model.qk_norm_whole model.dropout model.init_std model.moe.experts "
    "model.moe.experts_per_token model.moe.expert_mlp model.moe.shared_experts "
    "model.moe.shared_gate model.moe.dense_layers model.moe.router model.moe.normalise "
    "model.moe.router_scale model.moe.groups model.moe.groups_per_token "
    "model.moe.balance_bias_rate model.moe.aux_loss model.moe.aux_scope model.moe.z_loss "
    "model.moe.capacity_factor data.train data.validation data.validation_fraction data.tokenizer "
    "data.sequence data.order data.document_mask data.text_field batch.global batch.micro "
    "optimizer.name optimizer.lr optimizer.beta1 optimizer.beta2 optimizer.eps "
    "optimizer.weight_decay optimizer.momentum optimizer.nesterov optimizer.matrix_lr "
    "optimizer.clip optimizer.state optimizer.outer_lr optimizer.outer_momentum "
    "optimizer.outer_type optimizer.outer_mix schedule.kind "
    "schedule.warmup schedule.decay "
    "schedule.min_ratio "
    "parallel.workers parallel.engine parallel.threads parallel.transport parallel.encrypt "
    "parallel.bucket_bytes "
    "parallel.overlap parallel.zero parallel.shard parallel.prefetch "
    "parallel.reshard_after_forward parallel.tensor parallel.sequence_parallel "
    "parallel.tensor_chunks parallel.context "
    "parallel.context_kind parallel.ulysses parallel.pipeline parallel.pipeline_schedule "
    "parallel.pipeline_chunks parallel.pipeline_cut parallel.expert parallel.expert_tensor "
    "parallel.rules parallel.watch_divergence parallel.islands parallel.local_steps "
    "parallel.fragments parallel.overlap_steps "
    "parallel.compress parallel.compress_rank parallel.compress_ratio parallel.compress_after "
    "parallel.timeout checkpoint.every checkpoint.keep_last "
    "checkpoint.keep_every "
    "checkpoint.asynchronous evaluation.every evaluation.batches logging.every "
    "logging.tensorboard logging.report logging.sample_prompt logging.sample_tokens";

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : stream_(seed, "recipe_test") {}
  std::uint64_t below(std::uint64_t bound) { return stream_.below(bound, next_++); }
  double uniform() { return stream_.uniform(next_++); }

 private:
  RandomStream stream_;
  std::uint64_t next_ = 0;
};

std::string random_text(Dice& dice) {
  const std::string pieces[] = {
      "a",  " ",  "\n", "\t", "\"",   "'",    "\\", "#",   ": ", "- ",       "{",
      "]",  "%",  "é",  "😀", "\x7f", "\x01", "on", "1e5", "~",  "\xC2\x85", "\xE2\x80\xA8",
      "&x", "*x", "!t", "\r"};
  std::string text;
  for (std::uint64_t n = dice.below(8); n > 0; --n) text += pieces[dice.below(std::size(pieces))];
  return text;
}

std::string random_value(const Field& field, Dice& dice) {
  const double amount = static_cast<double>(1 + dice.below(100000));
  switch (field.kind) {
    case Kind::text:
      return random_text(dice);
    case Kind::choice:
      return field.choices[dice.below(field.choices.size())];
    case Kind::onoff:
      return dice.below(2) ? "yes" : "no";
    case Kind::number:
      return number_text(dice.uniform());
    case Kind::duration: {
      const char* units[] = {" steps", "k tokens", " epochs", "s", "h"};
      return number_text(amount) + units[dice.below(5)];
    }
    default:
      return std::to_string(1 + dice.below(60000));
  }
}

}  // namespace

TEST_CASE("fields: the names are frozen, each with a sentence and a legal default") {
  std::string names;
  for (const Field& field : fields()) names += (names.empty() ? "" : " ") + field.name;
  CHECK(names == frozen);
  for (const Field& field : fields()) {
    CAPTURE(field.name);
    CHECK(field.doc.ends_with('.'));
    CHECK(field.rule.starts_with("must be "));
    if (!field.set) continue;
    Recipe recipe;
    if (field.name != "model.from") CHECK(field.set(recipe, field.get(Recipe())));
    CHECK(field.get(recipe) == field.get(Recipe()));
    const std::string bad = field.kind == Kind::text ? "" : "\x01 nonsense";
    if (!bad.empty()) CHECK_FALSE(field.set(recipe, bad));
    CHECK(field.get(recipe) == field.get(Recipe()));  // a refused value leaves no trace
  }
}

TEST_CASE("quantities") {
  const auto duration = [](const char* text) { return parse_duration(text).value(); };
  CHECK(duration("2000 steps") == Duration{2000, Unit::steps});
  CHECK(duration("2k steps") == Duration{2000, Unit::steps});
  CHECK(duration("1 step") == Duration{1, Unit::steps});
  CHECK(duration("10m tokens") == Duration{1e7, Unit::tokens});
  CHECK(duration("10m") == Duration{600, Unit::seconds});  // minutes, not a million
  CHECK(duration("1.5 b tokens") == Duration{1.5e9, Unit::tokens});
  CHECK(duration("0.5 epochs") == Duration{0.5, Unit::epochs});
  CHECK(duration("1h") == Duration{3600, Unit::seconds});
  CHECK(duration(" 90s ") == Duration{90, Unit::seconds});
  CHECK(duration("0") == Duration{0, Unit::steps});
  for (const char* bad : {"", "10", "10k", "m", "steps", "1 2 steps", "nan s", "inf s", "1e400 s",
                          "9e15k tokens", "1e300 d", "0x10 steps", "10 mb tokens"})
    CHECK_FALSE(parse_duration(bad));
  CHECK(parse_bytes("1.5gb") == std::int64_t{3} << 29);
  CHECK(parse_bytes("64 KiB") == 65536);
  CHECK(parse_bytes("1.3kb") == 1331);
  CHECK(parse_bytes("7") == 7);
  for (const char* bad : {"", "gb", "1tb", "1 g b", "1e30gb"}) CHECK_FALSE(parse_bytes(bad));
  CHECK(parse_count("1.5m") == 1500000);
  CHECK_FALSE(parse_count("1.5"));
  for (const char* yes : {"on", "true", "YES"}) CHECK(parse_switch(yes) == true);
  for (const char* no : {"off", "False", "no"}) CHECK(parse_switch(no) == false);
  CHECK_FALSE(parse_switch("1"));
  CHECK(steps_of({1000, Unit::tokens}, 1, 4, 32) == 8);  // 7.8 rounds up
  CHECK(steps_of({1.5, Unit::epochs}, 10, 4, 32) == 4);
  CHECK(steps_of({60, Unit::seconds}, 10, 4, 32) == 0);
}

TEST_CASE("parse: groups, flow and block, every kind of value") {
  const Recipe r = read(
                       "duration: 1h\nseed: 18446744073709551615\nreproducible: off\n"
                       "model:\n  layers: 2\n  rope_scaling: {kind: linear, factor: 2.5}\n"
                       "batch: {global: 16, micro: 2}\nparallel: {bucket_bytes: 1.5mb}\n")
                       .recipe;
  CHECK(r.duration == Duration{3600, Unit::seconds});
  CHECK(r.seed == ~std::uint64_t{0});
  CHECK_FALSE(r.reproducible);
  CHECK(r.model.layers == 2);
  CHECK(r.model.rope_scaling.factor == 2.5);
  CHECK(r.batch.global == 16);
  CHECK(r.parallel.bucket_bytes == 3 << 19);
  CHECK(r.data.train.at(0).path == "a.txt");
}

TEST_CASE("parse: --set comes last, the later wins; a mistake under it is still one") {
  CHECK(read("seed: 1\n", {"seed=2", "seed=3"}).recipe.seed == 3);
  CHECK_THROWS_AS(read("seed: x\n", {"seed=2"}), ConfigError);
}

TEST_CASE("parse: --set of sources") {
  CHECK(read("", {"data.train=b: c #.txt"}).recipe.data.train.at(0).path == "b: c #.txt");
  const auto list = read("", {"data.train=[a, {path: b, weight: 2}]"}).recipe.data.train;
  REQUIRE(list.size() == 2);
  CHECK(list[1].path == "b");
  CHECK(list[1].weight == 2);
}

TEST_CASE("base: chains, the nearer file wins, errors name the file") {
  const TempFolder folder;
  put(folder.path() / "a.yaml", "base: sub/b.yaml\nseed: 1\ndata: {train: x.txt}\n");
  put(folder.path() / "sub/b.yaml", "base: ../c.yaml\nseed: 2\nname: b\n");
  put(folder.path() / "c.yaml", "seed: 3\nname: c\nbatch: {micro: 2}\n");
  put(folder.path() / "x.txt", "text");
  const Recipe r = load(folder.path() / "a.yaml").recipe;
  CHECK(r.seed == 1);
  CHECK(r.name == "b");
  CHECK(r.batch.micro == 2);
  CHECK(r.data.train.at(0).path == (folder.path() / "x.txt").string());  // beside the recipe

  put(folder.path() / "c.yaml", "name: c\nseeed: 3\n");
  CHECK(has(error_of([&] { load(folder.path() / "a.yaml"); }), "c.yaml:2: seeed: is not a field"));
  put(folder.path() / "c.yaml", "base: a.yaml\n");
  CHECK(has(error_of([&] { load(folder.path() / "a.yaml"); }),
            "c.yaml:1: base = a.yaml: leads back"));
  put(folder.path() / "a.yaml", "base: a.yaml\n");
  CHECK(has(error_of([&] { load(folder.path() / "a.yaml"); }), "leads back to itself"));
}

TEST_CASE("load: what is not there is said with its line and a near name") {
  const TempFolder folder;
  const fs::path file = folder.path() / "r.yaml";
  CHECK(has(error_of([&] { load(file); }), "there is no recipe"));
  put(file,
      "data:\n  train:\n    - corpus.txt\n    - corpas.txt\n  tokenizer: t.json\nmodel: {from: "
      "hf}\n");
  put(folder.path() / "corpus.txt", "text");
  const std::string error = error_of([&] { load(file); });
  CHECK(has(error, "r.yaml:4: data.train = corpas.txt: does not exist here nor in " +
                       folder.path().string()));
  CHECK(has(error, "r.yaml:5: data.tokenizer = t.json: does not exist"));
  CHECK(has(error, "r.yaml:6: model.from = hf: does not exist"));
  CHECK_FALSE(has(error, "corpus.txt: does not"));
  CHECK(has(error_of([&] { load(folder.path() / "r.yml"); }), "did you mean"));
  CHECK(has(error_of([&] { load(folder.path()); }), "there is no recipe"));
}

TEST_CASE("model.from replaces a base's shape, but not one beside it") {
  const TempFolder folder;
  put(folder.path() / "base.yaml", "data: {train: x}\nmodel: {layers: 7}\n");
  put(folder.path() / "a.yaml", "base: base.yaml\nmodel: {from: hf}\n");
  const Parsed parsed = load(folder.path() / "a.yaml", {}, Inputs::none);
  CHECK(parsed.recipe.model.layers == Model().layers);
  CHECK(noted(parsed, "model.layers", "model.from"));
  CHECK_NOTHROW(load(folder.path() / "base.yaml", {"model.from=hf"}, Inputs::none));
  CHECK_THROWS_AS(load(folder.path() / "a.yaml", {"model.layers=3"}, Inputs::none), ConfigError);
}

TEST_CASE("options without effect are said, and only where they were set") {
  const auto check = [](const char* yaml, const char* field, const char* why) {
    CAPTURE(yaml);
    CHECK(noted(read(yaml), field, why));
  };
  check("optimizer: {momentum: 0.9}\n", "optimizer.momentum", "optimizer.name is adamw");
  check("optimizer: {nesterov: on}\n", "optimizer.nesterov", "optimizer.name is adamw");
  check("optimizer: {name: sgd, beta1: 0.9}\n", "optimizer.beta1", "optimizer.name is sgd");
  check("optimizer: {matrix_lr: 0.1}\n", "optimizer.matrix_lr", "not muon");
  check("schedule: {kind: constant, min_ratio: 0.5}\n", "schedule.min_ratio", "kind is constant");
  check("schedule: {decay: 5 steps}\n", "schedule.decay", "not wsd");
  check("model: {family: gpt2, qk_norm: on}\n", "model.qk_norm", "gpt2");
  check("model: {rope_scaling: {factor: 2}}\n", "model.rope_scaling.factor", "kind is none");
  check("model: {from: hf, init_std: 0.1}\n", "model.init_std", "model.from");
  check("model: {moe: {router: sigmoid}}\n", "model.moe.router", "model.moe.experts is 0");
  check("model: {moe: {experts: 4, aux_scope: global}}\n", "model.moe.aux_scope", "aux_loss is 0");
  check("evaluation: {every: 5 steps}\n", "evaluation.every", "no validation data");
  check("checkpoint: {every: 500 steps}\n", "checkpoint.every", "longer than the run");
  check("checkpoint: {keep_every: 5 steps}\n", "checkpoint.keep_every", "checkpoint.every is 0");
  check("parallel: {transport: gloo}\n", "parallel.transport", "one worker");
  check("parallel: {prefetch: on}\n", "parallel.prefetch", "zero is not 3");
  check("parallel: {reshard_after_forward: off}\n", "parallel.reshard_after_forward", "not 3");
  check("memory_budget: 2gb\n", "memory_budget", "neither recompute nor batch.micro is auto");
  check("parallel: {sequence_parallel: off}\n", "parallel.sequence_parallel", "tensor is 1");
  check("parallel: {tensor_chunks: 2}\n", "parallel.tensor_chunks", "tensor is 1");
  check("parallel: {engine: mesh, rules: mlp=none}\n", "parallel.rules",
        "tensor and parallel.expert");
  check("parallel: {engine: sharded, zero: 2}\n", "parallel.zero", "one data rank");
  check("parallel: {engine: mesh, zero: 2, workers: 2, tensor: 2}\n", "parallel.zero", "one data");
  check("optimizer: {outer_lr: 1}\n", "optimizer.outer_lr", "local_steps is 0");
  check("recompute: 5\n", "recompute", "above model.layers = 4");
  CHECK(read("recompute: 4\n").notes.empty());
  check("parallel: {context_kind: ulysses}\n", "parallel.context_kind", "context is 1");
  check("parallel: {pipeline_schedule: zb-v}\n", "parallel.pipeline_schedule", "pipeline is 1");
  check("parallel: {watch_divergence: 10}\n", "parallel.watch_divergence", "the same state");
  check("parallel: {workers: 2, engine: sharded, zero: 3, watch_divergence: 10}\n",
        "parallel.watch_divergence", "the same state");
  check("logging: {sample_tokens: 0, sample_prompt: x}\n", "logging.sample_prompt", "is 0");
  CHECK(noted(read("", {"data.text_field=body"}), "data.text_field", "no source is a .jsonl"));
  CHECK(read("", {"data.text_field=body", "data.train=a.jsonl"}).notes.empty());
  CHECK(read("").notes.empty());
  for (const char* watched : {"zero: 2", "zero: 3, shard: 1", "engine: mesh, tensor: 2"})
    CHECK(read(str("parallel: {workers: 2, watch_divergence: 10, ", watched, "}\n")).notes.empty());
  const std::string ends =
      "parallel: {workers: 2, watch_divergence: 10, engine: mesh, pipeline: 2}\n";
  CHECK(noted(read(ends), "parallel.watch_divergence", "the same state"));
  CHECK(read(ends + "model: {tied: on}\n").notes.empty());
  CHECK(read("optimizer: {name: muon, momentum: 0.9, matrix_lr: 0.1}\n").notes.empty());
}

TEST_CASE("to_yaml parses back to the same value: random recipes") {
  int accepted = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(seed);
    Recipe recipe;
    for (const Field& field : fields()) {
      if (field.kind == Kind::sources) {
        for (std::uint64_t n = 1 + dice.below(3); n > 0; --n)
          field.sources(recipe).push_back({"p" + random_text(dice), dice.uniform() + 0.1});
      } else if (dice.below(3)) {
        field.set(recipe, random_value(field, dice));
      }
    }
    // Keep the rules between fields out of it.
    recipe.model.from = "", recipe.model.heads = recipe.model.kv_heads = 4;
    recipe.model.embed = 64, recipe.model.head_dim = 16, recipe.model.vocab = 300;
    recipe.model.context = recipe.data.sequence, recipe.data.validation_fraction = 0;
    recipe.model.rope_scaling.high_frequency_factor = 2;
    Moe& moe = recipe.model.moe;
    recipe.model.qk_norm |= recipe.model.qk_norm_whole, moe.dense_layers = 0;
    moe.experts = recipe.model.family == "gpt2" ? 0 : 24, moe.experts_per_token = 6;
    moe.groups = 4, moe.groups_per_token = 2, moe.shared_experts += 1;
    recipe.batch.micro = 1 + recipe.batch.micro % 64, recipe.parallel.workers %= 64;
    recipe.parallel.workers += 1;
    recipe.batch.global = recipe.batch.micro * recipe.parallel.workers;
    recipe.duration = {1e9, Unit::steps}, recipe.data.tokenizer += "t";
    const Duration steps{static_cast<double>(dice.below(1000)), Unit::steps};
    recipe.schedule.warmup = recipe.schedule.decay = recipe.checkpoint.every = steps;
    recipe.checkpoint.keep_every = recipe.evaluation.every = recipe.logging.every = steps;

    if (seed % 4 == 0) {
      recipe.model = Model();
      recipe.model.from = "hf" + random_text(dice);
      recipe.model.dropout = 0.5;
    }

    const std::string text = to_yaml(recipe);
    CAPTURE(text);
    const Recipe again = parse(text, "r.yaml", {}, ".", Inputs::none).recipe;
    CHECK(to_yaml(again) == text);
    for (const Field& field : fields())
      if (field.get) CHECK(field.get(again) == field.get(recipe));
    REQUIRE(again.data.train.size() == recipe.data.train.size());
    for (std::size_t i = 0; i < again.data.train.size(); ++i) {
      CHECK(again.data.train[i].path == recipe.data.train[i].path);
      CHECK(again.data.train[i].weight == recipe.data.train[i].weight);
    }
    ++accepted;
  }
  CHECK(accepted == 300);
}

TEST_CASE("resolve fills each 0 that follows from others, once") {
  Recipe r = read("model: {embed: 256, heads: 8}\nparallel: {workers: 2}\n").recipe;
  resolve(r, 256, 5);
  CHECK(r.model.vocab == 256);
  CHECK(r.model.kv_heads == 8);
  CHECK(r.model.head_dim == 32);
  CHECK(r.model.mlp == 688);
  CHECK(r.model.context == 256);
  CHECK(r.parallel.threads == 2);
  const std::string once = to_yaml(r);
  resolve(r, 999, 64);
  CHECK(to_yaml(r) == once);
  Recipe from = read("model: {from: hf}\n").recipe;
  resolve(from, 300, 1);
  CHECK(from.model.vocab == 0);
  CHECK(from.parallel.threads == 1);
}

TEST_CASE("schema: valid JSON that holds every field; defaults have their type") {
  const Json root = parse_json(json_schema(), "schema");
  for (const Field& field : fields()) {
    CAPTURE(field.name);
    const Json* at = &root;
    for (const std::string& part : split(field.name, '.')) at = &at->at("properties").at(part);
    CHECK(at->at("description") == field.doc);
    if (field.kind == Kind::number) CHECK(at->at("default").is_number());
    if (field.kind == Kind::onoff) CHECK(at->at("default").is_boolean());
  }
}

TEST_CASE("docs/formats/recipe.md is markdown_reference(); TUTTI_REWRITE=1 rewrites it") {
  const fs::path page = "docs/formats/recipe.md";  // tests run in the source folder
  if (std::getenv("TUTTI_REWRITE")) write_file(page, markdown_reference());
  CHECK(read_file(page) == markdown_reference());
}

TEST_CASE("describe: a field, a group, a misspelling") {
  CHECK(has(describe("optimizer.lr"), "Peak learning rate."));
  CHECK(has(describe("batch"), "batch.micro: "));
  CHECK(has(describe("optimzer"), "did you mean optimizer?"));
}

TEST_CASE("recipes/: all parse without a note; peer is the peer's run") {
  for (const char* name : {"shakespeare", "gpt2_tiny", "moe", "peer"}) {
    CAPTURE(name);
    CHECK(load(str("recipes/", name, ".yaml"), {}, Inputs::none).notes.empty());
  }
  Recipe r = load("recipes/peer.yaml", {}, Inputs::none).recipe;
  resolve(r, 256, 2);
  CHECK(r.model.mlp == 688);
  CHECK(r.model.kv_heads == 4);
  CHECK(r.data.order == "sequential");
  CHECK(r.optimizer.beta2 == 0.95);
  CHECK(r.schedule.warmup == Duration{10, Unit::steps});
  CHECK_NOTHROW(load("recipes/peer.yaml", {"model.from=hf"}, Inputs::none));  // as the bench does
}

TEST_CASE("defaults follow what was set: a short run warms up less, a model brings its tokenizer") {
  CHECK(read("duration: 5 steps\n").recipe.schedule.warmup.amount == 0);
  CHECK(read("duration: 9 steps\n").recipe.schedule.warmup.amount == 0);
  CHECK(read("duration: 10 steps\n").recipe.schedule.warmup.amount == 10);

  const TempFolder folder;
  write_file(folder.path() / "tokenizer.json", "{}");
  const std::string model = "model: {from: " + folder.path().string() + "}\n";
  CHECK(read(model).recipe.data.tokenizer == folder.path().string());
  const Recipe told =
      parse("data: {train: a.txt, tokenizer: bytes}\n" + model, "r.yaml", {}, ".", Inputs::none)
          .recipe;
  CHECK(told.data.tokenizer == "bytes");
  CHECK(read("model: {from: /nowhere}\n").recipe.data.tokenizer == "bytes");
}
