// Properties of all layouts, found by enumeration or at random. What is refused, word for word:
// layout_refused_test.cc.
#include "plan/layout.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/rng.h"
#include "plan/layout_rules.h"
#include "recipe/fields.h"
#include "recipe/show.h"

using namespace tutti;
using namespace tutti::plan;
using recipe::Recipe;

namespace {

std::string error_of(const Recipe& recipe) {
  try {
    make_layout(recipe);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::vector<int> counted(int size) {
  std::vector<int> numbers(static_cast<std::size_t>(size));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// Large enough for every degree up to 16.
Recipe roomy(int workers) {
  Recipe r;
  r.parallel.engine = "mesh";
  r.parallel.workers = workers;
  r.model.layers = 33;
  r.model.heads = r.model.kv_heads = 16;
  r.model.vocab = 300;
  r.batch.micro = 1;
  r.batch.global = 32 * workers;
  return r;
}

template <class Visit>
void for_divisors(int number, Visit visit) {
  for (int d = 1; d <= number; ++d)
    if (number % d == 0) visit(d);
}

// All degrees whose product divides the workers, with every ZeRO stage that goes with them.
template <class Visit>
void for_all_layouts(Visit visit) {
  for (int workers = 1; workers <= 16; ++workers)
    for_divisors(workers, [&](int tensor) {
      for_divisors(workers / tensor, [&](int context) {
        for_divisors(workers / tensor / context, [&](int pipeline) {
          Recipe r = roomy(workers);
          r.parallel.tensor = tensor;
          r.parallel.context = context;
          r.parallel.pipeline = pipeline;
          visit(r, workers / tensor / context / pipeline);
        });
      });
    });
}

// Each rank is in one group of each axis, and its peers agree.
bool parts_ranks(const DeviceMesh& mesh) {
  bool good = true;
  for (const MeshAxis& axis : mesh.axes()) {
    std::vector<int> members;
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const std::vector<int> group = mesh.group(rank, axis.name);
      good &= static_cast<int>(group.size()) == axis.size;
      good &= mesh.group(group.back(), axis.name) == group;
      if (group.front() == rank) members.insert(members.end(), group.begin(), group.end());
    }
    std::sort(members.begin(), members.end());
    good &= members == counted(mesh.world_size());
  }
  return good;
}

// Along the data axes the data ranks are 0 to data - 1, a shard's replicas neighbours.
bool counts_data_ranks(const Layout& layout) {
  bool good = true;
  for (int rank = 0; rank < layout.mesh.world_size(); ++rank) {
    std::vector<int> ranks;
    for (const int shard : layout.mesh.group(rank, "shard"))
      for (const int replica : layout.mesh.group(shard, "replica"))
        ranks.push_back(layout.data_rank(replica));
    const bool first = layout.mesh.coordinate(rank, "replica") == 0;
    good &= !first || ranks == counted(layout.data);
  }
  return good;
}

bool covers(const Layout& layout, std::int64_t layers) {
  bool good = static_cast<int>(layout.stages.size()) == layout.schedule.stages();
  std::int64_t at = 0;
  for (const StageLayers& stage : layout.stages) {
    good &= stage.begin == at && stage.end >= stage.begin;
    at = stage.end;
  }
  return good && at == layers;
}

void check_layout(const Recipe& r, int data) {
  const std::string error = error_of(r);
  CAPTURE(recipe::to_json(r, "parallel").dump());
  REQUIRE(error == "");
  const Layout layout = make_layout(r);
  CHECK(layout.mesh.world_size() == r.parallel.workers);
  CHECK(layout.data == data);
  CHECK(layout.shard * layout.replica == data);
  CHECK(layout.schedule.micro_batches * data * r.batch.micro == r.batch.global);
  CHECK(parts_ranks(layout.mesh));
  CHECK(parts_ranks(layout.experts));
  CHECK(counts_data_ranks(layout));
  CHECK(covers(layout, r.model.layers));
}

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : stream_(seed, "layout_test") {}
  // One of the values.
  template <class Value>
  Value of(std::initializer_list<Value> values) {
    return values.begin()[stream_.below(values.size(), next_++)];
  }

 private:
  RandomStream stream_;
  std::uint64_t next_ = 0;
};

Recipe random_recipe(std::uint64_t seed) {
  Dice dice(seed);
  Recipe r;
  recipe::Parallel& p = r.parallel;
  p.engine = "mesh";
  p.workers = dice.of({1, 2, 3, 4, 6, 8, 12, 16});
  p.tensor = dice.of({1, 1, 2, 4});
  p.context = dice.of({1, 1, 2});
  p.pipeline = dice.of({1, 1, 2});
  p.zero = dice.of({0, 1, 2});
  r.batch.micro = dice.of({1, 2});
  r.batch.global = r.batch.micro * dice.of({24, 48});
  if (seed % 4 == 0) return r;
  p.engine = dice.of({"mesh", "mesh", "mesh", "sharded", "replicated"});
  p.zero = dice.of({0, 0, 1, 2, 3});
  p.shard = dice.of({0, 0, 1, 2, 3, 4});
  p.tensor = dice.of({1, 1, 2, 3, 4, 8});
  p.context = dice.of({1, 1, 2, 3, 4});
  p.context_kind = dice.of({"ring", "ulysses", "mixed"});
  p.ulysses = dice.of({0, 0, 1, 2, 3});
  p.pipeline = dice.of({1, 1, 2, 3, 4});
  p.pipeline_schedule = dice.of({"1f1b", "interleaved", "zb-v", "dualpipe-v"});
  p.pipeline_chunks = dice.of({1, 1, 2, 3});
  p.pipeline_cut = dice.of({"even", "even", "2 2", "1 3", "3 1 0"});
  p.expert = dice.of({1, 1, 2, 3, 4});
  p.expert_tensor = dice.of({1, 1, 2});
  p.rules = dice.of({"", "", "mlp=none", "heads=none", "vocb=none", "embed=tensor heads"});
  p.sequence_parallel = dice.of({true, false});
  r.model.kv_heads = dice.of({1, 2, 4, 8});
  r.model.moe.experts = dice.of({0, 2, 8});
  r.model.tied = dice.of({true, false});
  r.optimizer.name = dice.of({"adamw", "adamw", "muon"});
  return r;
}

struct Proposal {
  std::string field, value;
};

// "nearest are a.b = 1 or 2, or a.c = x" or "the nearest is a.b = 1".
std::vector<Proposal> proposals_of(const std::string& remedy) {
  std::vector<Proposal> found;
  std::size_t begin = remedy.starts_with("nearest are ")      ? 12
                      : remedy.starts_with("the nearest is ") ? 15
                                                              : std::string::npos;
  while (begin < remedy.size()) {
    const std::size_t comma = std::min(remedy.find(", or ", begin), remedy.size());
    const std::string part = remedy.substr(begin, comma - begin);
    const std::size_t equals = part.find(" = ");
    REQUIRE(equals != std::string::npos);
    std::string values = part.substr(equals + 3);
    for (std::size_t at = 0; at <= values.size();) {
      const std::size_t end = std::min(values.find(" or ", at), values.size());
      const std::string value = values.substr(at, end - at);
      found.push_back({part.substr(0, equals), value == "\"\"" ? "" : value});
      at = end + 4;
    }
    begin = comma + 5;
  }
  return found;
}

Recipe with(Recipe recipe, const Proposal& proposal) {
  REQUIRE(recipe::find_field(proposal.field));
  REQUIRE(recipe::find_field(proposal.field)->set(recipe, proposal.value));
  return recipe;
}

using Ids = std::set<std::string>;

Ids ids_of(const Recipe& recipe) {
  Ids ids;
  for (const Finding& finding : findings(recipe)) CHECK(ids.insert(finding.id).second);
  return ids;
}

// Whether the proposal ends rule `id` and breaks none that was kept.
bool mends(const Recipe& recipe, const Proposal& proposal, const std::string& id,
           const Ids& before) {
  const Ids after = ids_of(with(recipe, proposal));
  return !after.contains(id) &&
         std::includes(before.begin(), before.end(), after.begin(), after.end());
}

// Tries every degree; one that does not divide the workers would be no way out.
bool none_nearer(const Recipe& recipe, const Proposal& proposal, const std::string& id,
                 const Ids& before) {
  const int now = std::stoi(recipe::find_field(proposal.field)->get(recipe));
  const int then = std::stoi(proposal.value);
  for (int value = std::min(now, then) + 1; value < std::max(now, then); ++value)
    if (recipe.parallel.workers % value == 0 &&
        mends(recipe, {proposal.field, str(value)}, id, before))
      return false;
  return true;
}

}  // namespace

TEST_CASE("layout: every mesh of up to 16 ranks is one, its groups part the ranks") {
  int count = 0;
  for_all_layouts([&](Recipe r, int data) {
    check_layout(r, data);
    for (const int zero : {1, 2, 3})
      for_divisors(data, [&](int shard) {
        if (zero == 3 && r.parallel.pipeline > 1) return;
        r.parallel.zero = zero;
        r.parallel.shard = shard;
        check_layout(r, data);
        const Layout layout = make_layout(r);
        CHECK(layout.shard == shard);
        ++count;
      });
  });
  CHECK(count > 800);
}

TEST_CASE("layout: experts fold the same ranks") {
  for_all_layouts([&](Recipe r, int data) {
    r.model.moe.experts = 16;
    r.model.moe.expert_mlp = 16;
    const int here = static_cast<int>(r.parallel.workers / r.parallel.pipeline);
    for_divisors(here, [&](int expert) {
      r.parallel.expert = expert;
      r.parallel.expert_tensor = here / expert;
      check_layout(r, data);
      const Layout layout = make_layout(r);
      CHECK(layout.experts.size("expert") == expert);
      for (int rank = 0; rank < layout.mesh.world_size(); ++rank)
        CHECK(layout.experts.coordinate(rank, "pipeline") ==
              layout.mesh.coordinate(rank, "pipeline"));
    });
  });
}

TEST_CASE("layout: every schedule, with even stages or those of a cut") {
  for (const std::string& kind : pipeline_kinds())
    for (const int ranks : {2, 3, 4}) {
      CAPTURE(kind);
      Recipe r = roomy(2 * ranks);
      r.parallel.pipeline = ranks;
      r.parallel.pipeline_schedule = kind;
      r.parallel.pipeline_chunks = kind == "interleaved" ? 3 : kind.ends_with("-v") ? 2 : 1;
      check_layout(r, 2);
      const std::int64_t stages = ranks * r.parallel.pipeline_chunks;
      std::string cut = "33";  // all layers in the first stage
      for (std::int64_t s = 1; s < stages; ++s) cut += " 0";
      r.parallel.pipeline_cut = cut;
      check_layout(r, 2);
      CHECK(make_layout(r).stages.front().end == 33);
    }
}

TEST_CASE("layout: one that is worked out by hand") {
  Recipe r = roomy(24);
  r.parallel.pipeline = 2;
  r.parallel.tensor = 2;
  r.parallel.zero = 2;
  r.parallel.shard = 3;
  const Layout layout = make_layout(r);
  CHECK(layout.mesh.describe() ==
        "pipeline 2 x replica 2 x shard 3 x context 1 x tensor 2 (24 ranks)");
  CHECK(layout.data == 6);
  CHECK(layout.data_rank(0) == 0);
  CHECK(layout.data_rank(2) == 2);   // shard 1, replica 0
  CHECK(layout.data_rank(6) == 1);   // shard 0, replica 1
  CHECK(layout.data_rank(10) == 5);  // shard 2, replica 1
  CHECK(layout.data_rank(22) == 5);  // the same in the second stage
  CHECK(layout.stages[0].end == 17);
  CHECK(layout.rules.at("vocab") == "tensor");
  CHECK(layout.rules.at("qkv") == "tensor");
  CHECK(layout.rules.at("expert") == "expert");
  CHECK(layout.rules.at("embed") == "none");
  CHECK(layout.rules.at("router") == "none");
  CHECK(layout.rules.size() == 10);
}

TEST_CASE("layout: the first stages take what does not divide") {
  CHECK(even_cut(10, 4) == std::vector<std::int64_t>{3, 3, 2, 2});
  CHECK(even_cut(2, 3) == std::vector<std::int64_t>{1, 1, 0});
  CHECK(layout_rules("mlp=none norm=tensor nonsense").at("mlp") == "none");
  CHECK(layout_rules("mlp=none norm=tensor nonsense").at("norm") == "none");
  CHECK(layout_rules("position=tensor").at("position") == "none");
}

TEST_CASE("layout: replicated and sharded engines, without a mesh") {
  Recipe r;
  r.parallel.workers = 2;
  CHECK(make_layout(r).data == 2);
  CHECK(make_layout(r).shard == 1);
  r.parallel.engine = "sharded";
  r.parallel.zero = 3;
  CHECK(make_layout(r).shard == 2);
  r.batch.global = 12;                  // three micro-batches
  CHECK(layout_violations(r).empty());  // recipe::contradictions says it
  CHECK(error_of(r).find("equally many micro-batches") != std::string::npos);
}

TEST_CASE("layout: sizes of model.from are not known, those that follow are") {
  Recipe r = roomy(16);
  r.parallel.tensor = 16;
  r.model.kv_heads = r.model.layers = 1;
  r.model.qk_norm = r.model.qk_norm_whole = true;
  CHECK(layout_violations(r).size() == 2);
  r.model.from = "hf";
  CHECK(layout_violations(r).empty());
  r.model = recipe::Model();
  r.model.heads = 16;
  r.model.embed = 3;  // mlp 8
  CHECK(error_of(r).find("must not be above model.mlp = 8") != std::string::npos);
  r.model.family = "gpt2";  // 12
  CHECK(error_of(r).find("must not be above model.mlp = 12") != std::string::npos);
}

TEST_CASE("layout: recipes offer the schedules that there are") {
  CHECK(recipe::find_field("parallel.pipeline_schedule")->choices == pipeline_kinds());
}

TEST_CASE("layout: every value proposed mends its rule and breaks no other; none lies nearer") {
  int proposals = 0, legal = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    CAPTURE(seed);
    const Recipe r = random_recipe(seed);
    const std::vector<Finding> found = findings(r);
    const Ids before = ids_of(r);
    (found.empty() ? legal : refused)++;
    CHECK(error_of(r).empty() == found.empty());
    for (const Finding& finding : found) {
      const std::string remedy = remedy_for(finding, found, r);
      CAPTURE(finding.id);
      CAPTURE(remedy);
      CHECK_FALSE(finding.rule.empty());
      CHECK((finding.silent || !remedy.empty()));
      for (const Proposal& proposal : proposals_of(remedy)) {
        CAPTURE(proposal.value);
        ++proposals;
        CHECK(mends(r, proposal, finding.id, before));
        if (proposal.field == "parallel.tensor" || proposal.field == "parallel.context")
          CHECK(none_nearer(r, proposal, finding.id, before));
      }
    }
  }
  CHECK(legal > 50);
  CHECK(refused > 200);
  CHECK(proposals > 500);
}
