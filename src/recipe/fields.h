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

// Which numbers are legal. Ends that are absent are open to infinity.
struct Limits {
  std::optional<double> least;  // value >= least
  std::optional<double> above;  // value > above
  std::optional<double> most;   // value <= most
  std::optional<double> below;  // value < below

  bool hold(double value) const;
  std::string text() const;  // "from 0 to below 1", "above 0", "" without ends
};

struct Field {
  std::string name;  // dotted: "optimizer.lr"
  Kind kind;
  std::string doc;                   // a sentence
  std::string rule;                  // "must be a number above 0"
  std::vector<std::string> choices;  // of Kind::choice; of Kind::count: words in place of a number
  Limits limits;                     // of Kind::count, bytes and number

  // Sets the field from its text; false, and nothing set, if the text is not of the kind or breaks
  // the rule. get(recipe) is a text that set() takes back to the same value. Neither is there for
  // Kind::sources, which parser and writer reach by sources().
  std::function<bool(Recipe&, const std::string&)> set;
  std::function<std::string(const Recipe&)> get;
  std::function<std::vector<Source>&(Recipe&)> sources;
};

// What fields() begins with.
std::vector<Field> make_fields();

// In the order in which a recipe is written; a group's fields are neighbours.
const std::vector<Field>& fields();

// Makes it a legal parallel.engine. Before recipes are read (parallel::register_engine calls it).
void add_engine(const std::string& name);

// nullptr if there is none.
const Field* find_field(const std::string& name);

// "optimizer", "model.rope_scaling": a name that others continue.
bool is_group(const std::string& name);

}  // namespace tutti::recipe
