#include "recipe/show.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "recipe/check.h"
#include "recipe/fields.h"
#include "recipe/quantity.h"
#include "recipe/suggest.h"

namespace tutti::recipe {
namespace {

// A JSON string is a double-quoted YAML scalar.
std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string sources_text(const std::vector<Source>& sources, const std::string& indent) {
  if (sources.empty()) return " []\n";
  std::string text = "\n";
  for (const Source& source : sources)
    text += str(indent, "  - {path: ", quoted(source.path),
                ", weight: ", number_text(source.weight), "}\n");
  return text;
}

std::string value_text(const Field& field, const Recipe& recipe) {
  const std::string value = field.get(recipe);
  return field.kind == Kind::text ? quoted(value) : value;
}

std::string type_text(const Field& field) {
  constexpr const char* names[] = {"text",   "",          "count",    "size",
                                   "number", "on or off", "duration", "sources"};
  const std::string limits = field.limits.text();
  if (field.kind == Kind::choice) return join(field.choices, ", ");
  return str(names[static_cast<std::size_t>(field.kind)], limits.empty() ? "" : " ", limits);
}

std::string default_text(const Field& field) {
  if (field.kind == Kind::sources) return field.name == "data.train" ? "" : "[]";
  return value_text(field, Recipe());
}

bool is_shape(const std::string& name) {
  const auto& shape = shape_fields();
  return std::find(shape.begin(), shape.end(), name) != shape.end();
}

constexpr const char* introduction =
    R"(# The recipe

A YAML file says what a run is asked to be. Only `data.train` must be there; everything else has a
default. This page is written from the program's own list of fields (`src/recipe/fields.cc`); a test
compares them.

    tutti recipe check FILE     every mistake at once, each with its line and its remedy
    tutti recipe show FILE      the resolved recipe
    tutti recipe schema         a JSON Schema, for editors

## Files
- `base: other.yaml` starts from another recipe, relative to the file that names it. Bases may have
  bases.
- `--set a.b=c` on the command line comes last; of two settings of one field the later wins.
  `--set data.train=PATH` replaces the list, as `--set 'data.train=[a, {path: b, weight: 2}]'` does.
- Paths of data, tokenizer and `model.from` are relative to the current folder and, if nothing is
  there, to the folder of the recipe that was named on the command line.
- `model.from` replaces the shape that a base gave. In one file with shape fields it is a
  contradiction.
- A field that is set but has no effect is said, and does not stop the run.

## Values
| type | written as |
|---|---|
| duration | amount and unit: `2k steps`, `10m tokens`, `0.5 epochs`, `90s`, `1h`; `0` is off |
| count | a whole number, also with a factor: `2k`, `1.5m`, `1b` (1e3, 1e6, 1e9) |
| size | bytes: `1048576`, `64kb`, `4mb`, `1.5gb` (powers of 1024; `kib` is the same) |
| on or off | `on`, `off`, `true`, `false`, `yes`, `no` |
| sources | a path, or a list of paths and `{path: P, weight: W}` with weights above 0 |

In a duration a bare `m` is minutes: `10m` is ten minutes, `10m tokens` ten million tokens. Times
are `s`, `m`, `h`, `d`. An amount without a unit is refused. Intervals (`*.every`, warm-up, decay)
are in steps, tokens or epochs; only `duration` may be a time.

## Rules between fields
- `batch.micro` divides `batch.global`; the data ranks, `parallel.workers` / (tensor x context x
  pipeline), divide the micro-batches of a step (global / micro).
- `engine: replicated` keeps whole copies: no ZeRO and no degree above 1. `sharded` has
  `parallel.zero` 1 to 3 and no other degree. `mesh` has all.
- `parallel.workers` is a multiple of tensor x context x pipeline; `parallel.shard` divides the data
  ranks; `parallel.expert` x `parallel.expert_tensor` divides data x context x tensor.
- `parallel.tensor` is at most the key heads and the mlp's width (parts may be uneven) and goes with
  neither muon nor `model.qk_norm_whole`; `parallel.context` is at most `data.sequence`, and what is
  exchanged for heads divides a tensor rank's key heads.
- `parallel.pipeline` x `parallel.pipeline_chunks` is at most `model.layers` unless
  `parallel.pipeline_cut` says otherwise, one number a stage, which may be 0.
  `interleaved` wants micro-batches that the pipeline divides.
- `parallel.rules` are words `AXIS=MESH_AXIS`. vocab, heads, kv_heads, qkv and mlp are cut over
  tensor, expert over expert; each may be none.
- `model.heads` divides `model.embed` unless `model.head_dim` is set; `model.kv_heads` divides
  `model.heads`; gpt2 has as many of both; a llama head is even.
- `model.context` is not below `data.sequence`; `model.vocab` holds the tokenizer's ids.
- `schedule.warmup`, with wsd also `schedule.decay` after it, fits into `duration`.
- `checkpoint.keep_every` is a multiple of `checkpoint.every`.
- `data.validation_fraction` and `data.validation` exclude each other.

## Fields
| field | type | default | meaning |
|---|---|---|---|
| `base` | text |  | A recipe to start from. |
)";

}  // namespace

std::string to_yaml(const Recipe& recipe) {
  Recipe copy = recipe;  // Field::sources gives a reference to change
  std::string text;
  std::vector<std::string> open;  // groups we are in
  for (const Field& field : fields()) {
    if (!recipe.model.from.empty() && is_shape(field.name)) continue;
    std::vector<std::string> path = split(field.name, '.');
    const std::string leaf = path.back();
    path.pop_back();
    std::size_t common = 0;
    while (common < open.size() && common < path.size() && open[common] == path[common]) ++common;
    for (std::size_t depth = common; depth < path.size(); ++depth)
      text += std::string(2 * depth, ' ') + path[depth] + ":\n";
    open = path;
    const std::string indent(2 * path.size(), ' ');
    text += indent + leaf + ":";
    text += field.kind == Kind::sources ? sources_text(field.sources(copy), indent)
                                        : " " + value_text(field, recipe) + "\n";
  }
  return text;
}

std::string markdown_reference() {
  std::string text = introduction;
  for (const Field& field : fields()) {
    const std::string value = default_text(field);
    text += str("| `", field.name, "` | ", type_text(field), " | ",
                value.empty() ? "" : "`" + value + "`", " | ", field.doc, " |\n");
  }
  return text;
}

std::string describe(const std::string& name) {
  std::string text;
  for (const Field& field : fields()) {
    if (field.name != name && !field.name.starts_with(name + ".")) continue;
    const std::string value = default_text(field);
    text += str(field.name, ": ", field.doc, "\n  ", field.rule, "\n  ",
                value.empty() ? "must be given" : "default: " + value, "\n");
  }
  return text.empty() ? str(name, " is not a field of a recipe; ", suggest_name(name), "\n") : text;
}

Json to_json(const Recipe& recipe, const std::string& group) {
  Json json = Json::object();
  for (const Field& field : fields())
    if (field.name.starts_with(group + ".") && field.get)
      json[field.name.substr(group.size() + 1)] = field.get(recipe);
  return json;
}

void from_json(Recipe& recipe, const std::string& group, const Json& json,
               const std::string& origin) {
  std::vector<Violation> wrong;
  for (const auto& [name, value] : json.items()) {
    const std::string full = str(group, ".", name);
    const Field* field = find_field(full);
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (!field || !field->set)
      wrong.push_back({full, origin, text, "is not a field of this version", ""});
    else if (!field->set(recipe, text))
      wrong.push_back({full, origin, text, field->rule, ""});
  }
  if (!wrong.empty()) throw ConfigError(wrong);
}

}  // namespace tutti::recipe
