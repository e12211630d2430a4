// JSON values: nlohmann's, with keys in the order they were written.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tutti {

using Json = nlohmann::ordered_json;

// Throws ConfigError naming `origin` (a path), the byte offset and what was expected there.
Json parse_json(std::string_view text, const std::string& origin);

}  // namespace tutti
