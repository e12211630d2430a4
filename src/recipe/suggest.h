// What a name or value that is not legal may have meant.
#pragma once
#include <string>

#include "base/fs.h"
#include "recipe/fields.h"

namespace tutti::recipe {

// "did you mean optimizer.lr?" for "optimizer.learning_rate", "optimiser", "lr"; the names of the
// group for a name that is like none; never empty.
std::string suggest_name(const std::string& name);

// The nearest legal choices for a value that field.set refused; never empty.
std::string suggest_value(const Field& field, const std::string& value);

// What lies in the folder of the absent `path` under a name like its own; never empty.
std::string nearest_file(const fs::path& path);

}  // namespace tutti::recipe
