// A Recipe as text: resolved YAML, JSON Schema for editors, reference for people.
#pragma once
#include <string>

#include "recipe/recipe.h"

namespace tutti::recipe {

// All fields, in groups; parses back to the same value.
std::string to_yaml(const Recipe& recipe);

// JSON Schema (draft 2020-12) that lets editors complete and check recipes.
std::string json_schema();

// docs/formats/recipe.md.
std::string markdown_reference();

// Fills in what follows from the machine: parallel.threads from `cores`.
void resolve(Recipe& recipe, int cores);

}  // namespace tutti::recipe
