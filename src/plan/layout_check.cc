// The rules on degrees and sizes, one function a subject.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "mesh/placement.h"
#include "plan/layout.h"
#include "plan/layout_rules.h"
#include "recipe/fields.h"
#include "recipe/parse.h"
#include "recipe/quantity.h"

namespace tutti::plan {
namespace {

using recipe::Parallel;
using recipe::Recipe;
using Names = std::vector<std::string>;

constexpr std::int64_t most_passes = 20'000'000;  // of a schedule, before it is a slip of the pen

struct Judge {
  explicit Judge(const Recipe& recipe)
      : r(recipe), p(r.parallel), s(r), rules(layout_rules(p.rules)) {}

  const Recipe& r;
  const Parallel& p;
  const Sizes s;
  const std::map<std::string, std::string> rules;
  std::vector<Finding> found;

  void refuse(Finding finding) { found.push_back(std::move(finding)); }
  bool cut(const char* axis) const { return rules.at(axis) == "tensor"; }
  bool gpt2() const { return r.model.family == "gpt2"; }
  bool heads_cut() const { return cut("heads") && cut(gpt2() ? "qkv" : "kv_heads"); }
  std::string value(const std::string& field) const { return recipe::find_field(field)->get(r); }
  bool unset(const std::string& field) const {
    return value(field) == recipe::find_field(field)->get(Recipe());
  }
};

// --- engines

void keep_default(Judge& j, const std::string& field, const std::string& why) {
  if (j.unset(field)) return;
  const std::string standard = recipe::find_field(field)->get(Recipe());
  j.refuse({"engine:" + field,
            {field, "parallel.engine"},
            j.value(field),
            str("must be ", standard.empty() ? "left out" : standard,
                " with parallel.engine = ", j.p.engine, why),
            {{field, {standard}}, {"parallel.engine"}},
            "set parallel.engine: mesh"});
}

void check_engine(Judge& j) {
  const bool replicated = j.p.engine == "replicated", sharded = j.p.engine == "sharded";
  if (replicated)
    for (const char* field : {"parallel.zero", "parallel.shard"})
      keep_default(j, field, ", which keeps whole copies");
  if (replicated || sharded)
    for (const char* field : {"parallel.tensor", "parallel.context", "parallel.pipeline",
                              "parallel.expert", "parallel.expert_tensor", "parallel.rules"})
      keep_default(j, field, ", which spreads the data alone");
  if (sharded && j.p.zero == 0)
    j.refuse({"sharded",
              {"parallel.zero", "parallel.engine"},
              "0",
              "must be 1, 2 or 3 with parallel.engine = sharded",
              {{"parallel.zero"}, {"parallel.engine"}},
              "set parallel.zero: 1"});
}

// --- degrees

void check_product(Judge& j) {
  if (j.s.fits) return;
  Finding finding{"product",
                  {"parallel.workers", "parallel.tensor", "parallel.context", "parallel.pipeline"},
                  str(j.p.workers),
                  str("must be a multiple of tensor x context x pipeline = ", j.p.tensor, " x ",
                      j.p.context, " x ", j.p.pipeline, " = ", recipe::model_ranks(j.p)),
                  {{"parallel.workers"}},
                  "let the product of the degrees divide parallel.workers"};
  for (const char* degree : {"parallel.tensor", "parallel.context", "parallel.pipeline"})
    if (!j.unset(degree)) finding.trials.push_back({degree});
  j.refuse(std::move(finding));
}

void check_transport(Judge& j) {
  if (j.p.transport != "shm") return;
  Finding finding{"transport",
                  {"parallel.workers", "parallel.transport"},
                  str(j.p.workers),
                  str("must not be above ", most_shm_workers, " with parallel.transport = shm"),
                  {{"parallel.workers"}, {"parallel.transport"}},
                  "use parallel.transport: auto"};
  if (j.p.workers > most_shm_workers) j.refuse(std::move(finding));
}

void check_encryption(Judge& j) {
  if (!j.p.encrypt || j.p.transport != "gloo") return;
  j.refuse({"encryption",
            {"parallel.encrypt", "parallel.transport"},
            "on",
            "needs parallel.transport = auto or tcp: gloo sends all in the clear",
            {{"parallel.transport", {"auto", "tcp"}}, {"parallel.encrypt", {"off"}}},
            "use parallel.transport: auto"});
}

void check_batch(Judge& j) {
  const bool whole = j.r.batch.global % j.r.batch.micro == 0;
  if (whole && (!j.s.fits || j.s.micro_batches > 0)) return;
  Finding finding{"batch",
                  {"batch.global", "batch.micro", "parallel.workers"},
                  str(j.r.batch.global),
                  str("must give each of the ", j.s.data,
                      " data ranks equally many micro-batches of ", j.r.batch.micro),
                  {{"batch.global"}, {"batch.micro"}, {"parallel.workers"}},
                  "",
                  true};
  j.refuse(std::move(finding));
}

void check_shard(Judge& j) {
  if (j.p.shard == 0 || j.p.engine == "replicated") return;
  const Names fields = {"parallel.shard",  "parallel.zero",    "parallel.workers",
                        "parallel.tensor", "parallel.context", "parallel.pipeline"};
  if (j.p.zero == 0)
    j.refuse({"shard",
              {fields[0], fields[1]},
              str(j.p.shard),
              "needs parallel.zero above 0: else every data rank holds all of the state",
              {{"parallel.shard", {"0"}}, {"parallel.zero"}},
              "set parallel.zero or remove it"});
  else if (j.s.fits && j.s.data % j.p.shard != 0)
    j.refuse({"shard",
              fields,
              str(j.p.shard),
              str("must divide the number of data ranks = ", j.s.data),
              {{"parallel.shard"}},
              "0 shares among all of them"});
}

// --- tensor

void not_above(Judge& j, const std::string& id, const std::string& degree, std::int64_t value,
               const std::string& size, std::int64_t most, const std::string& why) {
  if (value <= most) return;
  j.refuse({id,
            {degree, size},
            str(value),
            str("must not be above ", size, " = ", most, why),
            {{degree}},
            str("the most is ", most)});
}

void check_tensor_sizes(Judge& j) {
  const recipe::Moe& moe = j.r.model.moe;
  const std::string tensor = "parallel.tensor";
  if (j.heads_cut() && j.gpt2())
    not_above(j, "heads", tensor, j.p.tensor, "model.heads", j.s.kv_heads, ": heads are cut whole");
  else if (j.heads_cut())
    not_above(j, "heads", tensor, j.p.tensor, "model.kv_heads", j.s.kv_heads,
              ": a key head and its query heads are not cut");
  const bool dense = moe.experts == 0 || moe.dense_layers > 0;
  if (j.cut("mlp") && dense) not_above(j, "mlp", tensor, j.p.tensor, "model.mlp", j.s.mlp, "");
  if (j.cut("vocab") && j.s.vocab > 0)
    not_above(j, "vocab", tensor, j.p.tensor, "model.vocab", j.s.vocab, "");
}

void check_tensor(Judge& j) {
  if (j.p.tensor == 1) return;
  if (j.s.known) check_tensor_sizes(j);
  const std::string degree = str("parallel.tensor = ", j.p.tensor);
  if (j.r.optimizer.name == "muon" && (j.heads_cut() || j.cut("mlp")))
    j.refuse({"muon",
              {"optimizer.name", "parallel.tensor"},
              "muon",
              "needs whole matrices, which " + degree + " cuts",
              {{"optimizer.name", {"adamw"}}, {"parallel.tensor", {"1"}}},
              "use optimizer.name: adamw"});
  if (j.s.known && j.r.model.qk_norm_whole && j.heads_cut())
    j.refuse({"qk_norm",
              {"model.qk_norm_whole", "parallel.tensor"},
              "on",
              "needs all heads on one rank, which " + degree + " cuts",
              {{"model.qk_norm_whole", {"off"}}, {"parallel.tensor", {"1"}}},
              "set parallel.tensor: 1"});
  if (j.p.sequence_parallel && !j.heads_cut())
    j.refuse({"whole heads",
              {"parallel.sequence_parallel", "parallel.rules", "parallel.tensor"},
              "on",
              "needs heads that are cut over tensor: attention looks at all tokens",
              {{"parallel.sequence_parallel", {"off"}}},
              "cut the heads, or set it off"});
  const bool any = std::any_of(j.rules.begin(), j.rules.end(),
                               [](const auto& rule) { return rule.second == "tensor"; });
  if (!any)
    j.refuse({"nothing cut",
              {"parallel.tensor", "parallel.rules"},
              str(j.p.tensor),
              "needs something to cut: parallel.rules cuts nothing over tensor",
              {{"parallel.tensor", {"1"}}, {"parallel.rules", {""}}},
              "remove parallel.rules"});
}

// --- context

void check_exchange(Judge& j, const std::string& field, std::int64_t degree) {
  const bool cut = j.heads_cut() && j.p.tensor > 1;
  if (!j.s.known || (cut && j.p.tensor > j.s.kv_heads)) return;
  std::set<std::int64_t> sizes;
  for (int t = 0; t < (cut ? j.p.tensor : 1); ++t)
    sizes.insert(slice_of(j.s.kv_heads, cut ? static_cast<int>(j.p.tensor) : 1, t).size);
  Names texts;
  for (const std::int64_t size : sizes) texts.push_back(str(size));
  if (std::all_of(sizes.begin(), sizes.end(), [&](auto size) { return size % degree == 0; }))
    return;
  Finding finding{
      "exchange",
      {field, "parallel.context_kind", "model.kv_heads", "model.heads", "parallel.tensor"},
      str(degree),
      str("must divide the ", join(texts, " or "),
          cut ? " key heads of a tensor rank" : " key heads", ": they are exchanged whole"),
      {{field}},
      "use parallel.context_kind: ring"};
  if (field == "parallel.context") finding.trials.push_back({"parallel.context_kind"});
  j.refuse(std::move(finding));
}

void check_mixed(Judge& j) {
  const Names fields = {"parallel.ulysses", "parallel.context", "parallel.context_kind"};
  const std::string context = str("parallel.context = ", j.p.context);
  if (j.p.ulysses > 0 && j.p.context % j.p.ulysses == 0)
    return check_exchange(j, "parallel.ulysses", j.p.ulysses);
  j.refuse({"mixed",
            fields,
            str(j.p.ulysses),
            j.p.ulysses == 0
                ? "must be set with parallel.context_kind = mixed, to a divisor of " + context
                : "must divide " + context,
            {{"parallel.ulysses"}, {"parallel.context_kind"}},
            "use parallel.context_kind: ring"});
}

void check_context(Judge& j) {
  const bool mixed = j.p.context_kind == "mixed" && j.p.context > 1;
  if (j.p.ulysses > 0 && !mixed)
    j.refuse(
        {"ulysses",
         {"parallel.ulysses", "parallel.context_kind", "parallel.context"},
         str(j.p.ulysses),
         j.p.context > 1 ? "needs parallel.context_kind = mixed" : "needs parallel.context above 1",
         {{"parallel.ulysses", {"0"}}, {"parallel.context_kind", {"mixed"}}},
         "remove it"});
  if (j.p.context == 1) return;
  not_above(j, "sequence", "parallel.context", j.p.context, "data.sequence", j.r.data.sequence, "");
  if (mixed) check_mixed(j);
  if (j.p.context_kind == "ulysses") check_exchange(j, "parallel.context", j.p.context);
}

// --- pipeline

// The cut with `more` layers (or fewer) in its last stages.
std::string mended(std::vector<std::int64_t> cut, std::int64_t more) {
  for (auto stage = cut.rbegin(); stage != cut.rend() && more != 0; ++stage) {
    const std::int64_t change = std::max(more, -*stage);
    *stage += change;
    more -= change;
  }
  Names words;
  for (const std::int64_t layers : cut) words.push_back(str(layers));
  return join(words, " ");
}

void check_cut(Judge& j) {
  const std::vector<std::int64_t> cut = layers_of_cut(j.p.pipeline_cut);
  const std::int64_t stages = j.p.pipeline * j.p.pipeline_chunks, layers = j.r.model.layers;
  if (cut.empty()) {
    if (j.s.layers_known && stages > layers)
      j.refuse({"stages",
                {"parallel.pipeline", "parallel.pipeline_chunks", "model.layers"},
                str(j.p.pipeline),
                str("makes ", stages, " stages, which must not be above model.layers = ", layers),
                {{"parallel.pipeline"}, {"parallel.pipeline_chunks"}},
                "let pipeline x pipeline_chunks be at most the layers"});
    return;
  }
  std::int64_t sum = 0;
  for (const std::int64_t count : cut) sum += count;
  const std::string otherwise = "even needs no numbers";
  if (static_cast<std::int64_t>(cut.size()) != stages)
    j.refuse(
        {"cut stages",
         {"parallel.pipeline_cut", "parallel.pipeline", "parallel.pipeline_chunks"},
         j.p.pipeline_cut,
         str("must have a number for each of the ", stages, " stages (pipeline x chunks), not ",
             cut.size()),
         {{"parallel.pipeline_cut", {"even"}}, {"parallel.pipeline"}, {"parallel.pipeline_chunks"}},
         otherwise});
  if (j.s.layers_known && sum != layers)
    j.refuse({"cut layers",
              {"parallel.pipeline_cut", "model.layers"},
              j.p.pipeline_cut,
              str("must sum to model.layers = ", layers, ", not to ", sum),
              {{"parallel.pipeline_cut", {"even", mended(cut, layers - sum)}}},
              otherwise});
}

void check_schedule(Judge& j) {
  const auto ranks = static_cast<int>(j.p.pipeline), chunks = static_cast<int>(j.p.pipeline_chunks);
  const auto some = static_cast<int>(j.s.micro_batches > 0 ? j.s.micro_batches : 2 * ranks);
  const std::string& kind = j.p.pipeline_schedule;
  for (const Violation& wrong : pipeline_violations(kind, ranks, chunks, some)) {
    if (wrong.field == "pipeline.chunks")
      j.refuse({"chunks",
                {"parallel.pipeline_chunks", "parallel.pipeline_schedule"},
                wrong.value,
                wrong.rule,
                {{"parallel.pipeline_chunks"}, {"parallel.pipeline_schedule"}},
                "1f1b has one stage a rank"});
    else
      j.refuse({"micro-batches",
                {"batch.global", "batch.micro", "parallel.pipeline_schedule", "parallel.pipeline",
                 "parallel.workers"},
                str(j.r.batch.global),
                str("makes ", some, some == 1 ? " micro-batch" : " micro-batches",
                    " for a data rank; with ", kind, " their number ", wrong.rule),
                {{"batch.global"}, {"batch.micro"}, {"parallel.pipeline_schedule"}},
                "use parallel.pipeline_schedule: 1f1b"});
  }
  const double passes = 2.0 * ranks * chunks * some;
  if (passes > most_passes)
    j.refuse({"passes",
              {"batch.micro", "batch.global", "parallel.pipeline"},
              str(j.r.batch.micro),
              str("makes a schedule of more than ", most_passes, " passes"),
              {{"batch.micro"}},
              "use larger micro-batches"});
}

void check_idle_pipeline(Judge& j) {
  for (const std::string field : {"parallel.pipeline_chunks", "parallel.pipeline_cut"})
    if (!j.unset(field))
      j.refuse({"idle:" + field,
                {field, "parallel.pipeline"},
                j.value(field),
                "needs parallel.pipeline above 1",
                {{field, {recipe::find_field(field)->get(Recipe())}}, {"parallel.pipeline"}},
                "remove it"});
}

void check_pipeline(Judge& j) {
  if (j.p.pipeline == 1) return check_idle_pipeline(j);
  check_cut(j);
  check_schedule(j);
  const bool folded =
      j.p.pipeline_schedule == "zb-v" || j.p.pipeline_schedule == "dualpipe-v";  // a V
  if (j.s.known && j.r.model.tied && folded)
    j.refuse({"tied",
              {"model.tied", "parallel.pipeline_schedule"},
              "on",
              str("lets the first and the last stage share a weight, and ", j.p.pipeline_schedule,
                  " puts both on one rank"),
              {{"model.tied", {"off"}}, {"parallel.pipeline_schedule"}},
              "use another schedule"});
}

// --- experts

void check_expert_sizes(Judge& j) {
  const recipe::Moe& moe = j.r.model.moe;
  if (moe.experts > 0) {
    not_above(j, "experts", "parallel.expert", j.p.expert, "model.moe.experts", moe.experts, "");
    not_above(j, "expert_mlp", "parallel.expert_tensor", j.p.expert_tensor, "model.moe.expert_mlp",
              j.s.expert_mlp, "");
    return;
  }
  for (const char* field : {"parallel.expert", "parallel.expert_tensor"})
    if (!j.unset(field))
      j.refuse({str("dense:", field),
                {field, "model.moe.experts"},
                j.value(field),
                "needs model.moe.experts above 0",
                {{field, {"1"}}},
                "set model.moe.experts"});
}

void check_experts(Judge& j) {
  if (j.p.expert == 1 && j.p.expert_tensor == 1) return;
  if (j.s.known) check_expert_sizes(j);
  if (j.s.known && j.r.model.moe.experts == 0) return;
  const std::int64_t here = j.p.workers / j.p.pipeline, folded = j.p.expert * j.p.expert_tensor;
  if (j.s.fits && here % folded != 0) {
    const Names both = {"parallel.expert", "parallel.expert_tensor"};
    const std::size_t first = j.p.expert > 1 ? 0 : 1;
    j.refuse({"expert ranks",
              {both[first], both[1 - first], "parallel.workers", "parallel.pipeline"},
              j.value(both[first]),
              str("makes expert x expert_tensor = ", folded,
                  ", which must divide data x context x tensor = ", here),
              {{both[0]}, {both[1]}},
              "let expert x expert_tensor divide data x context x tensor"});
  }
  const auto need_rule = [&](const std::string& degree, const char* axis, const char* not_done) {
    const std::string field = "parallel." + degree;
    if (!j.unset(field) && j.rules.at(axis) == "none")
      j.refuse({degree + " rule",
                {field, "parallel.rules"},
                j.value(field),
                str("needs something to spread: parallel.rules ", not_done),
                {{field, {"1"}}, {"parallel.rules", {""}}},
                str("remove ", axis, "=none")});
  };
  need_rule("expert", "expert", "deals no experts");
  need_rule("expert_tensor", "mlp", "cuts no mlp");
}

}  // namespace

Sizes::Sizes(const Recipe& recipe) {
  const recipe::Model& m = recipe.model;
  layers_known = m.from.empty();
  known = layers_known && !m.own;
  kv_heads = m.kv_heads > 0 ? m.kv_heads : m.heads;
  mlp = m.mlp > 0 ? m.mlp : m.family == "gpt2" ? 4 * m.embed : (8 * m.embed + 23) / 24 * 8;
  expert_mlp = m.moe.expert_mlp > 0 ? m.moe.expert_mlp : mlp;
  vocab = m.vocab > 0 ? m.vocab : recipe::learnt_vocab(recipe.data.tokenizer).value_or(0);
  const std::int64_t each = recipe::model_ranks(recipe.parallel);
  fits = recipe.parallel.workers % each == 0;
  data = fits ? recipe.parallel.workers / each : 1;
  const std::int64_t global = recipe.batch.global, one = data * recipe.batch.micro;
  micro_batches = fits && global % one == 0 ? global / one : 0;
}

std::vector<std::int64_t> layers_of_cut(const std::string& cut) {
  std::vector<std::int64_t> layers;
  if (cut == "even") return layers;
  for (const std::string& word : split(cut, ' '))
    layers.push_back(recipe::parse_count(word).value_or(0));
  return layers;
}

std::vector<Finding> findings(const Recipe& recipe) {
  const Recipe island = island_of(recipe);
  Judge judge(island);
  check_islands(recipe, judge.found);
  for (auto check : {check_engine, check_product, check_transport, check_encryption, check_batch,
                     check_shard, check_tensor, check_context, check_pipeline, check_experts})
    check(judge);
  check_rules(recipe, judge.found);
  check_compress(recipe, judge.found);
  return std::move(judge.found);
}

}  // namespace tutti::plan
