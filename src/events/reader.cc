#include "events/reader.h"

#include <algorithm>

namespace tutti::events {
namespace {

constexpr std::size_t block = 1 << 20;

bool text_at(const Json& record, const char* key) {
  return record.contains(key) && record[key].is_string();
}

bool is_record(const Json& record) {
  if (!record.is_object() || !text_at(record, "kind")) return false;
  if (!record.contains("step") || !record["step"].is_number_integer()) return false;
  if (!record.contains("time") || !record["time"].is_number()) return false;
  if (record["kind"] != "instant") return true;
  return text_at(record, "name") && record.contains("data") && record["data"].is_object();
}

bool is_resume(const Json& record) {
  return record["kind"] == "instant" && record["name"] == "resume";
}

std::int64_t step_of(const Json& record) { return record["step"].get<std::int64_t>(); }

void drop_after(std::vector<Json>& records, std::int64_t step) {
  std::erase_if(records, [&](const Json& old) { return step_of(old) > step; });
}

}  // namespace

void Tail::poll(const std::function<void(Json&&)>& take) {
  std::ifstream in(file_, std::ios::binary);
  if (!in.seekg(at_)) return;
  std::string fresh(block, '\0');
  while (in.read(fresh.data(), block), in.gcount() > 0) {
    at_ += in.gcount();
    torn_.append(fresh.data(), static_cast<std::size_t>(in.gcount()));
    std::size_t begin = 0;
    for (std::size_t end; (end = torn_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const char* line = torn_.data();
      Json record = Json::parse(line + begin, line + end, nullptr, false);
      if (is_record(record)) take(std::move(record));
    }
    torn_.erase(0, begin);
  }
}

std::vector<Json> Tail::poll() {
  std::vector<Json> records;
  poll([&](Json&& record) { records.push_back(std::move(record)); });
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
  Tail(file).poll([&](Json&& record) {
    if (is_resume(record)) drop_after(kept, step_of(record));
    kept.push_back(std::move(record));
  });
  return kept;
}

History::History(const fs::path& file) {
  Tail(file).poll([this](Json&& record) { take(std::move(record)); });
}

void History::forget_after(std::int64_t step) {
  for (auto& [name, points] : series_)
    while (!points.empty() && points.back().step > step) points.pop_back();
  drop_after(instants_, step);
  drop_after(spans_, step);
  last_step_ = std::min(last_step_, step);
}

void History::take(Json&& record) {
  const std::int64_t step = step_of(record);
  last_time_ = record["time"].get<double>();
  if (first_time_ == 0) first_time_ = last_time_;
  if (is_resume(record)) forget_after(step);
  if (record["kind"] == "instant") return instants_.push_back(std::move(record));
  if (record["kind"] == "span") return spans_.push_back(std::move(record));
  if (record["kind"] != "scalars") return;
  last_step_ = step;
  for (const auto& [name, value] : record.items()) {
    if (!value.is_number() || name == "step" || name == "rank" || name == "time") continue;
    Series& points = series_[name];
    while (!points.empty() && points.back().step >= step) points.pop_back();
    points.push_back({step, value.get<double>()});
  }
}

const History::Series& History::series(const std::string& name) const {
  static const Series none;
  const auto found = series_.find(name);
  return found == series_.end() ? none : found->second;
}

std::vector<std::string> History::names() const {
  std::vector<std::string> names;
  for (const auto& [name, points] : series_)
    if (!points.empty()) names.push_back(name);
  return names;
}

std::optional<double> History::last(const std::string& name) const {
  const Series& points = series(name);
  return points.empty() ? std::nullopt : std::optional(points.back().value);
}

}  // namespace tutti::events
