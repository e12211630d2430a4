// tutti trace DIR: what a run's steps and operations took; tutti doctor run DIR: who waits for
// whom.
#include "trace/waits.h"

#include <iostream>
#include <memory>

#include "base/error.h"
#include "cli/verbs.h"
#include "recipe/quantity.h"
#include "trace/profile.h"

namespace tutti::cli {
namespace {

struct Options {
  std::string folder, steps, out, html, profile, transport;
  double patience = 5;
};

// "10:20", "10:" or "10".
std::pair<std::int64_t, std::int64_t> parse_steps(const std::string& text) {
  if (text.empty()) return {0, 0};
  const std::size_t colon = text.find(':');
  const auto first = recipe::parse_count(text.substr(0, colon));
  const std::string rest = colon == std::string::npos ? text : text.substr(colon + 1);
  const auto last = rest.empty() ? std::optional<std::int64_t>(0) : recipe::parse_count(rest);
  if (!first || !last || *first < 1 || (*last != 0 && *last < *first))
    throw ConfigError({{"--steps", "", text, "must be FIRST:LAST, FIRST: or a step, from 1",
                        "like 10:20; left out, all that the records hold"}});
  return {*first, *last};
}

int write_trace(const Options& options) {
  const auto [first, last] = parse_steps(options.steps);
  const fs::path run = options.folder;
  const auto logs = trace::read_flights(run);
  const fs::path out = options.out.empty() ? run / "trace.json" : fs::path(options.out);
  const fs::path html = options.html.empty() ? run / "trace.html" : fs::path(options.html);
  trace::Profile profile = trace::profile_of(logs, first, last);
  if (!options.profile.empty())
    trace::compare(profile, comm::CostTable::read(options.profile, options.transport));
  write_file(out, trace::chrome_trace(logs, first, last));
  write_file(html, trace::profile_html(profile, run.filename().empty()
                                                    ? run.parent_path().filename().string()
                                                    : run.filename().string()));
  std::cout << trace::profile_text(profile) << "\n"
            << "  look at it      " << html.string() << "\n"
            << "  every operation " << out.string() << " (chrome://tracing, ui.perfetto.dev)\n";
  return exit_ok;
}

int find_waits(const Options& options) {
  const trace::Waits waits =
      trace::find_waits(trace::read_flights(options.folder), options.patience);
  std::cout << waits.text;
  return waits.well ? exit_ok : exit_world;
}

}  // namespace

void add_trace(CLI::App& app, Action& chosen) {
  CLI::App* verb = app.add_subcommand("trace", "what a run's steps and operations took");
  auto options = std::make_shared<Options>();
  verb->add_option("DIR", options->folder, "the run's folder")->required();
  verb->add_option("--steps", options->steps, "which; default: all that the records hold")
      ->type_name("FIRST:LAST");
  verb->add_option("--out", options->out, "Chrome trace; default: DIR/trace.json")
      ->type_name("FILE");
  verb->add_option("--html", options->html, "page; default: DIR/trace.html")->type_name("FILE");
  auto* costs = verb->add_option("--profile", options->profile,
                                 "of tutti bench comm: compare with what is attainable")
                    ->type_name("FILE");
  verb->add_option("--transport", options->transport, "of the profile; default: its first")
      ->needs(costs);
  verb->footer(example("tutti trace runs/shakespeare"));
  verb->callback([options, &chosen] { chosen = [options] { return write_trace(*options); }; });
}

void add_doctor_run(CLI::App* doctor, Action& chosen) {
  CLI::App* verb = doctor->add_subcommand("run", "who waits for whom in a run that hangs or died");
  auto options = std::make_shared<Options>();
  verb->add_option("DIR", options->folder, "the run's folder")->required();
  verb->add_option("--patience", options->patience, "seconds that a rank may wait unsuspected")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  verb->footer(example("tutti doctor run runs/shakespeare"));
  verb->callback([options, &chosen] { chosen = [options] { return find_waits(*options); }; });
}

}  // namespace tutti::cli
