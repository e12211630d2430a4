#include "events/report.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "events/reader.h"
#include "events/report_page.h"

namespace tutti::events {
namespace {

constexpr std::size_t most_points = 2000;

using Points = std::vector<std::pair<std::int64_t, double>>;

// At most about `most_points`, keeping the lowest and highest of each stretch.
Json thinned(const Points& points) {
  Json list = Json::array();
  const auto add = [&](const auto& point) { list.push_back({point.first, point.second}); };
  if (points.size() <= most_points) {
    for (const auto& point : points) add(point);
    return list;
  }
  const std::size_t stretches = most_points / 2;
  for (std::size_t i = 0; i < stretches; ++i) {
    const auto first = points.begin() + static_cast<std::ptrdiff_t>(i * points.size() / stretches);
    const auto end =
        points.begin() + static_cast<std::ptrdiff_t>((i + 1) * points.size() / stretches);
    auto [low, high] = std::minmax_element(
        first, end, [](const auto& a, const auto& b) { return a.second < b.second; });
    if (high < low) std::swap(low, high);
    add(*low);
    if (high != low) add(*high);
  }
  return list;
}

struct Content {
  std::map<std::string, Points> series;
  Json samples = Json::array(), timeline = Json::array(), facts = Json::object();
};

void take_instant(const Json& record, Content& content) {
  const std::string name = record.value("name", "");
  const Json& data = record["data"];
  const std::string when = iso_time(record.value("time", 0.0));
  const auto step = str("step ", record["step"].get<std::int64_t>());
  if (name == "sample") content.samples.push_back(data.value("text", ""));
  if (name == "start") {
    content.timeline.push_back({when, "training began at " + step});
    for (const auto& [key, value] : data.items())
      content.facts[key] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  if (name == "checkpoint") content.timeline.push_back({when, "checkpoint at " + step});
  if (name == "resume") content.timeline.push_back({when, "resumed from " + step});
  if (name == "warning") content.timeline.push_back({when, step + ": " + data.value("text", "")});
  if (name == "done") content.timeline.push_back({when, "done at " + step});
}

Content read_rank(const fs::path& file) {
  Content content;
  for (const Json& record : read_events(file)) {
    if (record.value("kind", "") == "instant") take_instant(record, content);
    if (record.value("kind", "") != "scalars") continue;
    for (const auto& [key, value] : record.items())
      if (value.is_number() && key != "step" && key != "rank" && key != "time")
        content.series[key].emplace_back(record["step"].get<std::int64_t>(), value.get<double>());
  }
  return content;
}

std::string text_of(const fs::path& file) { return fs::exists(file) ? read_file(file) : ""; }

}  // namespace

void write_report(const RunFolder& run) {
  const Content first = read_rank(run.events(0));
  Json data = {{"name", run.path().filename().string()}};
  const std::string summary = text_of(run.summary());
  data["summary"] = summary.empty() ? Json::object() : parse_json(summary, run.summary().string());
  data["subtitle"] = str(
      data["summary"].contains("parameters")
          ? human_count(data["summary"]["parameters"].get<double>()) + " parameters, "
          : "",
      data["summary"].value("workers", 1), " workers, ", iso_time(wall_seconds()).substr(0, 10));
  Json series = Json::object();
  for (const auto& [name, points] : first.series) series[name] = thinned(points);
  data["series"] = series;
  Json waits = Json::array();
  for (int rank = 0; fs::exists(run.events(rank)) && rank < 64; ++rank) {
    Content content = read_rank(run.events(rank));
    waits.push_back(thinned(content.series["wait_seconds"]));
  }
  data["waits"] = waits;
  data["samples"] = first.samples;
  data["timeline"] = first.timeline;
  data["facts"] = first.facts;
  data["recipe"] = text_of(run.recipe());

  std::string json = data.dump(-1, ' ', false, Json::error_handler_t::replace);
  for (std::size_t at = 0;
       (at = json.find('<', at)) != std::string::npos;)  // No markup can begin in it.
    json.replace(at, 1, "\\u003c");
  std::string page = report_page;
  const std::string place = "@DATA@";
  page.replace(page.find(place), place.size(), json);
  write_file(run.report(), page);
}

}  // namespace tutti::events
