#include "data/tokenizer_lines.h"

#include <istream>
#include <ostream>

#include "base/error.h"
#include "base/json.h"

namespace tutti::data {

void encode_lines(const Tokenizer& tokenizer, std::istream& in, std::ostream& out) {
  std::string line;
  for (std::size_t number = 1; std::getline(in, line); ++number) {
    const Json text = parse_json(line, str("line ", number));
    if (!text.is_string()) throw ConfigError(str("line ", number, ": not a JSON string"));
    out << Json(tokenizer.encode(text.get<std::string>())).dump() << '\n';
  }
}

void decode_lines(const Tokenizer& tokenizer, std::istream& in, std::ostream& out) {
  std::string line;
  for (std::size_t number = 1; std::getline(in, line); ++number) {
    const Json ids = parse_json(line, str("line ", number));
    try {
      const std::string text = tokenizer.decode(ids.get<std::vector<std::int32_t>>());
      out << Json(text).dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
    } catch (const Json::exception&) {
      throw ConfigError(str("line ", number, ": not a JSON array of ids"));
    }
  }
}

}  // namespace tutti::data
