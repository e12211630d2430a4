#include "base/json.h"
#include "base/text.h"
#include "recipe/fields.h"
#include "recipe/show.h"

namespace tutti::recipe {
namespace {

// A number whose default is written as one.
Json number_of(const std::string& text) {
  const Json value = Json::parse(text, nullptr, false);
  return value.is_discarded() ? Json(text) : value;
}

void limit(Json& schema, const Limits& limits) {
  if (limits.least) schema["minimum"] = *limits.least;
  if (limits.above) schema["exclusiveMinimum"] = *limits.above;
  if (limits.most) schema["maximum"] = *limits.most;
  if (limits.below) schema["exclusiveMaximum"] = *limits.below;
}

Json source_schema() {
  const Json path = {{"type", "string"}, {"minLength", 1}};
  const Json weight = {{"type", "number"}, {"exclusiveMinimum", 0}};
  const Json pair = {{"type", "object"},
                     {"properties", {{"path", path}, {"weight", weight}}},
                     {"required", Json::array({"path"})},
                     {"additionalProperties", false}};
  const Json one = {{"anyOf", Json::array({path, pair})}};
  const Json list = {{"type", "array"}, {"items", one}};
  return Json::array({path, pair, list});
}

// A word for people with a factor or unit, or a plain number.
void quantity(Json& schema, const char* plain, const char* pattern) {
  schema["type"] = Json::array({plain, "string"});
  schema["pattern"] = pattern;
}

Json schema_of(const Field& field) {
  Json schema = {{"description", field.doc}};
  switch (field.kind) {
    case Kind::choice:
      schema["enum"] = field.choices;
      break;
    case Kind::onoff:
      schema["enum"] = {true, false, "on", "off", "yes", "no"};
      break;
    case Kind::text:
      schema["type"] = "string";
      break;
    case Kind::number:
      schema["type"] = "number";
      break;
    case Kind::count:
      quantity(schema, "integer",
               field.choices.empty() ? "^[0-9.]+ *[kmbKMB]?$" : "^([0-9.]+ *[kmbKMB]?|auto)$");
      break;
    case Kind::bytes:
      quantity(schema, "integer", "^[0-9.]+ *([kmgKMG]?i?[bB])?$");
      break;
    case Kind::sources:
      schema["anyOf"] = source_schema();
      return schema;
    case Kind::duration:
      quantity(
          schema, "integer",
          "^(0|[0-9.eE+]+ *([kmb]? *(steps?|tokens?|epochs?)|s|sec|seconds?|m|min|minutes?|h|hours?"
          "|d|days?))$");
      schema["maximum"] = 0;
      schema["examples"] = {"2000 steps", "10m tokens", "3 epochs", "1h"};
  }
  limit(schema, field.limits);
  const std::string standard = field.get(Recipe());
  if (field.kind == Kind::onoff)
    schema["default"] = standard == "on";
  else if (field.kind == Kind::text || field.kind == Kind::choice)
    schema["default"] = standard;
  else
    schema["default"] = number_of(standard);
  return schema;
}

Json group_schema() {
  return {{"type", "object"}, {"additionalProperties", false}, {"properties", Json::object()}};
}

}  // namespace

std::string json_schema() {
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "Tutti recipe"}};
  root.update(group_schema());
  root["properties"]["base"] = {{"type", "string"},
                                {"description", "A recipe to start from, relative to this file."}};
  for (const Field& field : fields()) {
    Json* group = &root;
    const std::vector<std::string> path = split(field.name, '.');
    for (std::size_t i = 0; i + 1 < path.size(); ++i) {
      Json& next = (*group)["properties"][path[i]];
      if (next.is_null()) next = group_schema();
      group = &next;
    }
    (*group)["properties"][path.back()] = schema_of(field);
  }
  return root.dump(2) + "\n";
}

}  // namespace tutti::recipe
