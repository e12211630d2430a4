// A Profile as text and as a page.
#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "events/report_page.h"
#include "trace/profile.h"
#include "trace/window.h"

namespace tutti::trace {
namespace {

using Row = std::vector<std::string>;

struct Table {
  std::string title, note;
  std::vector<Row> rows;  // the first one names the columns
};

std::string bytes_text(double bytes) { return human_bytes(bytes); }

std::string rate_text(double bytes) { return bytes > 0 ? human_bytes(bytes) + "/s" : ""; }

Table operations_table(const Profile& profile) {
  Table table{
      "Operations",
      "seconds a step and member; waited: for members that came later; moved: from the last "
      "one's arrival to the end",
      {{"group", "operation", "calls a step", "bytes a call", "waited", "moved",
        "bandwidth a rank"}}};
  const bool compared = std::ranges::any_of(
      profile.operations, [](const OperationCost& c) { return c.attainable > 0; });
  if (compared) table.rows[0].insert(table.rows[0].end(), {"attainable", "share"});
  for (const OperationCost& c : profile.operations) {
    Row& row = table.rows.emplace_back(
        Row{c.group, c.operation,
            str(static_cast<double>(c.calls) / static_cast<double>(profile.steps)),
            bytes_text(c.bytes), time_text(c.waited), time_text(c.moved), rate_text(c.bandwidth)});
    if (compared && c.attainable > 0)
      row.insert(row.end(), {rate_text(c.attainable), percent_text(c.bandwidth / c.attainable)});
  }
  const Shares shares = shares_of(profile);
  table.note +=
      str(". Of a step operations moved data for ", percent_text(shares.moved),
          ", hidden or not, and waited for later ranks for ", percent_text(shares.waited));
  return table;
}

Table ranks_table(const Profile& profile) {
  Table table{"Ranks",
              "seconds of a step; under way: the share in which some operation was; made wait: how "
              "long the first member of a group waited for this rank when it came last",
              {{"rank", "step", "data", "forward", "backward", "reduce", "optimizer", "under way",
                "made wait"}}};
  for (const RankCost& r : profile.ranks)
    table.rows.push_back({str(r.rank), time_text(r.step), time_text(r.data), time_text(r.forward),
                          time_text(r.backward), time_text(r.reduce), time_text(r.optimizer),
                          percent_text(r.busy), time_text(r.made_wait)});
  return table;
}

Table links_table(const Profile& profile) {
  Table table{"Links",
              "bytes a step from a rank (row) to another (column), by the operations' bounds",
              {{"from"}}};
  for (const RankCost& to : profile.ranks) table.rows[0].push_back(str("to ", to.rank));
  for (const RankCost& from : profile.ranks) {
    Row row{str(from.rank)};
    for (const RankCost& to : profile.ranks) {
      const auto found = profile.links.find({from.rank, to.rank});
      row.push_back(found == profile.links.end() ? "" : bytes_text(found->second));
    }
    table.rows.push_back(row);
  }
  return table;
}

constexpr std::size_t most_links = 16;  // ranks of a table that fits a page

std::vector<Table> tables_of(const Profile& profile) {
  std::vector<Table> tables{operations_table(profile), ranks_table(profile)};
  if (profile.ranks.size() <= most_links) tables.push_back(links_table(profile));
  return tables;
}

std::string heading(const Profile& profile) {
  return str("steps ", profile.first, " to ", profile.first + profile.steps - 1, " of ",
             profile.ranks.size(), " ranks");
}

std::string text_of(const Table& table) {
  std::vector<std::size_t> widths;
  for (const Row& row : table.rows)
    for (std::size_t c = 0; c < row.size(); ++c) {
      if (widths.size() <= c) widths.push_back(0);
      widths[c] = std::max(widths[c], row[c].size());
    }
  std::string text = "\n" + table.title + ": " + table.note + "\n";
  for (const Row& row : table.rows) {
    std::string line = " ";
    for (std::size_t c = 0; c < row.size(); ++c)
      line += " " + row[c] + std::string(widths[c] - row[c].size() + 1, ' ');
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string html_of(const Table& table) {
  std::string html =
      "<div class=\"card wide\"><div class=\"head\"><h2>" + table.title + "</h2></div><table>\n";
  for (std::size_t r = 0; r < table.rows.size(); ++r) {
    const char* cell = r == 0 ? "th" : "td";
    html += "<tr>";
    for (const std::string& text : table.rows[r])
      html += str("<", cell, ">", events::html_escaped(text), "</", cell, ">");
    html += "</tr>\n";
  }
  return html + "</table><p class=\"sub\">" + events::html_escaped(table.note) + "</p></div>\n";
}

struct Part {
  const char* name;
  double seconds;
};

std::vector<Part> parts_of(const RankCost& r) {
  const double rest = r.step - r.data - r.forward - r.backward - r.reduce - r.optimizer;
  return {{"data", r.data},     {"forward", r.forward},     {"backward", r.backward},
          {"reduce", r.reduce}, {"optimizer", r.optimizer}, {"rest", std::max(0.0, rest)}};
}

// One bar a rank, its parts as long as they took.
std::string bars(const Profile& profile) {
  double longest = 1e-12;
  for (const RankCost& rank : profile.ranks) longest = std::max(longest, rank.step);
  std::string html =
      "<div class=\"card wide\"><div class=\"head\"><h2>A step</h2><div class=\"legend\">";
  const auto names = parts_of(profile.ranks[0]);
  for (std::size_t i = 0; i < names.size(); ++i)
    html += str("<span><i style=\"background:var(--c", i, ")\"></i>", names[i].name, "</span>");
  html += "</div></div><div class=\"bars\">\n";
  for (const RankCost& rank : profile.ranks) {
    html += str("<span>rank ", rank.rank, "</span><div class=\"bar\">");
    const auto parts = parts_of(rank);
    for (std::size_t i = 0; i < parts.size(); ++i)
      html += str("<i title=\"", parts[i].name, " ", time_text(parts[i].seconds),
                  "\" style=\"width:", 100 * parts[i].seconds / longest, "%;background:var(--c", i,
                  ")\"></i>");
    html += "</div><span>" + time_text(rank.step) + "</span>\n";
  }
  return html + "</div></div>\n";
}

std::string none(const Profile&) {
  return "no step is whole in the records of all ranks: let the run make a few more\n";
}

}  // namespace

std::string profile_text(const Profile& profile) {
  if (profile.steps == 0) return none(profile);
  std::string text = heading(profile) + "\n";
  for (const Table& table : tables_of(profile)) text += text_of(table);
  if (!profile.straggler.empty()) text += "\n" + profile.straggler + "\n";
  return text;
}

std::string profile_html(const Profile& profile, const std::string& run) {
  std::string html =
      str("<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\n<title>",
          events::html_escaped(run), ": communication</title>\n<style>", events::report_style,
          "</style>\n<main><header><h1>", events::html_escaped(run), "</h1>");
  if (profile.steps == 0)
    return html + "<p class=\"sub\">" + none(profile) + "</p></header></main></html>\n";
  html += "<p class=\"sub\">" + heading(profile) + "</p></header>\n<div class=\"grid\">\n";
  if (!profile.straggler.empty())
    html += "<div class=\"card wide\"><span class=\"pill warn\">straggler</span> " +
            events::html_escaped(profile.straggler) + "</div>\n";
  html += bars(profile);
  for (const Table& table : tables_of(profile)) html += html_of(table);
  return html + "</div></main></html>\n";
}

}  // namespace tutti::trace
