// A Recipe as text: resolved YAML, JSON Schema for editors, reference for people. And resolve(),
// which replaces each 0 that means "follows from the others".
#pragma once
#include <cstdint>
#include <string>

#include "base/json.h"
#include "recipe/recipe.h"

namespace tutti::recipe {

// All fields, in groups; parse() takes it back to the same value. With model.from the shape fields,
// which the folder sets, are left out.
std::string to_yaml(const Recipe& recipe);

// The fields of a group ("model") as an object, name to text, and back. ConfigError names what is
// not a field of the group or breaks its rule; `origin` is what the error calls the object.
Json to_json(const Recipe& recipe, const std::string& group);
void from_json(Recipe& recipe, const std::string& group, const Json& json,
               const std::string& origin);

// JSON Schema (draft 2020-12) that lets editors complete and check recipes.
std::string json_schema();

// docs/formats/recipe.md.
std::string markdown_reference();

// What is known of a field ("optimizer.lr"), of a group's fields ("optimizer"), or, for a name that
// is neither, which name it may have meant. Lines of plain text.
std::string describe(const std::string& name);

// Fills in what follows from the machine: parallel.threads from `cores`.
void resolve(Recipe& recipe, int cores);

// Also what follows from the tokenizer's `vocab` and from other fields: model.vocab, kv_heads,
// head_dim, mlp, context. With model.from the shape is the folder's and is left alone. Pure; doing
// it twice changes nothing more.
void resolve(Recipe& recipe, std::int64_t vocab, int cores);

}  // namespace tutti::recipe
