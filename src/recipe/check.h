// Rules that tie several fields of a recipe together.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fs.h"
#include "recipe/parse.h"

namespace tutti::recipe {

// Contradictions, each with the nearest legal values. A rule that touches a field of `bad`, whose
// value is not the one that was asked for, is left out.
std::vector<Violation> contradictions(const Recipe& recipe, const Where& where,
                                      const std::set<std::string>& bad = {});

// Fields that were set but have no effect.
std::vector<Violation> without_effect(const Recipe& recipe, const Where& where);

// Looks for the paths that a recipe names, here and in `folder`, and makes those found absolute;
// absent ones are violations.
std::vector<Violation> find_inputs(Recipe& recipe, Inputs inputs, const fs::path& folder,
                                   const Where& where);

// The fields that model.from sets.
const std::vector<std::string>& shape_fields();

}  // namespace tutti::recipe
