#include "train/parity_report.h"

#include <algorithm>
#include <cmath>
#include <iomanip>

#include "base/error.h"
#include "base/text.h"
#include "base/version.h"
#include "events/report_page.h"
#include "train/parity_verdict.h"

namespace tutti::train {
namespace {

const Difference* worst_of(const ParityRun& run, Quantity quantity) {
  for (const Difference& d : run.worst)
    if (d.quantity == quantity) return &d;
  return nullptr;
}

constexpr Quantity quantities[] = {Quantity::count, Quantity::loss,   Quantity::gradient,
                                   Quantity::norm,  Quantity::update, Quantity::state};

std::string said(const ParityRun& run) {
  return !run.error.empty() ? "failed" : run.holds ? "agrees" : "DIFFERS";
}

std::string where(const Difference& d) { return str("step ", d.step + 1, ", rank ", d.rank); }

std::string heading(const ParityReport& report) {
  return str(report.recipe, ": ", human_count(static_cast<double>(report.parameters)),
             " parameters, ", report.options.steps, " steps in ", report.options.precision,
             ", equal up to ", difference_text(report.options.limit()),
             report.options.fault.empty() ? "" : ", with the fault " + report.options.fault);
}

std::string cell(const ParityRun& run, Quantity quantity, double limit) {
  const Difference* d = worst_of(run, quantity);
  if (!d) return "<td></td>";
  const std::string tip = str(d->name, d->name.empty() ? "" : ", ", where(*d));
  return str("<td class=\"", d->value > limit ? "bad" : "good", "\" title=\"",
             events::html_escaped(tip), "\">", difference_text(d->value), "</td>");
}

std::string summary_table(const ParityReport& report) {
  std::string html = "<table><tr><th>layout</th><th>verdict</th>";
  for (const char* name : quantity_names) html += str("<th>", name, "</th>");
  html += "</tr>\n";
  for (const ParityRun& run : report.runs) {
    html += str("<tr><td title=\"", events::html_escaped(run.layout), "\">",
                events::html_escaped(run.name), "</td><td class=\"", run.holds ? "good" : "bad",
                "\">", said(run), "</td>");
    for (const Quantity q : quantities) html += cell(run, q, report.options.limit());
    html += "</tr>\n";
  }
  return html + "</table>\n";
}

std::string tensor_table(const ParityRun& run) {
  std::string html = str("<h2>", events::html_escaped(run.name), "</h2>\n<p>",
                         events::html_escaped(run.layout), "</p>\n");
  if (!run.error.empty())
    html += str("<p class=\"bad\">", events::html_escaped(run.error), "</p>\n");
  if (run.tensors.empty()) return html;
  html +=
      "<table><tr><th>of</th><th>tensor</th><th>difference</th><th>times</th><th>seen</th></tr>\n";
  for (const Difference& d : run.tensors)
    html +=
        str("<tr><td>",
            d.detail.empty() ? quantity_names[static_cast<std::size_t>(d.quantity)]
                             : events::html_escaped(d.detail).c_str(),
            "</td><td>", events::html_escaped(d.name), "</td><td class=\"bad\">",
            difference_text(d.value), "</td><td>", d.factor != 0 ? difference_text(d.factor) : "",
            "</td><td>", where(d), "</td></tr>\n");
  return html + "</table>\n";
}

constexpr const char* style =
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;"
    "color:#222;background:#fff}table{border-collapse:collapse;margin:1em 0}"
    "th,td{padding:.25em .8em;border-bottom:1px solid #ddd;text-align:left}"
    "td.good{color:#1a6b3a}td.bad,p.bad{color:#a3241b;font-weight:600}"
    ".verdict{border-left:4px solid;padding:.5em 1em;background:#f6f6f6}"
    "@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}"
    "th,td{border-color:#444}.verdict{background:#242424}td.good{color:#6fc08d}"
    "td.bad,p.bad{color:#f08a80}}";

}  // namespace

std::string parity_text(const ParityReport& report) {
  std::ostringstream out;
  out << heading(report) << "\n\n";
  std::size_t width = 0;
  for (const ParityRun& run : report.runs) width = std::max(width, run.name.size());
  const auto column = [&](const std::string& text, std::size_t wide) {
    out << std::left << std::setw(static_cast<int>(wide)) << text << "  ";
  };
  column("", width);
  column("", 7);
  for (const char* name : quantity_names) column(name, 10);
  out << "\n";
  for (const ParityRun& run : report.runs) {
    column(run.name, width);
    column(said(run), 7);
    for (const Quantity q : quantities) {
      const Difference* d = worst_of(run, q);
      column(d ? difference_text(d->value) : "", 10);
    }
    out << " " << run.layout << "\n";
  }
  for (const ParityRun& run : report.runs) {
    if (run.holds) continue;
    out << "\n" << run.name << "\n";
    if (!run.error.empty()) out << "  " << run.error << "\n";
    for (const Difference& d : run.tensors) out << "  " << to_text(d) << ", " << where(d) << "\n";
  }
  for (const std::string& note : report.notes) out << "\nnote: " << note << "\n";
  out << "\n" << report.verdict << "\n";
  return out.str();
}

std::string parity_html(const ParityReport& report) {
  std::string html =
      str("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">",
          "<meta name=\"viewport\" content=\"width=device-width\"><title>Parity of ",
          events::html_escaped(report.recipe), "</title><style>", style, "</style></head><body>\n");
  html += str("<h1>Parity</h1>\n<p>", events::html_escaped(heading(report)),
              "</p>\n<p class=\"verdict\">", events::html_escaped(report.verdict), "</p>\n",
              summary_table(report));
  for (const ParityRun& run : report.runs)
    if (!run.holds) html += tensor_table(run);
  for (const std::string& note : report.notes)
    html += str("<p>Note: ", events::html_escaped(note), "</p>\n");
  return html + str("<p>Largest difference of a tensor's elements over its largest element on one ",
                    "device. tutti ", version, "</p>\n</body></html>\n");
}

}  // namespace tutti::train
