#include "recipe/suggest.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "recipe/quantity.h"

namespace tutti::recipe {
namespace {

using Strings = std::vector<std::string>;

// What other programs call a field, without its group.
constexpr std::pair<const char*, const char*> other_names[] = {
    {"learning_rate", "optimizer.lr"},
    {"betas", "optimizer.beta1"},
    {"grad_clip", "optimizer.clip"},
    {"max_grad_norm", "optimizer.clip"},
    {"wd", "optimizer.weight_decay"},
    {"type", "optimizer.name"},
    {"batch_size", "batch.global"},
    {"micro_batch_size", "batch.micro"},
    {"accumulation", "batch.micro"},
    {"gradient_accumulation", "batch.micro"},
    {"steps", "duration"},
    {"max_steps", "duration"},
    {"epochs", "duration"},
    {"hidden_size", "model.embed"},
    {"hidden", "model.embed"},
    {"dim", "model.embed"},
    {"n_layer", "model.layers"},
    {"num_layers", "model.layers"},
    {"n_head", "model.heads"},
    {"num_heads", "model.heads"},
    {"intermediate_size", "model.mlp"},
    {"vocab_size", "model.vocab"},
    {"seq_len", "data.sequence"},
    {"sequence_length", "data.sequence"},
    {"block_size", "data.sequence"},
    {"warmup_steps", "schedule.warmup"},
    {"nproc", "parallel.workers"},
    {"world_size", "parallel.workers"},
    {"dp", "parallel.workers"},
    {"data_parallel_size", "parallel.workers"},
    {"strategy", "parallel.engine"},
    {"fsdp", "parallel.engine"},
    {"ddp", "parallel.engine"},
    {"zero_stage", "parallel.zero"},
    {"stage", "parallel.zero"},
    {"sharding_strategy", "parallel.zero"},
    {"hsdp", "parallel.shard"},
    {"data_parallel_shard_degree", "parallel.shard"},
    {"tp", "parallel.tensor"},
    {"tensor_parallel", "parallel.tensor"},
    {"tensor_parallel_size", "parallel.tensor"},
    {"tensor_parallel_degree", "parallel.tensor"},
    {"tensor_model_parallel_size", "parallel.tensor"},
    {"sp", "parallel.sequence_parallel"},
    {"cp", "parallel.context"},
    {"context_parallel", "parallel.context"},
    {"context_parallel_size", "parallel.context"},
    {"context_parallel_degree", "parallel.context"},
    {"cp_comm_type", "parallel.context_kind"},
    {"pp", "parallel.pipeline"},
    {"pipeline_parallel", "parallel.pipeline"},
    {"pipeline_parallel_size", "parallel.pipeline"},
    {"pipeline_parallel_degree", "parallel.pipeline"},
    {"pipeline_model_parallel_size", "parallel.pipeline"},
    {"num_stages", "parallel.pipeline"},
    {"virtual_stages", "parallel.pipeline_chunks"},
    {"num_chunks", "parallel.pipeline_chunks"},
    {"ep", "parallel.expert"},
    {"expert_parallel", "parallel.expert"},
    {"expert_parallel_size", "parallel.expert"},
    {"expert_parallel_degree", "parallel.expert"},
    {"expert_model_parallel_size", "parallel.expert"},
    {"etp", "parallel.expert_tensor"},
    {"expert_tensor_parallel_size", "parallel.expert_tensor"},
    {"logical_axis_rules", "parallel.rules"},
    {"dtype", "precision"},
    {"checkpointing", "recompute"},
    {"save_every", "checkpoint.every"},
    {"eval_every", "evaluation.every"}};

// What other programs call a value of a choice.
constexpr std::pair<const char*, const char*> other_values[] = {{"ddp", "replicated"},
                                                                {"data", "replicated"},
                                                                {"fsdp", "sharded"},
                                                                {"fsdp2", "sharded"},
                                                                {"zero", "sharded"},
                                                                {"hsdp", "sharded"},
                                                                {"megatron", "mesh"},
                                                                {"3d", "mesh"},
                                                                {"hybrid", "mesh"},
                                                                {"allgather", "gather"},
                                                                {"usp", "mixed"},
                                                                {"all-to-all", "ulysses"},
                                                                {"a2a", "ulysses"},
                                                                {"zbh1", "zb-h1"},
                                                                {"zbv", "zb-v"},
                                                                {"dualpipe", "dualpipe-v"},
                                                                {"dualpipev", "dualpipe-v"}};

std::string leaf_of(const std::string& name) { return name.substr(name.rfind('.') + 1); }

// "a.b." of "a.b.c", "" of "a".
std::string prefix_of(const std::string& name) { return name.substr(0, name.rfind('.') + 1); }

// Names and groups that stand directly under `prefix`, without it.
Strings children(const std::string& prefix) {
  Strings found;
  for (const Field& field : fields()) {
    if (!field.name.starts_with(prefix)) continue;
    const std::string rest = field.name.substr(prefix.size());
    const std::string child = rest.substr(0, rest.find('.'));
    if (found.empty() || found.back() != child) found.push_back(child);
  }
  return found;
}

// `name` with each part replaced by the nearest that stands there; "" if a part is like none.
std::string corrected(const std::string& name) {
  std::string right;
  for (const std::string& part : split(name, '.')) {
    const std::string prefix = right.empty() ? "" : right + ".";
    const Strings known = children(prefix);
    const bool exact = std::find(known.begin(), known.end(), part) != known.end();
    const std::string best = exact ? part : nearest(part, known);
    if (best.empty()) return "";
    right = prefix + best;
  }
  return right;
}

// The right word in the wrong group: lr, model.lr -> optimizer.lr.
std::string elsewhere(const std::string& name) {
  for (const Field& field : fields())
    if (leaf_of(field.name) == leaf_of(name)) return field.name;
  for (const auto& [other, ours] : other_names)
    if (leaf_of(name) == other) return ours;
  return "";
}

}  // namespace

std::string suggest_name(const std::string& name) {
  std::string best = elsewhere(name);
  const std::string near = corrected(name);
  // A correction within the named group is nearer than a namesake in another one.
  if (best.empty() || (!near.empty() && prefix_of(near) == prefix_of(name))) {
    if (!near.empty()) best = near;
  }
  if (!best.empty()) return "did you mean " + best + "?";
  std::string prefix = prefix_of(name);
  Strings known = children(prefix);
  if (known.empty()) known = children(prefix = "");
  return str("known ", prefix.empty() ? "here" : "in " + prefix.substr(0, prefix.size() - 1), ": ",
             join(known, ", "));
}

namespace {

// The end of the limits that `value` went over; "" inside them or at an open end.
std::string nearest_legal(const Limits& limits, double value) {
  if (limits.least && value < *limits.least) return number_text(*limits.least);
  if (limits.most && value > *limits.most) return std::to_string(std::int64_t(*limits.most));
  return "";
}

std::string choice_meant(const Field& field, const std::string& value) {
  const auto legal = [&](const char* choice) {
    return std::find(field.choices.begin(), field.choices.end(), choice) != field.choices.end();
  };
  for (const auto& [other, ours] : other_values)
    if (value == other && legal(ours)) return ours;
  return nearest(value, field.choices);
}

std::string duration_meant(const std::string& value) {
  if (const auto count = parse_count(value); count && *count > 0)
    return str("did you mean ", trim(value), " steps?");
  return "";
}

}  // namespace

std::string suggest_value(const Field& field, const std::string& value) {
  std::string meant;
  if (field.kind == Kind::choice) meant = choice_meant(field, value);
  if (!meant.empty()) return "did you mean " + meant + "?";
  if (field.kind == Kind::duration) meant = duration_meant(value);
  if (!meant.empty()) return meant;
  const auto number = field.kind == Kind::bytes   ? parse_bytes(value)
                      : field.kind == Kind::count ? parse_count(value)
                                                  : std::optional<std::int64_t>();
  const auto real = number ? std::optional<double>(*number) : parse_number(value);
  if (real) meant = nearest_legal(field.limits, *real);
  if (!meant.empty()) return "the nearest is " + meant;
  const std::string standard = field.get(Recipe());
  return standard.empty() ? "the default is none" : "the default is " + standard;
}

std::string nearest_file(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  Strings names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename().string());
  std::sort(names.begin(), names.end());
  const std::string best = nearest(path.filename().string(), names);
  if (best.empty()) return "check the path";
  return str("did you mean ", (path.parent_path() / best).string(), "?");
}

}  // namespace tutti::recipe
