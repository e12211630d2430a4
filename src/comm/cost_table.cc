#include "comm/cost_table.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"

namespace tutti::comm {
namespace {

// The measured operation that moves the same.
std::string_view measured_as(std::string_view operation) {
  if (operation.starts_with("tree_")) operation.remove_prefix(5);
  if (operation.ends_with("_v")) operation.remove_suffix(2);
  if (operation == "send" || operation == "recv") return "send_recv";
  return operation;
}

double along(const std::vector<CostPoint>& points, double bytes) {
  if (points.size() == 1 || bytes <= points[0].bytes) return points[0].seconds;
  std::size_t i = 1;
  while (i + 1 < points.size() && points[i].bytes < bytes) ++i;
  const CostPoint a = points[i - 1], b = points[i];
  const double slope = (b.seconds - a.seconds) / (b.bytes - a.bytes);
  return std::max(a.seconds, a.seconds + slope * (bytes - a.bytes));
}

}  // namespace

CostTable CostTable::read(const fs::path& file, std::string_view transport) {
  const std::string text = read_file(file);
  const auto refuse = [&](const std::string& rule, const std::string& remedy) {
    throw ConfigError({{"--profile", "", file.string(), rule, remedy}});
  };
  CostTable result;
  result.transport_ = transport;
  std::string known;
  try {
    const Json json = Json::parse(text);
    if (json.at("format") != "tutti comm profile") throw ConfigError("another format");
    for (const Json& table : json.at("tables")) {
      const std::string name = table.at("transport");
      if (known.find(name) == std::string::npos) known += (known.empty() ? "" : ", ") + name;
      if (result.transport_.empty()) result.transport_ = name;
      if (name != result.transport_) continue;
      Row& row = result.rows_[table.at("operation")];
      if (!row.points.empty() && table.at("buffers") != "shared") continue;
      row = {table.at("ranks"), {}};
      for (const Json& point : table.at("points"))
        row.points.push_back({point.at("bytes"), point.at("seconds")});
      std::ranges::sort(row.points, {}, &CostPoint::bytes);
      if (row.points.empty() || row.ranks < 2) throw ConfigError("an empty table");
    }
  } catch (const Json::exception&) {
    refuse("is no profile of communication", "tutti bench comm --out FILE writes one");
  } catch (const ConfigError&) {
    refuse("is no profile of communication", "tutti bench comm --out FILE writes one");
  }
  if (result.rows_.empty())
    refuse(str("has no transport ", transport), "it has " + (known.empty() ? "none" : known));
  return result;
}

std::optional<double> CostTable::seconds(std::string_view operation, double bytes,
                                         int ranks) const {
  const std::string_view name = measured_as(operation);
  const auto found = rows_.find(name);
  if (found == rows_.end() || ranks < 2) return std::nullopt;
  const Row& row = found->second;
  const double measured = traffic_factor(name, row.ranks);
  const double share = measured > 0 ? traffic_factor(name, ranks) / measured : 1;
  return along(row.points, bytes * share);
}

}  // namespace tutti::comm
