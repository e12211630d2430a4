#include "base/json.h"

#include "base/error.h"

namespace tutti {

Json parse_json(std::string_view text, const std::string& origin) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    throw ConfigError(str(origin, ": not valid JSON: ", error.what()));
  }
}

}  // namespace tutti
