// From YAML to a Recipe, or to every mistake at once.
//
// A file may name another by `base:` (relative to itself), whose fields it overrides; overrides
// "a.b=c" come last, a later one winning. Paths of data are relative to the current folder, and, if
// nothing is there, to the recipe's folder; the Recipe holds the absolute path that was found.
//
// model.from replaces the shape that a base gave; beside shape fields of the same file it is a
// contradiction.
#pragma once
#include <functional>
#include <optional>
#include <set>
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

// Which of the files that a recipe names must exist: `data` are the texts and the tokenizer,
// `weights` is model.from, which a run needs only at its start.
enum class Inputs { none, data, data_and_weights };

// Knows where a field was set: "a.yaml:12", "--set", or "" if it was not.
using Where = std::function<std::string(const std::string& field)>;

// Rules of modules above this one, as recipe::contradictions is one (check.h).
using Rules = std::function<std::vector<Violation>(const Recipe& recipe, const Where& where,
                                                   const std::set<std::string>& bad)>;

// ConfigError with all violations, those of `more` among them: a file or data that is absent;
// unknown, misspelt, doubled and missing fields; wrong types and ranges; contradictions. WorldError
// if the recipe is there but cannot be read.
Parsed load(const fs::path& file, const std::vector<std::string>& overrides = {},
            Inputs inputs = Inputs::data_and_weights, const Rules& more = {});

// The same from text; `origin` is what errors call it, `folder` what relative paths may start from.
Parsed parse(const std::string& yaml, const std::string& origin,
             const std::vector<std::string>& overrides = {}, const fs::path& folder = ".",
             Inputs inputs = Inputs::data_and_weights, const Rules& more = {});

// The N of data.tokenizer = bpe-N: a byte-level BPE of N tokens that is learnt from data.train when
// the run starts.
std::optional<std::int64_t> learnt_vocab(const std::string& tokenizer);

}  // namespace tutti::recipe
