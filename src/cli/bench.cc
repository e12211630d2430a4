// tutti bench comm: what the collectives cost on this machine, and what memory could give.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/verbs.h"
#include "cli/worker.h"
#include "comm/measure.h"
#include "comm/memory_group.h"
#include "launch/cores.h"
#include "launch/local.h"
#include "recipe/quantity.h"

namespace tutti::cli {
namespace {

constexpr std::int64_t largest_size = std::int64_t{1} << 30;

struct Options {
  std::int64_t ranks = 2;
  std::string transports = "shm,gloo", operations, sizes = "1kb..64mb", out;
  double seconds = 0.3;
  bool json = false;
};

std::vector<std::string> all_operations() {
  return {comm::measured_operations.begin(), comm::measured_operations.end()};
}

// Each word of a list must be known; a double is measured once.
std::vector<std::string> chosen_of(const std::string& option, const std::string& text,
                                   const std::vector<std::string>& known,
                                   std::vector<Violation>& wrong) {
  std::vector<std::string> chosen;
  for (const std::string& part : split(text, ',')) {
    const std::string word(trim(part));
    const std::string near = nearest(word, known);
    if (std::ranges::find(known, word) == known.end())
      wrong.push_back({option, "", word, "must be of " + join(known, ", "),
                       near.empty() ? "" : "did you mean " + near + "?"});
    else if (std::ranges::find(chosen, word) == chosen.end())
      chosen.push_back(word);
  }
  return chosen;
}

std::int64_t size_from(const std::string& text, std::vector<Violation>& wrong) {
  const std::int64_t bytes = recipe::parse_bytes(text).value_or(0);
  if (bytes >= 4 && bytes <= largest_size && bytes % 4 == 0) return bytes;
  wrong.push_back({"--sizes", "", text, "must be whole floats, 4 bytes to 1gb",
                   "write like 1kb..64mb or 4kb,1mb"});
  return 0;
}

// "1kb..64mb" goes up by factors of 4; "4kb,1mb" names each. Ascending.
std::vector<std::string> sizes_of(const std::string& text, std::vector<Violation>& wrong) {
  std::vector<std::int64_t> sizes;
  if (const std::size_t dots = text.find(".."); dots != std::string::npos) {
    const std::int64_t first = size_from(text.substr(0, dots), wrong);
    const std::int64_t last = size_from(text.substr(dots + 2), wrong);
    if (first > 0 && last > 0 && first > last)
      wrong.push_back({"--sizes", "", text, "ends below its beginning", "swap the two"});
    for (std::int64_t bytes = first; bytes > 0 && bytes <= last; bytes *= 4) sizes.push_back(bytes);
  } else {
    for (const std::string& part : split(text, ',')) sizes.push_back(size_from(part, wrong));
  }
  std::ranges::sort(sizes);
  const auto doubles = std::ranges::unique(sizes);
  sizes.erase(doubles.begin(), doubles.end());
  std::vector<std::string> texts;
  for (const std::int64_t bytes : sizes) texts.push_back(str(bytes));
  return texts;
}

// Before the work, not after it.
void check_out(const fs::path& file, std::vector<Violation>& wrong) {
  if (file.empty()) return;
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  if (fs::is_directory(file))
    wrong.push_back({"--out", "", file.string(), "is a folder", "name a file in it"});
  else if (!fs::is_directory(folder))
    wrong.push_back({"--out", "", file.string(), "lies in no folder", "make it first"});
  else if (::access(folder.c_str(), W_OK) != 0)
    wrong.push_back(
        {"--out", "", file.string(), "may not be written: " + errno_text(), "name another file"});
}

std::vector<std::string> worker_args(const Options& options, const fs::path& result) {
  std::vector<Violation> wrong;
  if (options.ranks < 2 || options.ranks > comm::max_memory_ranks)
    wrong.push_back({"--ranks", "", str(options.ranks),
                     str("must be 2 to ", comm::max_memory_ranks),
                     "what one rank sends to itself is no measure"});
  if (!(options.seconds > 0 && options.seconds <= 60))
    wrong.push_back(
        {"--seconds", "", str(options.seconds), "must be above 0 and at most 60", "0.3 is usual"});
  const auto transports =
      chosen_of("--transports", options.transports, {"shm", "tcp", "gloo"}, wrong);
  const auto operations = chosen_of("--operations", options.operations, all_operations(), wrong);
  const auto sizes = sizes_of(options.sizes, wrong);
  check_out(options.out, wrong);
  if (!wrong.empty()) throw ConfigError(wrong);
  return {"bench",
          "--transports=" + join(transports, ","),
          "--operations=" + join(operations, ","),
          "--sizes=" + join(sizes, ","),
          str("--seconds=", options.seconds),
          str("--cores=", launch::usable_cores()),
          "--result=" + result.string()};
}

void print_table(const Json& table) {
  std::printf(
      "\n%s over %s, %s buffers: %s + %.3f ns a KiB\n",
      table["operation"].get<std::string>().c_str(), table["transport"].get<std::string>().c_str(),
      table["buffers"].get<std::string>().c_str(), time_text(table["alpha"].get<double>()).c_str(),
      table["beta"].get<double>() * 1024e9);
  if (table["operation"] == "barrier") return;
  std::printf("%14s %12s %14s %14s\n", "size", "time", "algorithm GB/s", "bus GB/s");
  for (const Json& point : table["points"])
    std::printf("%14s %12s %14.3f %14.3f\n", human_bytes(point["bytes"].get<double>()).c_str(),
                time_text(point["seconds"].get<double>()).c_str(),
                point["algorithm_bandwidth"].get<double>() * 1e-9,
                point["bus_bandwidth"].get<double>() * 1e-9);
}

void print(const Json& profile) {
  std::printf("%d ranks on %d cores, f32, every result verified\n", profile["ranks"].get<int>(),
              profile["cores"].get<int>());
  for (const Json& table : profile["tables"]) print_table(table);
  const Json& memory = profile["memory"];
  std::printf("\nmemory, all ranks at once, %s each: copy %.1f GB/s, triad %.1f, update %.1f\n",
              human_bytes(memory["bytes"].get<double>()).c_str(),
              memory["copy"].get<double>() * 1e-9, memory["triad"].get<double>() * 1e-9,
              memory["update"].get<double>() * 1e-9);
  if (memory["all_reduce_share"].is_number())
    std::printf("all_reduce of %s in shared buffers moves 2 n S bytes at %.2f of the highest\n",
                human_bytes(memory["bytes"].get<double>()).c_str(),
                memory["all_reduce_share"].get<double>());
}

// The logs go with their folder: a worker's last lines have been shown.
void say(const std::string& line) {
  std::cerr << line.substr(0, line.find(" (all output: ")) << "\n";
}

int bench_comm(const Options& options) {
  const TempFolder folder("tutti-bench");
  const fs::path result = folder.path() / "profile.json";
  launch::Job job;
  job.args = worker_args(options, result);
  job.program = find_worker();
  job.workers = static_cast<int>(options.ranks);
  job.threads = 1;
  job.log_folder = folder.path() / "logs";
  job.interrupt_grace = 1;
  const launch::Outcome outcome = launch::run_local(job, {{}, say});
  if (outcome.exit_code != exit_ok) return outcome.exit_code;
  const Json profile = parse_json(read_file(result), result.string());
  if (!options.out.empty()) write_file(options.out, profile.dump(2) + "\n");
  if (options.json)
    std::cout << profile.dump(2) << "\n";
  else
    print(profile);
  return exit_ok;
}

}  // namespace

void add_bench(CLI::App& app, Action& chosen) {
  CLI::App* bench = app.add_subcommand("bench", "measure this machine");
  bench->require_subcommand(0, 1);
  CLI::App* verb = bench->add_subcommand("comm", "what collectives cost between processes here");
  auto options = std::make_shared<Options>();
  options->operations = join(all_operations(), ",");
  verb->add_option("--ranks", options->ranks, "processes")->type_name("N")->capture_default_str();
  verb->add_option("--transports", options->transports, "of shm, tcp, gloo")
      ->type_name("A,B")
      ->capture_default_str();
  verb->add_option("--operations", options->operations, "which")
      ->type_name("A,B")
      ->capture_default_str();
  verb->add_option("--sizes", options->sizes, "FIRST..LAST by factors of 4, or a list")
      ->type_name("SIZES")
      ->capture_default_str();
  verb->add_option("--seconds", options->seconds, "of timed calls, for each cell of a table")
      ->type_name("S")
      ->capture_default_str();
  verb->add_option("--out", options->out, "also write the profile")->type_name("FILE");
  verb->add_flag("--json", options->json, "print the profile");
  verb->footer(example("tutti bench comm --transports shm --sizes 1kb..1mb --seconds 0.02"));
  verb->callback([options, &chosen] { chosen = [options] { return bench_comm(*options); }; });
}

}  // namespace tutti::cli
