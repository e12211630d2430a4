// Every field of a recipe, told once: name, meaning, range. The parser, the writer, the JSON Schema
// and docs/formats/recipe.md all walk this list, so they cannot disagree.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "recipe/recipe.h"

namespace tutti::recipe {

enum class Kind { text, choice, count, bytes, number, onoff, duration, sources };

struct Field {
  std::string name;  // dotted: "optimizer.lr"
  Kind kind;
  std::string doc;
  std::string rule;                  // "must be above 0"
  std::vector<std::string> choices;  // of Kind::choice

  // Sets the field from its text; false if the text is not of the kind or breaks the rule.
  // Not for Kind::sources, which the parser reads itself.
  std::function<bool(Recipe&, const std::string&)> set;
  std::function<std::string(const Recipe&)> get;
  std::function<std::vector<Source>&(Recipe&)> sources;
};

// In the order in which a recipe is written.
const std::vector<Field>& fields();

// nullptr if there is none.
const Field* find_field(const std::string& name);

}  // namespace tutti::recipe
