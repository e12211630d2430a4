#include "recipe/check.h"

#include <algorithm>

#include "recipe/quantity.h"

namespace tutti::recipe {
namespace {

using Unit = Duration::Unit;
using Names = std::vector<std::string>;

// The divisors of `number` next to `near`, each times `scale`: "4 or 8".
std::string nearest_divisors(std::int64_t number, std::int64_t near, std::int64_t scale = 1) {
  std::int64_t below = 1, above = number;
  const auto meet = [&](std::int64_t divisor) {
    if (divisor <= near) below = std::max(below, divisor);
    if (divisor >= near) above = std::min(above, divisor);
  };
  for (std::int64_t d = 1; d * d <= number; ++d) {
    if (number % d) continue;
    meet(d);
    meet(number / d);
  }
  if (near >= number) return str(number * scale);
  return below == above ? str(below * scale) : str(below * scale, " or ", above * scale);
}

// The multiples of `unit` next to `near`.
std::string nearest_multiples(std::int64_t unit, std::int64_t near) {
  const std::int64_t below = near / unit * unit;
  return below == 0 ? str(unit) : str(below, " or ", below + unit);
}

class Requirements {
 public:
  Requirements(const Where& where, const std::set<std::string>& bad) : where_(where), bad_(bad) {}

  // `fields` are all that the rule looks at, the one to blame first. The place told is the first
  // that was set at all.
  template <class Value>
  void require(bool holds, const Names& fields, const Value& value, const std::string& rule,
               const std::string& remedy) {
    if (holds) return;
    std::string place;
    for (const std::string& field : fields) {
      if (bad_.contains(field)) return;
      if (place.empty()) place = where_(field);
    }
    found_.push_back({fields[0], place, str(value), rule, remedy});
  }
  bool set(const std::string& field) const { return !where_(field).empty(); }
  std::vector<Violation> found() { return std::move(found_); }

 private:
  const Where& where_;
  const std::set<std::string>& bad_;
  std::vector<Violation> found_;
};

void check_batch(const Recipe& r, Requirements& rules) {
  const std::int64_t global = r.batch.global, workers = r.parallel.workers;
  const std::int64_t micro = std::max<std::int64_t>(1, r.batch.micro);  // auto: at least one
  rules.require(global % micro == 0, {"batch.micro", "batch.global"}, micro,
                str("must divide batch.global = ", global),
                str("nearest are batch.micro = ", nearest_divisors(global, micro),
                    ", or batch.global = ", nearest_multiples(micro, global)));
  if (global % micro) return;
  const std::int64_t parts = global / micro, each = model_ranks(r.parallel);  // of one data rank
  if (workers % each) return;  // plan/layout.h refuses it
  const std::int64_t data = workers / each;
  std::string remedy = str("nearest are parallel.workers = ", nearest_divisors(parts, data, each));
  remedy += str(", or batch.global = ", nearest_multiples(micro * data, global));
  if (global % data == 0)
    remedy += str(", or batch.micro = ", nearest_divisors(global / data, micro));
  const std::string rule =
      str("must divide the ", parts, " micro-batches of a step (batch.global / batch.micro)");
  const std::string ranks =
      each == 1 ? "" : str("is ", data, " data ranks of ", each, " workers; their number ");
  rules.require(parts % data == 0,
                {"parallel.workers", "batch.micro", "batch.global", "parallel.tensor",
                 "parallel.context", "parallel.pipeline"},
                workers, ranks + rule, remedy);
}

void check_heads(const Recipe& r, Requirements& rules) {
  const Model& m = r.model;
  rules.require(m.head_dim != 0 || m.embed % m.heads == 0, {"model.heads", "model.embed"}, m.heads,
                str("must divide model.embed = ", m.embed),
                str("nearest are ", nearest_divisors(m.embed, m.heads), ", or set model.head_dim"));
  const std::int64_t kv_heads = m.kv_heads ? m.kv_heads : m.heads;
  rules.require(m.heads % kv_heads == 0, {"model.kv_heads", "model.heads"}, kv_heads,
                str("must divide model.heads = ", m.heads),
                str("nearest are ", nearest_divisors(m.heads, kv_heads)));
  rules.require(m.family != "gpt2" || m.heads % kv_heads || kv_heads == m.heads,
                {"model.kv_heads", "model.heads", "model.family"}, kv_heads,
                str("must equal model.heads = ", m.heads, " in the gpt2 family"),
                "remove it, or use model.family llama");
  const bool whole = m.head_dim != 0 || m.embed % m.heads == 0;
  const std::int64_t head_dim = m.head_dim ? m.head_dim : m.embed / m.heads;
  rules.require(m.family != "llama" || !whole || head_dim % 2 == 0,
                {"model.head_dim", "model.embed", "model.heads", "model.family"}, head_dim,
                "must be even: rotary embedding turns pairs",
                str("nearest are ", nearest_multiples(2, head_dim)));
  rules.require(m.family != "gpt2" || m.head_dim == 0 || m.head_dim * m.heads == m.embed,
                {"model.head_dim", "model.embed", "model.heads", "model.family"}, m.head_dim,
                str("must be model.embed / model.heads in the gpt2 family"), "remove it");
}

void check_groups(const Moe& m, Requirements& rules) {
  const bool even = m.experts % m.groups == 0;
  rules.require(even, {"model.moe.groups", "model.moe.experts"}, m.groups,
                str("must divide model.moe.experts = ", m.experts),
                str("nearest are ", nearest_divisors(m.experts, m.groups)));
  const bool within = m.groups_per_token <= m.groups;
  rules.require(within, {"model.moe.groups_per_token", "model.moe.groups"}, m.groups_per_token,
                str("must not be above model.moe.groups = ", m.groups),
                str("the nearest is ", m.groups));
  if (!even || !within) return;
  const std::int64_t group = m.experts / m.groups, reachable = group * m.groups_per_token;
  rules.require(m.groups == 1 || group > 1, {"model.moe.groups", "model.moe.experts"}, m.groups,
                "must leave at least two experts a group: its best two say how good it is",
                str("nearest are ", nearest_divisors(m.experts, m.experts / 2)));
  rules.require(m.experts_per_token <= reachable,
                {"model.moe.experts_per_token", "model.moe.experts", "model.moe.groups",
                 "model.moe.groups_per_token"},
                m.experts_per_token,
                str("must not be above the ", reachable, " experts that a token may go to"),
                str("the nearest is ", reachable));
}

void check_experts(const Recipe& r, Requirements& rules) {
  const Moe& m = r.model.moe;
  rules.require(!r.model.qk_norm_whole || r.model.qk_norm, {"model.qk_norm_whole", "model.qk_norm"},
                "on", "needs model.qk_norm: on", "set model.qk_norm: on, or remove it");
  if (m.experts == 0) return;
  rules.require(r.model.family != "gpt2", {"model.moe.experts", "model.family"}, m.experts,
                "must be 0 in the gpt2 family", "remove it, or use model.family llama");
  check_groups(m, rules);
  rules.require(
      m.dense_layers < r.model.layers, {"model.moe.dense_layers", "model.layers"}, m.dense_layers,
      str("must be below model.layers = ", r.model.layers),
      str("the nearest is ", r.model.layers - 1, "; model.moe.experts: 0 makes all layers dense"));
  rules.require(!m.shared_gate || m.shared_experts > 0,
                {"model.moe.shared_gate", "model.moe.shared_experts"}, "on",
                "needs model.moe.shared_experts", "set model.moe.shared_experts, or remove it");
}

void check_model(const Recipe& r, Requirements& rules) {
  const Model& m = r.model;
  if (!m.from.empty()) {
    for (const std::string& field : shape_fields())
      rules.require(!rules.set(field), {field, "model.from"}, "",
                    "contradicts model.from, whose config.json sets it",
                    str("remove ", field, " or model.from"));
    return;
  }
  check_heads(r, rules);
  check_experts(r, rules);
  rules.require(m.context == 0 || m.context >= r.data.sequence, {"model.context", "data.sequence"},
                m.context, str("must not be below data.sequence = ", r.data.sequence),
                str("the nearest is ", r.data.sequence));
  rules.require(m.vocab == 0 || m.vocab >= 256 || r.data.tokenizer != "bytes",
                {"model.vocab", "data.tokenizer"}, m.vocab,
                "must hold the 256 ids of data.tokenizer = bytes",
                "the nearest is 256; 0 follows the tokenizer");
  const RopeScaling& rope = m.rope_scaling;
  rules.require(
      rope.kind != "llama3" || rope.low_frequency_factor < rope.high_frequency_factor,
      {"model.rope_scaling.high_frequency_factor", "model.rope_scaling.kind",
       "model.rope_scaling.low_frequency_factor"},
      number_text(rope.high_frequency_factor),
      str("must be above low_frequency_factor = ", number_text(rope.low_frequency_factor)),
      "Llama 3 uses 1 and 4");
}

// Steps, where they follow from the recipe alone.
std::optional<double> steps(const Duration& duration, const Recipe& r) {
  if (duration.unit == Unit::steps) return duration.amount;
  if (duration.unit != Unit::tokens) return std::nullopt;
  return static_cast<double>(steps_of(duration, 1, r.batch.global, r.data.sequence));
}

// Both in one unit; nullopt if only the data or the clock can compare them.
std::optional<bool> longer(const Duration& a, const Duration& b, const Recipe& r) {
  if (a.unit == b.unit) return a.amount > b.amount;
  const auto left = steps(a, r), right = steps(b, r);
  if (!left || !right) return std::nullopt;
  return *left > *right;
}

void check_schedule(const Recipe& r, Requirements& rules) {
  const Schedule& s = r.schedule;
  const std::string whole = to_text(r.duration);
  const bool warm = !longer(s.warmup, r.duration, r).value_or(false);
  rules.require(warm, {"schedule.warmup", "duration", "batch.global", "data.sequence"},
                to_text(s.warmup), str("must not be longer than the run (duration = ", whole, ")"),
                str("the nearest is ", whole));
  if (s.kind != "wsd" || !warm) return;
  const auto rise = steps(s.warmup, r), fall = steps(s.decay, r), all = steps(r.duration, r);
  rules.require(!rise || !fall || !all || *rise + *fall <= *all,
                {"schedule.decay", "schedule.warmup", "duration", "batch.global", "data.sequence"},
                to_text(s.decay),
                str("must fit into the run after the warm-up (duration = ", whole,
                    ", schedule.warmup = ", to_text(s.warmup), ")"),
                str("the nearest is ", all && rise ? number_text(*all - *rise) : "0", " steps"));
}

void check_time(const Recipe& r, Requirements& rules) {
  rules.require(r.duration.amount > 0, {"duration"}, to_text(r.duration), "must be above 0",
                "like 2000 steps, 10m tokens, 3 epochs, 1h");
  if (r.duration.amount > 0) check_schedule(r, rules);
  for (const auto& [field, value] : {std::pair{"schedule.warmup", r.schedule.warmup},
                                     {"schedule.decay", r.schedule.decay},
                                     {"checkpoint.every", r.checkpoint.every},
                                     {"checkpoint.keep_every", r.checkpoint.keep_every},
                                     {"evaluation.every", r.evaluation.every},
                                     {"logging.every", r.logging.every}})
    rules.require(value.unit != Unit::seconds || value.amount == 0, {field}, to_text(value),
                  "must be in steps, tokens or epochs: times differ between workers and runs",
                  "like 100 steps, 10m tokens (a bare m is minutes)");
  const Duration &every = r.checkpoint.every, &keep = r.checkpoint.keep_every;
  const auto unit = static_cast<std::int64_t>(every.amount);
  rules.require(every.unit != Unit::steps || keep.unit != Unit::steps || unit == 0 ||
                    static_cast<std::int64_t>(keep.amount) % unit == 0,
                {"checkpoint.keep_every", "checkpoint.every"}, to_text(keep),
                str("must be a multiple of checkpoint.every = ", to_text(every)),
                str("nearest are ",
                    nearest_multiples(std::max<std::int64_t>(unit, 1),
                                      static_cast<std::int64_t>(keep.amount)),
                    " steps"));
}

void check_memory(const Recipe& r, Requirements& rules) {
  rules.require(r.recompute != "auto" || r.memory_budget > 0, {"recompute", "memory_budget"},
                r.recompute, "needs memory_budget, which is 0", "set memory_budget, like 2gb");
  rules.require(r.batch.micro > 0 || r.memory_budget > 0, {"batch.micro", "memory_budget"}, "auto",
                "needs memory_budget, which is 0", "set memory_budget, like 2gb, or a number");
  rules.require(r.batch.micro > 0 || r.model.from.empty(), {"batch.micro", "model.from"}, "auto",
                "cannot go with model.from: the recipe does not tell the model's sizes",
                "set a number");
}

void check_sources(const Recipe& r, Requirements& rules) {
  rules.require(!r.data.train.empty(), {"data.train"}, "", "is missing",
                "name a file or a folder of text");
  rules.require(r.data.validation.empty() || r.data.validation_fraction == 0,
                {"data.validation_fraction", "data.validation"},
                number_text(r.data.validation_fraction), "contradicts data.validation",
                "remove one of the two");
  const auto learnt = learnt_vocab(r.data.tokenizer);
  rules.require(!learnt || *learnt > 256, {"data.tokenizer"}, r.data.tokenizer,
                "must learn more than the 256 bytes and the end of a document",
                "the nearest is bpe-257; bytes needs no learning");
  rules.require(!r.data.tokenizer.empty(), {"data.tokenizer"}, "\"\"", "must not be empty",
                "the default is bytes");
}

}  // namespace

const std::vector<std::string>& shape_fields() {
  static const Names names = {"model.family",
                              "model.vocab",
                              "model.layers",
                              "model.embed",
                              "model.heads",
                              "model.kv_heads",
                              "model.head_dim",
                              "model.mlp",
                              "model.context",
                              "model.norm_eps",
                              "model.rope_theta",
                              "model.rope_scaling.kind",
                              "model.rope_scaling.factor",
                              "model.rope_scaling.low_frequency_factor",
                              "model.rope_scaling.high_frequency_factor",
                              "model.rope_scaling.original_context",
                              "model.tied",
                              "model.qkv_bias",
                              "model.qk_norm",
                              "model.qk_norm_whole",
                              "model.moe.experts",
                              "model.moe.experts_per_token",
                              "model.moe.expert_mlp",
                              "model.moe.shared_experts",
                              "model.moe.shared_gate",
                              "model.moe.dense_layers",
                              "model.moe.router",
                              "model.moe.normalise",
                              "model.moe.router_scale",
                              "model.moe.groups",
                              "model.moe.groups_per_token"};
  return names;
}

std::vector<Violation> contradictions(const Recipe& recipe, const Where& where,
                                      const std::set<std::string>& bad) {
  Requirements rules(where, bad);
  for (auto check : {check_batch, check_model, check_time, check_memory, check_sources})
    check(recipe, rules);
  return rules.found();
}

}  // namespace tutti::recipe
