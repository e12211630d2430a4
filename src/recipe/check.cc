#include "recipe/check.h"

#include <unistd.h>

#include "recipe/quantity.h"

namespace tutti::recipe {
namespace {

// The divisors of `number` next to `near`: "4 or 8".
std::string nearest_divisors(std::int64_t number, std::int64_t near) {
  std::int64_t below = 1, above = number;
  for (std::int64_t d = 1; d <= number; ++d) {
    if (number % d) continue;
    if (d <= near) below = d;
    if (d >= near) {
      above = d;
      break;
    }
  }
  return below == above ? str(below) : str(below, " or ", above);
}

class Rules {
 public:
  explicit Rules(const Where& where) : where_(where) {}

  template <class Value>
  void require(bool holds, const std::string& field, const Value& value, const std::string& rule,
               const std::string& remedy) {
    if (!holds) found_.push_back({field, where_(field), str(value), rule, remedy});
  }
  bool set(const std::string& field) const { return !where_(field).empty(); }
  std::vector<Violation> found() { return std::move(found_); }

 private:
  const Where& where_;
  std::vector<Violation> found_;
};

void check_batch(const Recipe& r, Rules& rules) {
  const Batch& b = r.batch;
  rules.require(b.global % b.micro == 0, "batch.micro", b.micro,
                str("must divide batch.global = ", b.global),
                str("use ", nearest_divisors(b.global, b.micro), ", or batch.global = ",
                    (b.global / b.micro + 1) * b.micro));
  const std::int64_t micro_batches = b.global / b.micro;
  rules.require(b.global % b.micro || r.parallel.workers <= micro_batches, "parallel.workers",
                r.parallel.workers,
                str("must not exceed the ", micro_batches,
                    " micro-batches of a step (batch.global / batch.micro)"),
                str("use at most ", micro_batches, " workers, or batch.micro = ",
                    nearest_divisors(b.global, std::max<std::int64_t>(
                                                   1, b.global / r.parallel.workers))));
}

void check_model(const Recipe& r, Rules& rules) {
  const Model& m = r.model;
  if (!m.from.empty()) {
    for (const char* field : {"model.vocab", "model.layers", "model.embed", "model.heads",
                              "model.kv_heads", "model.head_dim", "model.mlp", "model.tied",
                              "model.qkv_bias", "model.qk_norm", "model.rope_theta"})
      rules.require(!rules.set(field), field, "set", "contradicts model.from, whose config.json sets it",
                    str("remove ", field, " or model.from"));
    return;
  }
  rules.require(m.head_dim != 0 || m.embed % m.heads == 0, "model.heads", m.heads,
                str("must divide model.embed = ", m.embed),
                str("use ", nearest_divisors(m.embed, m.heads), ", or set model.head_dim"));
  rules.require(m.kv_heads == 0 || m.heads % m.kv_heads == 0, "model.kv_heads", m.kv_heads,
                str("must divide model.heads = ", m.heads),
                str("use ", nearest_divisors(m.heads, m.kv_heads ? m.kv_heads : 1)));
  const std::int64_t head_dim = m.head_dim ? m.head_dim : m.embed / m.heads;
  rules.require(m.family != "llama" || head_dim % 2 == 0, "model.head_dim", head_dim,
                "must be even: rotary embedding turns pairs", str("use ", head_dim + 1));
  rules.require(m.family != "gpt2" || m.kv_heads == 0 || m.kv_heads == m.heads, "model.kv_heads",
                m.kv_heads, "must equal model.heads in the gpt2 family", "remove it, or use family llama");
  rules.require(m.context == 0 || m.context >= r.data.sequence, "model.context", m.context,
                str("must not be below data.sequence = ", r.data.sequence),
                "raise it or shorten data.sequence");
  rules.require(m.rope_scaling.kind != "llama3" || m.rope_scaling.low_frequency_factor <
                                                       m.rope_scaling.high_frequency_factor,
                "model.rope_scaling.high_frequency_factor",
                number_text(m.rope_scaling.high_frequency_factor),
                "must be above low_frequency_factor", "Llama 3 uses 1 and 4");
}

void check_time(const Recipe& r, Rules& rules) {
  rules.require(r.duration.amount > 0, "duration", to_text(r.duration), "must be above 0",
                "like 2000 steps, 10m tokens, 3m");
  rules.require(r.schedule.warmup.unit != r.duration.unit ||
                    r.schedule.warmup.amount <= r.duration.amount,
                "schedule.warmup", to_text(r.schedule.warmup),
                str("must not be longer than the run (duration = ", to_text(r.duration), ")"),
                "shorten it or lengthen duration");
  using Unit = Duration::Unit;
  for (const auto& [field, value] :
       {std::pair{"schedule.warmup", r.schedule.warmup}, {"schedule.decay", r.schedule.decay},
        {"checkpoint.every", r.checkpoint.every}, {"checkpoint.keep_every", r.checkpoint.keep_every},
        {"evaluation.every", r.evaluation.every}, {"logging.every", r.logging.every}})
    rules.require(value.unit != Unit::seconds || value.amount == 0, field, to_text(value),
                  "must be in steps, tokens or epochs: a time would differ between workers and runs",
                  "like 100 steps");
}

void check_data_fields(const Recipe& r, Rules& rules) {
  rules.require(!r.data.train.empty(), "data.train", "", "is missing", "name a file or a folder of text");
  rules.require(r.data.validation.empty() || r.data.validation_fraction == 0,
                "data.validation_fraction", number_text(r.data.validation_fraction),
                "contradicts data.validation", "remove one of the two");
  for (const Source& source : r.data.train)
    rules.require(source.weight > 0, "data.train", number_text(source.weight),
                  "each weight must be above 0", "remove the source instead of giving it weight 0");
}

}  // namespace

std::vector<Violation> contradictions(const Recipe& recipe, const Where& where) {
  Rules rules(where);
  check_batch(recipe, rules);
  check_model(recipe, rules);
  check_time(recipe, rules);
  check_data_fields(recipe, rules);
  return rules.found();
}

std::vector<Violation> without_effect(const Recipe& r, const Where& where) {
  std::vector<Violation> notes;
  const auto note = [&](bool idle, const char* field, const std::string& why) {
    if (idle && !where(field).empty())
      notes.push_back({field, where(field), "", "has no effect: " + why, ""});
  };
  const bool adamw = r.optimizer.name == "adamw";
  note(adamw, "optimizer.momentum", "optimizer.name is adamw");
  note(adamw, "optimizer.nesterov", "optimizer.name is adamw");
  note(r.optimizer.name != "muon", "optimizer.matrix_lr", "optimizer.name is not muon");
  for (const char* field : {"optimizer.beta1", "optimizer.beta2", "optimizer.eps"})
    note(r.optimizer.name == "sgd", field, "optimizer.name is sgd");
  note(r.schedule.kind == "constant", "schedule.min_ratio", "schedule.kind is constant");
  note(r.schedule.kind != "wsd", "schedule.decay", "schedule.kind is not wsd");
  const bool gpt2 = r.model.family == "gpt2";
  for (const char* field : {"model.rope_theta", "model.rope_scaling.kind", "model.qkv_bias", "model.qk_norm"})
    note(gpt2, field, "the gpt2 family has none");
  for (const char* field : {"model.rope_scaling.factor"})
    note(r.model.rope_scaling.kind == "none", field, "model.rope_scaling.kind is none");
  for (const char* field :
       {"model.rope_scaling.low_frequency_factor", "model.rope_scaling.high_frequency_factor",
        "model.rope_scaling.original_context"})
    note(r.model.rope_scaling.kind != "llama3", field, "model.rope_scaling.kind is not llama3");
  const bool evaluates = !r.data.validation.empty() || r.data.validation_fraction > 0;
  note(!evaluates, "evaluation.every", "there is no validation data");
  note(!evaluates, "evaluation.batches", "there is no validation data");
  bool jsonl = false;
  for (const auto* list : {&r.data.train, &r.data.validation})
    for (const Source& source : *list)
      jsonl |= source.path.ends_with(".jsonl") || fs::is_directory(source.path);
  note(!jsonl, "data.text_field", "no source is a .jsonl");
  note(r.checkpoint.every.amount == 0, "checkpoint.keep_every", "checkpoint.every is 0");
  note(r.parallel.workers == 1, "parallel.transport", "there is one worker");
  note(r.logging.sample_tokens == 0, "logging.sample_prompt", "logging.sample_tokens is 0");
  return notes;
}

std::vector<Violation> find_data(Recipe& recipe, const fs::path& folder, const Where& where) {
  std::vector<Violation> found;
  const auto look = [&](std::string& path, const std::string& field, const char* remedy) {
    if (fs::exists(path) || path.empty()) {
      if (!path.empty() && ::access(path.c_str(), R_OK) != 0)
        found.push_back({field, where(field), path, "may not be read", "change its permissions"});
      return;
    }
    const fs::path beside = folder / path;
    if (!fs::path(path).is_absolute() && fs::exists(beside)) {
      path = beside.string();
    } else {
      found.push_back({field, where(field), path,
                       str("does not exist in ", fs::current_path().string(),
                           fs::equivalent(folder, ".") ? "" : " or " + folder.string()),
                       remedy});
    }
  };
  for (Source& source : recipe.data.train) look(source.path, "data.train", "check the path");
  for (Source& source : recipe.data.validation) look(source.path, "data.validation", "check the path");
  if (recipe.data.tokenizer != "bytes")
    look(recipe.data.tokenizer, "data.tokenizer", "use bytes or the path of a tokenizer");
  look(recipe.model.from, "model.from", "name a folder with config.json and model.safetensors");
  return found;
}

}  // namespace tutti::recipe
