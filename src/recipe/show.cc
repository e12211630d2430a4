#include "recipe/show.h"

#include <algorithm>

#include "base/json.h"
#include "base/text.h"
#include "recipe/fields.h"
#include "recipe/quantity.h"

namespace tutti::recipe {
namespace {

// A double-quoted YAML scalar is a JSON string.
std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string sources_text(const std::vector<Source>& sources, const std::string& indent) {
  if (sources.empty()) return " []\n";
  std::string text = "\n";
  for (const Source& source : sources)
    text += indent + "  - {path: " + quoted(source.path) + ", weight: " + number_text(source.weight) + "}\n";
  return text;
}

std::string value_text(const Field& field, const Recipe& recipe) {
  const std::string value = field.get(recipe);
  return field.kind == Kind::text ? quoted(value) : value;
}

const char* type_text(Kind kind) {
  constexpr const char* names[] = {"text", "choice", "count", "size", "number", "on or off", "duration", "sources"};
  return names[static_cast<std::size_t>(kind)];
}

Json schema_of(const Field& field) {
  Json schema = {{"description", field.doc}};
  switch (field.kind) {
    case Kind::choice: schema["enum"] = field.choices; break;
    case Kind::onoff: schema["enum"] = {"on", "off", true, false}; break;
    case Kind::text: schema["type"] = "string"; break;
    case Kind::number: schema["type"] = "number"; break;
    case Kind::count:
    case Kind::bytes: schema["type"] = {"integer", "string"}; break;
    case Kind::duration:
      schema["type"] = {"string", "integer"};
      schema["examples"] = {"2000 steps", "10m tokens", "3 epochs", "1h"};
      break;
    case Kind::sources:
      schema["anyOf"] = {{{"type", "string"}},
                         {{"type", "array"},
                          {"items",
                           {{"anyOf",
                             {{{"type", "string"}},
                              {{"type", "object"},
                               {"properties", {{"path", {{"type", "string"}}}, {"weight", {{"type", "number"}}}}},
                               {"required", {"path"}},
                               {"additionalProperties", false}}}}}}}};
  }
  if (field.get) schema["default"] = field.get(Recipe{});
  return schema;
}

}  // namespace

std::string to_yaml(const Recipe& recipe) {
  std::string text;
  std::vector<std::string> open;  // groups we are in
  for (const Field& field : fields()) {
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
    if (field.kind == Kind::sources)
      text += sources_text(field.sources(const_cast<Recipe&>(recipe)), indent);
    else
      text += " " + value_text(field, recipe) + "\n";
  }
  return text;
}

std::string json_schema() {
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "Tutti recipe"},
               {"type", "object"},
               {"additionalProperties", false},
               {"properties", {{"base", {{"type", "string"}, {"description", "A recipe to start from."}}}}}};
  for (const Field& field : fields()) {
    Json* group = &root;
    std::vector<std::string> path = split(field.name, '.');
    for (std::size_t i = 0; i + 1 < path.size(); ++i) {
      Json& next = (*group)["properties"][path[i]];
      if (next.is_null()) next = {{"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}};
      group = &next;
    }
    (*group)["properties"][path.back()] = schema_of(field);
  }
  return root.dump(2) + "\n";
}

std::string markdown_reference() {
  std::string text =
      "# The recipe\n\n"
      "A YAML file says what a run is asked to be. `base: other.yaml` starts from another recipe, relative to the file;\n"
      "`--set a.b=c` on the command line comes last. Every mistake is reported at once, with its line and its remedy.\n"
      "`tutti recipe check FILE` reads without training, `tutti recipe show FILE` prints the resolved recipe, and\n"
      "`tutti recipe schema` prints a JSON Schema for editors. This page is the output of `tutti recipe reference`.\n\n"
      "Durations carry a unit: `2000 steps`, `10m tokens` (k, m, b are 1e3, 1e6, 1e9), `3 epochs`, `90s`, `10m`\n"
      "(minutes), `1h`, `2d`; `0` is off. Sizes: `64kb`, `4mb`, `1.5gb` (powers of 1024). Switches: `on`, `off`.\n"
      "Paths of data are relative to the current folder, else to the recipe's folder. Sources are a path, or a list of\n"
      "paths and `{path: P, weight: W}`.\n\n"
      "| field | type | default | meaning |\n|---|---|---|---|\n";
  for (const Field& field : fields()) {
    std::string type = field.kind == Kind::choice ? join(field.choices, ", ") : type_text(field.kind);
    std::string value = field.get ? value_text(field, Recipe{}) : "";
    text += "| `" + field.name + "` | " + type + " | " + (value.empty() ? "" : "`" + value + "`") + " | " + field.doc + " |\n";
  }
  return text;
}

void resolve(Recipe& recipe, int cores) {
  if (recipe.parallel.threads == 0)
    recipe.parallel.threads = std::max<std::int64_t>(1, cores / recipe.parallel.workers);
}

}  // namespace tutti::recipe
