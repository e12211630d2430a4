#include "events/reader.h"

#include <algorithm>

namespace tutti::events {

std::vector<Json> Tail::poll() {
  std::vector<Json> records;
  std::ifstream in(file_, std::ios::binary);
  if (!in.seekg(at_)) return records;
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  at_ += static_cast<std::streamoff>(text.size());
  text = torn_ + text;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    Json record = Json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                              text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    if (record.is_object() && record.contains("step")) records.push_back(std::move(record));
  }
  torn_ = text.substr(begin);
  return records;
}

void Tail::skip() {
  std::error_code error;
  const auto size = fs::file_size(file_, error);
  at_ = error ? 0 : static_cast<std::streamoff>(size);
  torn_.clear();
}

std::vector<Json> read_events(const fs::path& file) {
  std::vector<Json> kept;
  for (Json& record : Tail(file).poll()) {
    if (record.value("kind", "") == "instant" && record.value("name", "") == "resume") {
      const auto step = record["step"].get<std::int64_t>();
      std::erase_if(kept, [&](const Json& old) { return old["step"].get<std::int64_t>() > step; });
    }
    kept.push_back(std::move(record));
  }
  return kept;
}

}  // namespace tutti::events
