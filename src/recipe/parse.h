// From YAML to a Recipe, or to every mistake at once.
//
// A file may name another by `base:` (relative to itself), whose fields it overrides; overrides
// "a.b=c" come last. Paths of data are relative to the current folder, else to the recipe's folder.
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

// ConfigError with all violations: unknown, misspelt, doubled and missing fields, wrong types and
// ranges, contradictions, data that is absent. WorldError if the file itself cannot be read.
Parsed load(const fs::path& file, const std::vector<std::string>& overrides = {});

// The same from text; `origin` is what errors call it, `folder` what relative paths may start from.
// check_data false leaves the data's existence alone.
Parsed parse(const std::string& yaml, const std::string& origin,
             const std::vector<std::string>& overrides = {}, const fs::path& folder = ".",
             bool check_data = true);

}  // namespace tutti::recipe
