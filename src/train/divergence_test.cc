// One element that differs on one rank is found and named, wherever several ranks hold it; ranks
// that hold alike what they should are never accused.
#include "train/divergence.h"

#include "base/fs.h"
#include "train/fit.h"
#include "train/layout_runs.h"

namespace tutti::train {
namespace {

using Ranks = std::vector<std::vector<int>>;

constexpr const char *weight = "model.layers.0.mlp.down_proj.weight",
                     *norm = "model.layers.1.input_layernorm.weight";

std::vector<std::string> names_of(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& parameter : module.named_parameters()) names.push_back(parameter.key());
  for (const auto& buffer : module.named_buffers()) names.push_back(buffer.key());
  return names;
}

// The lowest bit of one element's lowest byte.
void flip(const torch::Tensor& values, std::int64_t element = 0) {
  REQUIRE(values.is_contiguous());
  REQUIRE(values.numel() > element);
  auto* bytes = static_cast<unsigned char*>(values.data_ptr());
  bytes[element * static_cast<std::int64_t>(values.element_size())] ^= 1;
}

// What is found after a step without disturbance, and after one with.
std::optional<Divergence> found_after(const recipe::Recipe& recipe,
                                      const std::function<void(const Player&)>& disturb) {
  std::vector<std::optional<Divergence>> all(static_cast<std::size_t>(recipe.parallel.workers));
  play(recipe, [&](const Player& player) {
    DivergenceWatch watch(player.world, names_of(player.task.module()));
    for (std::int64_t step = 0; step < 2; ++step) {
      player.step(step);
      CHECK_FALSE(watch.compare(held_by(player.engine)).has_value());
    }
    CHECK(watch.bytes() > 0);
    disturb(player);
    all[static_cast<std::size_t>(player.rank)] = watch.compare(held_by(player.engine));
  });
  for (const auto& found : all) {
    REQUIRE(found.has_value());
    CHECK(to_text(*found) == to_text(*all[0]));  // the same on all ranks
  }
  return all[0];
}

using Set = std::function<void(recipe::Parallel&)>;

recipe::Recipe layout(const std::string& kind, int workers, const Set& set) {
  recipe::Recipe recipe = base(kind);
  recipe.model.layers = 2;
  if (kind == "moe") recipe.model.moe.experts = 4;
  recipe.batch.global = 4 * workers;
  recipe.parallel.workers = workers;
  set(recipe.parallel);
  return recipe;
}

using Disturb = std::function<void(const Player&)>;

TEST_CASE("divergence: a replicated weight, on one of three ranks") {
  const auto found = found_after(layout("llama", 3, [](auto& p) { p.engine = "replicated"; }),
                                 [](const Player& player) {
                                   if (player.rank == 1) flip(player.parameter(weight), 5);
                                 });
  CHECK(found->tensor == std::string("model/") + weight);
  CHECK(found->ranks == Ranks{{0, 2}, {1}});
  CHECK(found->tensors == 1);
  CHECK(to_text(*found) == str("model/", weight,
                               " is not the same on all ranks that hold it: rank 1 "
                               "differs from ranks 0, 2"));
}

TEST_CASE("divergence: moments of replicas, whole and in shards") {
  const auto of = [](int rank) {
    return [rank](const Player& player) {
      if (player.rank != rank) return;
      flip(player.state(str("optimizer.exp_avg_sq/", weight)));
      flip(player.state(str("optimizer.exp_avg/", norm)));
    };
  };
  const auto whole = found_after(layout("llama", 3, [](auto&) {}), of(2));
  CHECK(whole->tensor == str("optimizer.exp_avg_sq/", weight));  // comes first in the model
  CHECK(whole->ranks == Ranks{{0, 1}, {2}});
  CHECK(whole->tensors == 2);
  // Two shards of two replicas each: which of two is wrong nobody knows.
  std::set<std::vector<int>> pairs;
  for (int rank = 0; rank < 4; ++rank) {
    std::string name;
    const auto first_moment = [&](const Player& player) {
      if (player.rank != rank) return;
      for (const StateTensor& tensor : player.engine.state())
        if (name.empty() && tensor.value.numel() > 0 && tensor.name.starts_with("optimizer.")) {
          flip(tensor.value);
          name = tensor.name;
        }
    };
    const auto found =
        found_after(layout("llama", 4, [](auto& p) { p.zero = 3, p.shard = 2; }), first_moment);
    CHECK(found->tensor == name);
    CHECK(suspects(*found).size() == 2);
    CHECK(to_text(*found).find(" | rank ") != std::string::npos);
    pairs.insert(suspects(*found));
  }
  CHECK(pairs.size() == 2);
}

TEST_CASE("divergence: what tensor and context ranks do not cut, each end of a tied embedding") {
  const Disturb flip_norm = [](const Player& player) {
    if (player.rank == 2) flip(player.parameter(norm));
  };
  for (const Set& set : {Set([](auto& p) { p.tensor = 3; }), Set([](auto& p) { p.context = 3; })}) {
    const auto found = found_after(layout("llama", 3, set), flip_norm);
    CHECK(found->tensor == str("model/", norm));
    CHECK(found->ranks == Ranks{{0, 1}, {2}});
  }
  const auto tied =
      found_after(layout("gpt2", 2, [](auto& p) { p.pipeline = 2; }), [](const Player& player) {
        if (player.rank == 1) flip(player.parameter("transformer.wte.weight"), 30);
      });
  CHECK(tied->tensor == "model/transformer.wte.weight");
  CHECK(tied->ranks == Ranks{{0}, {1}});
  CHECK(to_text(*tied).ends_with("rank 0 | rank 1"));
}

TEST_CASE("divergence: copies that are gathered, and those that are rounded") {
  const Disturb flip_copy = [](const Player& player) {
    if (player.rank == 0) flip(player.parameter(weight), 7);
  };
  for (const int zero : {1, 2}) {
    const auto found = found_after(layout("llama", 3, [&](auto& p) { p.zero = zero; }), flip_copy);
    CHECK(found->tensor == str("compute/", weight));
    CHECK(found->ranks == Ranks{{1, 2}, {0}});
  }
  for (const char* engine : {"replicated", "mesh"}) {
    recipe::Recipe recipe = layout("llama", 3, [&](auto& p) { p.engine = engine; });
    recipe.precision = "bf16";
    const auto found = found_after(recipe, flip_copy);
    CHECK(found->tensor == str("compute/", weight));
    CHECK(found->ranks == Ranks{{1, 2}, {0}});
  }
}

TEST_CASE("divergence: buffers and experts") {
  const char* bias = "model.layers.1.mlp.router.bias";
  const auto buffer =
      found_after(layout("moe", 3, [](auto& p) { p.zero = 3; }), [&](const Player& player) {
        if (player.rank == 1) flip(player.buffer(bias), 3);
      });
  CHECK(buffer->tensor == str("model/", bias));
  CHECK(buffer->ranks == Ranks{{0, 2}, {1}});
  // Ranks 0 and 2 hold the same half of the experts, 1 and 3 the other.
  const std::string down = "model.layers.1.mlp.experts.down_proj.weight";
  const auto expert =
      found_after(layout("moe", 4, [](auto& p) { p.expert = 2; }), [&](const Player& player) {
        if (player.rank == 3) flip(player.parameter(down));
      });
  CHECK(expert->tensor == "model/" + down);
  CHECK(expert->box.size[0] == 2);
  CHECK(suspects(*expert) == std::vector{1, 3});
}

TEST_CASE("divergence: a routing bias that was wrong while a step used it") {
  const char* bias = "model.layers.1.mlp.router.bias";
  play(layout("moe", 3, [](auto&) {}), [&](const Player& player) {
    DivergenceWatch watch(player.world, names_of(player.task.module()));
    player.step(0);
    if (player.rank == 2) player.buffer(bias)[0] += 1;
    player.step(1);
    const auto found = watch.compare(held_by(player.engine));
    REQUIRE(found.has_value());
    CHECK(to_text(*found).find("router") != std::string::npos);
    CHECK(suspects(*found) == std::vector{2});
  });
}

TEST_CASE("divergence: no layout is accused without cause") {
  for (const char* kind : {"llama", "gpt2", "moe"}) {
    recipe::Recipe recipe = base(kind);
    recipe.model.layers = 2;
    recipe.batch.global = 16;
    const auto all = layouts_of(recipe, 4);
    for (std::size_t i = 0; i < all.size(); i += whole_grid() ? 1 : all.size() / 12 + 1) {
      INFO(text_of(all[i]));
      play(all[i], [&](const Player& player) {
        DivergenceWatch watch(player.world, names_of(player.task.module()));
        player.step(0);
        const auto found = watch.compare(held_by(player.engine));
        CHECK_MESSAGE(!found.has_value(), (found ? to_text(*found) : std::string()));
      });
    }
  }
}

TEST_CASE("divergence: parts of a tensor, however boxes meet; what one rank holds is not hashed") {
  struct Held {
    std::int64_t begin, end;
  };
  const auto compare = [](const std::vector<std::vector<Held>>& ranks, int wrong,
                          std::int64_t element, std::vector<std::int64_t> bytes) {
    std::optional<Divergence> found;
    parallel::on_ranks(static_cast<int>(ranks.size()), [&](int rank, const auto& world) {
      std::vector<StateTensor> held = {{"alone", torch::zeros({rank == 0 ? 5 : 0})}};
      for (const Held& one : ranks[static_cast<std::size_t>(rank)]) {
        torch::Tensor value = torch::arange(one.begin, one.end, torch::kFloat);
        if (rank == wrong && one.begin <= element && element < one.end)
          flip(value, element - one.begin);
        held.push_back({"model/w", value, {9}, Box{{one.begin}, {one.end - one.begin}}});
      }
      DivergenceWatch watch(world, {"w"});
      const auto here = watch.compare(held);
      CHECK(watch.bytes() == 4 * bytes[static_cast<std::size_t>(rank)]);
      if (rank == 0) found = here;
    });
    return found;
  };
  CHECK_FALSE(compare({{{0, 4}}, {{4, 9}}}, 0, 2, {0, 0}).has_value());  // shards
  const auto whole = compare({{{0, 9}}, {{0, 9}}, {{0, 9}}}, 1, 8, {9, 9, 9});
  CHECK(whole->ranks == Ranks{{0, 2}, {1}});
  // One holds all, two hold unequal halves of it that meet.
  const std::vector<std::vector<Held>> odd = {{{0, 9}}, {{0, 6}}, {{4, 9}}};
  const std::vector<std::int64_t> bytes = {6 + 5 + 2, 6 + 2, 5 + 2};
  CHECK_FALSE(compare(odd, -1, 0, bytes).has_value());
  CHECK(compare(odd, 2, 8, bytes)->ranks == Ranks{{0}, {2}});
  CHECK(compare(odd, 2, 8, bytes)->box == Box{{4}, {5}});
  CHECK(compare(odd, 1, 0, bytes)->ranks == Ranks{{0}, {1}});
  CHECK(to_text(*compare(odd, 1, 0, bytes)) ==
        "model/w[0:6] is not the same on all ranks that hold it: rank 0 | rank 1");
}

TEST_CASE("divergence: a state that grows is noticed") {
  parallel::on_ranks(2, [](int rank, const auto& world) {
    DivergenceWatch watch(world, {});
    std::vector<StateTensor> held = {{"b", torch::zeros({3})}};
    CHECK_FALSE(watch.compare(held).has_value());
    held.push_back({"a", torch::full({2}, rank)});
    const auto found = watch.compare(held);
    REQUIRE(found.has_value());
    CHECK(found->tensor == "a");
  });
}

// --- the trainer

struct Line : torch::nn::Module {
  Line() { weight = register_parameter("weight", torch::tensor({0.5f, -0.25f})); }
  torch::Tensor weight;
};

struct Watching {
  std::int64_t every = 3, save_every = 100;
  int ranks = 3;
  std::int64_t wrong_step = -1;  // in which rank 1's weight is changed; counted from 1
  bool resume = false;
};

// What ended each rank's training of 12 steps, and the comparisons it made.
std::vector<std::string> watched(const Watching& w, const fs::path& folder) {
  recipe::Recipe recipe;
  recipe.duration = {12, recipe::Duration::Unit::steps};
  recipe.batch = {12, 2};
  recipe.checkpoint.every = {static_cast<double>(w.save_every), recipe::Duration::Unit::steps};
  recipe.parallel.workers = w.ranks;
  recipe.parallel.watch_divergence = w.every;
  struct Spans : Callback {
    void on_step(const StepEvent& event) override {
      if (event.step == wrong_step) flip(line->weight.detach(), 1);
    }
    void on_span(const char* name, std::int64_t step, double, double) override {
      text += str(name, " ", step, ";");
    }
    std::shared_ptr<Line> line;
    std::int64_t wrong_step = -1;
    std::string text;
  };
  std::vector<std::string> ends(static_cast<std::size_t>(w.ranks));
  std::vector<std::unique_ptr<parallel::Engine>> engines(ends.size());
  std::vector<std::unique_ptr<parallel::Task>> tasks(ends.size());
  parallel::on_ranks(w.ranks, [&](int rank, const std::shared_ptr<collective::Group>& world) {
    at::set_num_threads(1);
    const auto at = static_cast<std::size_t>(rank);
    const auto spans = std::make_shared<Spans>();
    spans->line = std::make_shared<Line>();
    if (rank == 1) spans->wrong_step = w.wrong_step;
    tasks[at] = make_task(spans->line, [](Line& line, const parallel::Batch& batch) {
      const auto wrong = torch::mv(batch[0], line.weight) - batch[1];
      return parallel::Loss{wrong.square().sum(), static_cast<double>(batch[0].size(0))};
    });
    engines[at] = parallel::make_engine(recipe, *tasks[at], world);
    const auto x = torch::arange(40).view({20, 2}).to(torch::kFloat).mul(0.37).sin();
    TensorSamples samples({x, x.sum(1) * 2});
    Worker worker;
    worker.rank = rank;
    worker.world_size = w.ranks;
    worker.folder = folder;
    worker.resume = w.resume;
    Trainer trainer(recipe, worker, *engines[at], *tasks[at], samples, nullptr, {spans}, world);
    try {
      trainer.run();
      ends[at] = spans->text;
    } catch (const WorldError& error) {
      ends[at] = error.what();
    }
  });
  for (const std::string& end : ends) CHECK(end == ends[0]);
  return ends;
}

TEST_CASE("divergence: the trainer compares every N steps and before it saves, and ends by name") {
  const TempFolder undisturbed, other, off;
  CHECK(watched({5, 4}, undisturbed.path())[0] ==
        "comparison 4;checkpoint 4;comparison 5;comparison 8;checkpoint 8;comparison 10;"
        "comparison 12;checkpoint 12;");
  CHECK(watched({3, 6, 3, 8}, other.path())[0] ==
        "step 9: model/weight is not the same on all ranks that hold it: rank 1 differs from ranks "
        "0, 2. All were alike after step 6; checkpoints hold only what was compared. Check memory, "
        "host and transport of rank 1, and that all ranks run the same program; then resume, which "
        "goes on from step 6");
  CHECK(watched({3, 6, 3, -1, true}, other.path())[0] ==
        "comparison 9;comparison 12;checkpoint 12;");
  CHECK(watched({0, 6, 3, 8}, off.path())[0] == "checkpoint 6;checkpoint 12;");
}

TEST_CASE("divergence: before the first comparison and the first checkpoint") {
  const TempFolder folder;
  const std::string end = watched({4, 100, 2, 2}, folder.path())[0];
  CHECK(
      end.starts_with("step 4: model/weight is not the same on all ranks that hold it: rank 0 | "
                      "rank 1. No step before was compared;"));
  CHECK(end.find("transport of ranks 0, 1,") != std::string::npos);
  CHECK(end.ends_with("then start again: there is no checkpoint yet"));
}

}  // namespace
}  // namespace tutti::train
