#include "cli/runs.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/format.h"
#include "cli/worker.h"
#include "events/live.h"
#include "events/report.h"
#include "events/summary.h"
#include "launch/hosts.h"
#include "launch/local.h"
#include "launch/signals.h"

namespace tutti::cli {
namespace {

events::LiveOptions live_options(const recipe::Recipe& recipe, Show show) {
  using Mode = events::LiveOptions::Mode;
  events::LiveOptions options;
  const bool terminal = ::isatty(STDOUT_FILENO) != 0;
  options.mode = show == Show::quiet  ? Mode::quiet
                 : show == Show::json ? Mode::json
                 : terminal           ? Mode::terminal
                                      : Mode::plain;
  winsize size{};
  if (terminal && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    options.width = size.ws_col;
  options.color = terminal && !std::getenv("NO_COLOR");
  if (recipe.logging.every.unit == recipe::Duration::Unit::steps &&
      recipe.logging.every.amount >= 1)
    options.every_steps = static_cast<std::int64_t>(recipe.logging.every.amount);
  return options;
}

std::string number_or_none(const Json& value) {
  return value.is_number() ? str(value.get<double>()) : "none";
}

std::string quoted(std::string text) {
  for (std::size_t at = 0; (at = text.find('\'', at)) != std::string::npos; at += 4)
    text.replace(at, 1, "'\\''");
  return "'" + text + "'";
}

void say_where(const events::RunFolder& run, const recipe::Recipe& recipe, const Json& summary) {
  const std::string& prompt = recipe.logging.sample_prompt;
  std::cout << "step " << summary["steps"] << ": loss " << number_or_none(summary["loss"])
            << ", validation loss " << number_or_none(summary["validation_loss"]) << "; "
            << (summary["tokens_per_second"].is_number()
                    ? human_count(summary["tokens_per_second"].get<double>()) + " tokens/s, "
                    : "")
            << human_seconds(summary["seconds"].get<double>()) << "\n"
            << "  look at it   " << run.report().string() << "\n"
            << "  let it write tutti generate " << run.path().string() << " --prompt "
            << quoted(trim(prompt).empty() ? "Once" : prompt) << "\n"
            << "  take it away tutti export " << run.path().string() << " --to FOLDER\n";
}

void say_how_to_go_on(const events::RunFolder& run) {
  const auto steps = checkpoint::steps_in(run.checkpoints());  // what has a name is whole
  if (steps.empty())
    std::cerr << "stopped before the first checkpoint: nothing is saved\n";
  else
    std::cerr << "stopped; the newest checkpoint is of step " << steps.back()
              << "; go on with: tutti resume " << run.path().string() << "\n";
}

// The share of host `host`.
launch::Job job_of(const events::RunFolder& run, const launch::HostsSign& sign, int host,
                   const std::string& address) {
  launch::Job job;
  job.program = find_worker();
  job.args = {"train", "--run", run.path().string()};
  if (sign.resume) job.args.push_back("--resume");
  job.workers = sign.workers / sign.hosts;
  job.world = sign.workers;
  job.first_rank = host * job.workers;
  job.threads = sign.threads;
  job.log_folder = run.logs();
  job.address = address;
  job.meeting = sign.folder;
  return job;
}

}  // namespace

int launch_run(const events::RunFolder& run, const recipe::Recipe& recipe, bool resume, Show show,
               const Hosts& hosts) {
  const int workers = static_cast<int>(recipe.parallel.workers);
  const launch::HostsSign sign{
      {}, hosts.hosts, workers, static_cast<int>(recipe.parallel.threads), resume};
  std::optional<launch::HostsMeeting> meeting;
  if (hosts.hosts > 1) meeting.emplace(run.path(), sign);
  launch::Job job = job_of(run, sign, 0, hosts.address);
  if (meeting) job.meeting = meeting->folder();

  events::LiveView view(live_options(recipe, show), run, workers, std::cout, real_clock());
  launch::Hooks hooks;
  hooks.tick = [&] {
    view.tick();
    if (meeting) meeting->beat();
  };
  const launch::Outcome outcome = launch::run_local(job, hooks);

  const Json summary = events::make_summary(run, outcome.exit_code, workers);
  events::write_summary(run, summary);
  if (recipe.logging.report) events::write_report(run);
  view.finish(summary);
  if (outcome.exit_code == exit_ok && show == Show::automatic) say_where(run, recipe, summary);
  if (outcome.interrupted) say_how_to_go_on(run);
  return outcome.exit_code;
}

int join_run(const fs::path& folder, int host, const std::string& address, double timeout) {
  const events::RunFolder run(folder);
  launch::HostsSign sign;
  {
    launch::SignalCatcher signals;
    sign = launch::await_hosts(folder, timeout, [&] { return signals.count() > 0; });
  }
  if (host >= sign.hosts)
    throw ConfigError(
        {{"--host", "", str(host),
          str("must be 1 to ", sign.hosts - 1, ": the run has ", sign.hosts, " hosts"), ""}});
  const launch::HostClaim claim(sign, host);
  const launch::Job job = job_of(run, sign, host, address);
  std::cerr << "host " << host << " of " << sign.hosts << ": ranks " << job.first_rank << " to "
            << job.first_rank + job.workers - 1 << " of " << sign.workers << "\n";
  return launch::run_local(job).exit_code;
}

}  // namespace tutti::cli
