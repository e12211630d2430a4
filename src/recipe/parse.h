// From YAML to a Recipe, or to every mistake at once.
//
// A file may name another by `base:` (relative to itself), whose fields it overrides; overrides
// "a.b=c" come last, a later one winning. Paths of data are relative to the current folder, and, if
// nothing is there, to the recipe's folder; the Recipe holds the path that was found.
//
// model.from replaces the shape that a base gave; beside shape fields of the same file it is a
// contradiction.
#pragma once
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "recipe/recipe.h"

namespace tutti::recipe {

struct Parsed {
  Recipe recipe;
  std::vector<Violation> notes;  // not mistakes: options without effect
};

// ConfigError with all violations: a file or data that is absent; unknown, misspelt, doubled and
// missing fields; wrong types and ranges; contradictions. WorldError if the recipe is there but
// cannot be read.
Parsed load(const fs::path& file, const std::vector<std::string>& overrides = {},
            bool check_data = true);

// The same from text; `origin` is what errors call it, `folder` what relative paths may start from.
// check_data false leaves the data's existence alone.
Parsed parse(const std::string& yaml, const std::string& origin,
             const std::vector<std::string>& overrides = {}, const fs::path& folder = ".",
             bool check_data = true);

}  // namespace tutti::recipe
