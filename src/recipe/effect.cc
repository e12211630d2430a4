// Options without effect: said, not refused, so that one may switch a recipe back and forth.
#include "recipe/check.h"
#include "recipe/fields.h"
#include "recipe/quantity.h"

namespace tutti::recipe {
namespace {

constexpr std::int64_t most_layers = 10000;  // of a model that is not known

class Notes {
 public:
  explicit Notes(const Where& where) : where_(where) {}

  void idle(bool idle, const std::vector<std::string>& fields, const std::string& why) {
    if (!idle) return;
    for (const std::string& field : fields)
      if (const std::string place = where_(field); !place.empty())
        notes_.push_back({field, place, "", "has no effect: " + why, ""});
  }
  std::vector<Violation> found() { return std::move(notes_); }

 private:
  const Where& where_;
  std::vector<Violation> notes_;
};

void note_model(const Model& m, Notes& notes) {
  const bool gpt2 = m.family == "gpt2" && m.from.empty();
  const std::vector<std::string> rope = {"model.rope_scaling.factor"};
  const std::vector<std::string> llama3 = {"model.rope_scaling.low_frequency_factor",
                                           "model.rope_scaling.high_frequency_factor",
                                           "model.rope_scaling.original_context"};
  notes.idle(gpt2,
             {"model.rope_theta", "model.rope_scaling.kind", "model.qkv_bias", "model.qk_norm",
              "model.qk_norm_whole"},
             "the gpt2 family has none");
  const std::string& kind = m.rope_scaling.kind;
  notes.idle(kind == "none", rope, "model.rope_scaling.kind is none");
  notes.idle(kind != "llama3", llama3, "model.rope_scaling.kind is not llama3");
  notes.idle(gpt2 && kind != "none", rope, "the gpt2 family has none");
  notes.idle(gpt2 && kind == "llama3", llama3, "the gpt2 family has none");
  notes.idle(!m.from.empty(), {"model.init_std"}, "model.from gives the weights");
}

void note_experts(const Model& m, Notes& notes) {
  const Moe& moe = m.moe;
  if (m.from.empty() && moe.experts == 0) {
    for (const Field& field : fields())
      if (field.name.starts_with("model.moe.") && field.name != "model.moe.experts")
        notes.idle(true, {field.name}, "model.moe.experts is 0");
    return;
  }
  notes.idle(moe.aux_loss == 0, {"model.moe.aux_scope"}, "model.moe.aux_loss is 0");
  notes.idle(moe.groups == 1, {"model.moe.groups_per_token"}, "model.moe.groups is 1");
}

void note_optimizer(const Recipe& r, Notes& notes) {
  const std::string& name = r.optimizer.name;
  notes.idle(name == "adamw", {"optimizer.momentum", "optimizer.nesterov"},
             "optimizer.name is adamw");
  notes.idle(name == "sgd", {"optimizer.beta1", "optimizer.beta2", "optimizer.eps"},
             "optimizer.name is sgd");
  notes.idle(name == "sgd" && r.optimizer.momentum == 0, {"optimizer.nesterov"},
             "optimizer.momentum is 0");
  notes.idle(name != "muon", {"optimizer.matrix_lr"}, "optimizer.name is not muon");
  notes.idle(r.schedule.kind == "constant", {"schedule.min_ratio"}, "schedule.kind is constant");
  notes.idle(r.schedule.kind != "wsd", {"schedule.decay"}, "schedule.kind is not wsd");
}

void note_data(const Recipe& r, Notes& notes) {
  const bool evaluates = !r.data.validation.empty() || r.data.validation_fraction > 0;
  notes.idle(!evaluates, {"evaluation.every", "evaluation.batches"}, "there is no validation data");
  bool jsonl = false, folder = false;
  std::error_code ignored;
  for (const auto* list : {&r.data.train, &r.data.validation})
    for (const Source& source : *list) {
      jsonl |= source.path.ends_with(".jsonl");
      folder |= fs::is_directory(source.path, ignored);  // may hold one
    }
  notes.idle(!jsonl && !folder, {"data.text_field"}, "no source is a .jsonl");
}

void note_run(const Recipe& r, Notes& notes) {
  const auto beyond = [&](const Duration& every) {
    return every.unit == r.duration.unit && every.amount > r.duration.amount;
  };
  const std::string run = "it is longer than the run, duration = " + to_text(r.duration);
  notes.idle(beyond(r.checkpoint.every), {"checkpoint.every"}, run);
  notes.idle(beyond(r.evaluation.every), {"evaluation.every"}, run);
  notes.idle(beyond(r.logging.every), {"logging.every"}, run);
  notes.idle(r.checkpoint.every.amount == 0, {"checkpoint.keep_every"}, "checkpoint.every is 0");
  notes.idle(r.checkpoint.keep_last == 0, {"checkpoint.keep_every"},
             "checkpoint.keep_last is 0, which keeps all");
  const std::int64_t layers = r.model.from.empty() ? r.model.layers : most_layers;
  notes.idle(parse_count(r.recompute).value_or(0) > layers, {"recompute"},
             str("above model.layers = ", layers, " it is full"));
  notes.idle(r.recompute != "auto" && r.batch.micro > 0, {"memory_budget"},
             "neither recompute nor batch.micro is auto");
  notes.idle(r.parallel.workers == 1,
             {"parallel.transport", "parallel.encrypt", "parallel.bucket_bytes", "parallel.overlap",
              "parallel.timeout"},
             "there is one worker");
  notes.idle(r.parallel.transport == "shm", {"parallel.encrypt"}, "parallel.transport is shm");
  notes.idle(r.logging.sample_tokens == 0, {"logging.sample_prompt"}, "logging.sample_tokens is 0");
  notes.idle(!r.logging.report, {"logging.sample_prompt", "logging.sample_tokens"},
             "logging.report is off");
}

// What is refused with the wrong engine or degrees (plan/layout.h) is not said here too.
void note_layout(const Recipe& r, Notes& notes) {
  const Parallel& p = r.parallel;
  notes.idle(p.zero != 3, {"parallel.prefetch", "parallel.reshard_after_forward"},
             "parallel.zero is not 3");
  notes.idle(p.tensor == 1, {"parallel.sequence_parallel", "parallel.tensor_chunks"},
             "parallel.tensor is 1");
  notes.idle(p.tensor == 1 && p.expert == 1, {"parallel.rules"},
             "parallel.tensor and parallel.expert are 1");
  notes.idle(p.local_steps == 0,
             {"optimizer.outer_lr", "optimizer.outer_momentum", "optimizer.outer_type",
              "optimizer.outer_mix", "parallel.fragments", "parallel.overlap_steps"},
             "parallel.local_steps is 0");
  notes.idle(p.local_steps > 0 && p.overlap_steps == 0, {"optimizer.outer_mix"},
             "parallel.overlap_steps is 0");
  notes.idle(p.context == 1, {"parallel.context_kind"}, "parallel.context is 1");
  notes.idle(p.pipeline == 1, {"parallel.pipeline_schedule"}, "parallel.pipeline is 1");
  const std::int64_t data = p.workers / model_ranks(p);
  notes.idle(data == 1 && p.zero > 0, {"parallel.zero", "parallel.shard"},
             "there is one data rank");
  notes.idle(data == 1 && p.compress != "none", {"parallel.compress"}, "there is one data rank");
  notes.idle(p.compress == "none", {"parallel.compress_after"}, "parallel.compress is none");
  notes.idle(p.compress != "topk", {"parallel.compress_ratio"}, "parallel.compress is not topk");
  notes.idle(p.compress != "powersgd", {"parallel.compress_rank"},
             "parallel.compress is not powersgd");
  const bool copies = data > 1 && (p.zero < 3 || (p.shard > 0 && p.shard < data));
  const bool tied = p.pipeline > 1 && r.model.tied;
  notes.idle(!copies && !tied && p.tensor == 1 && p.context == 1, {"parallel.watch_divergence"},
             "no two workers hold the same state");
}

}  // namespace

std::vector<Violation> without_effect(const Recipe& recipe, const Where& where) {
  Notes notes(where);
  note_model(recipe.model, notes);
  note_experts(recipe.model, notes);
  note_optimizer(recipe, notes);
  note_data(recipe, notes);
  note_run(recipe, notes);
  note_layout(recipe, notes);
  return notes.found();
}

}  // namespace tutti::recipe
