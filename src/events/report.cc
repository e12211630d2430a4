#include "events/report.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"
#include "events/reader.h"
#include "events/report_page.h"

namespace tutti::events {
namespace {

constexpr std::int64_t most_points = 800;  // of a line
constexpr std::int64_t most_areas = 240;   // of steps in the picture of time
constexpr int most_ranks = 64;

// Series that have a picture of their own; others with a picture each, the plain way.
constexpr const char* pictured[] = {"loss", "validation_loss",   "lr",          "grad_norm",
                                    "mfu",  "tokens_per_second", "step_seconds"};

// [step, value], or over many points [step, mean, lowest, highest] of each stretch of them.
Json thinned(const History::Series& points) {
  Json list = Json::array();
  const auto count = static_cast<std::int64_t>(points.size());
  const std::int64_t stretches = std::min(count, most_points);
  for (std::int64_t i = 0; i < stretches; ++i) {
    const auto first = points.begin() + i * count / stretches;
    const auto end = points.begin() + (i + 1) * count / stretches;
    double low = first->value, high = low, sum = 0;
    for (auto point = first; point != end; ++point) {
      low = std::min(low, point->value);
      high = std::max(high, point->value);
      sum += point->value;
    }
    const double mean = sum / static_cast<double>(end - first);
    if (count <= most_points)
      list.push_back({first->step, mean});
    else
      list.push_back({first[(end - first) / 2].step, mean, low, high});
  }
  return list;
}

double mean(const History::Series& points) {
  double sum = 0;
  for (const auto& point : points) sum += point.value;
  return points.empty() ? 0 : sum / static_cast<double>(points.size());
}

// Means over stretches of the steps that `whole` has: one number a stretch.
class Stretches {
 public:
  explicit Stretches(const History::Series& whole)
      : first_(whole.empty() ? 0 : whole.front().step),
        steps_(whole.empty() ? 0 : whole.back().step - first_ + 1),
        count_(std::min(steps_, most_areas)) {}

  Json steps() const {
    Json list = Json::array();
    for (std::int64_t i = 0; i < count_; ++i)
      list.push_back(first_ + (2 * i + 1) * steps_ / (2 * count_));
    return list;
  }
  std::vector<double> sums(const History::Series& points) const {
    std::vector<double> sums(static_cast<std::size_t>(count_));
    for (const auto& [step, value] : points) {
      const std::int64_t at = step - first_;
      if (at >= 0 && at < steps_) sums[static_cast<std::size_t>(at * count_ / steps_)] += value;
    }
    return sums;
  }

 private:
  std::int64_t first_, steps_, count_;
};

History::Series of_spans(const History& history, const std::string& name) {
  History::Series points;
  for (const Json& span : history.spans())
    if (span.value("name", "") == name)
      points.push_back({span["step"].get<std::int64_t>(), span.value("seconds", 0.0)});
  return points;
}

// Seconds a step by what they went for; a checkpoint and an evaluation come on top of a step's own.
Json parts_of(const History& history) {
  const auto& whole = history.series("step_seconds");
  const Stretches stretches(whole);
  const auto counts = [&] {
    History::Series ones = whole;
    for (auto& point : ones) point.value = 1;
    return stretches.sums(ones);
  }();
  Json parts = {{"steps", stretches.steps()}, {"names", Json::array()}, {"values", Json::array()}};
  const auto add = [&](const char* name, std::vector<double> sums) {
    if (std::all_of(sums.begin(), sums.end(), [](double sum) { return sum <= 0; })) return;
    for (std::size_t i = 0; i < sums.size(); ++i)
      sums[i] = std::max(0.0, sums[i]) / std::max(1.0, counts[i]);
    parts["names"].push_back(name);
    parts["values"].push_back(sums);
  };
  std::vector<double> other = stretches.sums(whole);
  for (const auto& [key, name] : {std::pair{"data_seconds", "data"},
                                  {"forward_seconds", "forward"},
                                  {"backward_seconds", "backward"},
                                  {"wait_seconds", "waiting for peers"},
                                  {"optimizer_seconds", "optimizer"}}) {
    const std::vector<double> sums = stretches.sums(history.series(key));
    for (std::size_t i = 0; i < sums.size(); ++i) other[i] -= sums[i];
    add(name, sums);
  }
  add("checkpoint", stretches.sums(of_spans(history, "checkpoint")));
  add("evaluation", stretches.sums(of_spans(history, "evaluation")));
  add("other", other);
  return parts;
}

// Single letters of a clock: "+1m 02s" since the run began.
std::string since(double seconds) { return "+" + human_seconds(std::max(0.0, seconds)); }

std::string told(const Json& record) {
  const std::string name = record["name"].get<std::string>();
  const Json& data = record["data"];
  const std::string step = str("step ", record["step"].get<std::int64_t>());
  if (name == "start") return "training began after " + step;
  if (name == "checkpoint") return "checkpoint of " + step;
  if (name == "resume") return "resumed from " + step;
  if (name == "done") return "done after " + step;
  if (name == "dropped") return "records of events were lost: the disk was too slow";
  const bool text = data.contains("text") && data["text"].is_string();
  return step + ": " + (text ? data["text"].get<std::string>() : name + " " + data.dump());
}

void take_instants(const History& history, Json& data) {
  data["samples"] = data["timeline"] = Json::array();
  data["facts"] = Json::object();
  for (const Json& record : history.instants()) {
    const Json& name = record["name"];
    if (name == "sample") {
      const Json& text = record["data"].contains("text") ? record["data"]["text"] : Json();
      data["samples"].push_back({{"step", record["step"]}, {"text", text}});
      continue;
    }
    const double at = record["time"].get<double>() - history.first_time();
    data["timeline"].push_back({{"at", since(at)}, {"kind", name}, {"text", told(record)}});
    if (name != "start") continue;
    for (const auto& [key, value] : record["data"].items())
      data["facts"][key] = value.is_string() ? value : Json(value.dump());
  }
}

// How long each rank's steps took, and how much of that it waited.
Json rank_of(const History& history, int rank) {
  return {{"rank", rank},
          {"step", mean(history.series("step_seconds"))},
          {"wait", mean(history.series("wait_seconds"))}};
}

std::string text_of(const fs::path& file) { return fs::exists(file) ? read_file(file) : ""; }

// A summary that cannot be read is no reason for having no report.
Json summary_of(const RunFolder& run) {
  Json summary = Json::parse(text_of(run.summary()), nullptr, false);
  return summary.is_object() ? summary : Json::object();
}

std::string subtitle(const Json& summary, double began) {
  std::vector<std::string> parts;
  if (summary.contains("parameters") && summary["parameters"].is_number())
    parts.push_back(human_count(summary["parameters"].get<double>()) + " parameters");
  if (summary.contains("workers") && summary["workers"].is_number())
    parts.push_back(str(summary["workers"], summary["workers"] == 1 ? " worker" : " workers"));
  if (began > 0)
    parts.push_back(iso_time(began).substr(0, 10) + " " + iso_time(began).substr(11, 5) + " UTC");
  return join(parts, " \xc2\xb7 ");
}

Json data_of(const RunFolder& run) {
  const History history(run.events(0));
  Json data = {{"name", fs::absolute(run.path()).lexically_normal().filename().string()}};
  if (data["name"] == "")
    data["name"] = fs::absolute(run.path()).lexically_normal().parent_path().filename().string();
  data["summary"] = summary_of(run);
  data["subtitle"] = subtitle(data["summary"], history.first_time());
  data["series"] = Json::object();
  data["more"] = Json::array();
  for (const std::string& name : history.names()) {
    const bool known =
        std::find(std::begin(pictured), std::end(pictured), name) != std::end(pictured);
    if (!known && name.ends_with("_seconds")) continue;  // in the picture of time
    data["series"][name] = thinned(history.series(name));
    if (!known) data["more"].push_back(name);
  }
  data["parts"] = parts_of(history);
  take_instants(history, data);
  data["ranks"] = Json::array();
  int ranks = 0;
  for (; fs::exists(run.events(ranks)); ++ranks)
    if (ranks < most_ranks)
      data["ranks"].push_back(rank_of(ranks == 0 ? history : History(run.events(ranks)), ranks));
  data["rank_count"] = ranks;
  data["recipe"] = text_of(run.recipe());
  return data;
}

// JSON that may stand inside a script element: no markup can begin in it.
std::string embedded(const Json& data) {
  std::string text;
  for (const char c : data.dump(-1, ' ', false, Json::error_handler_t::replace))
    c == '<' ? text += "\\u003c" : text += c;
  return text;
}

}  // namespace

std::string html_escaped(const std::string& text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  return out;
}

void write_report(const RunFolder& run) {
  const std::string data = embedded(data_of(run));
  write_file(
      run.report(),
      str("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
          "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
          "<title>Tutti</title>\n<style>",
          report_style,
          "</style>\n</head>\n<body>\n<main>\n<header id=\"top\"></header>\n"
          "<div class=\"tiles\" id=\"tiles\"></div>\n<div class=\"grid\" id=\"grid\"></div>\n"
          "<noscript>The pictures need a browser that runs scripts; the numbers are in "
          "summary.json too.</noscript>\n"
          "<footer>Written by tutti. This file needs nothing from outside.</footer>\n</main>\n"
          "<script type=\"application/json\" id=\"data\">",
          data, "</script>\n<script>", report_script, "</script>\n</body>\n</html>\n"));
}

}  // namespace tutti::events
