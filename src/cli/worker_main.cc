// `tutti-worker`: what needs libtorch. See worker.h for how `tutti` calls it.
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <stop_token>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "base/version.h"
#include "cli/worker_bench.h"
#include "data/tokenizer.h"
#include "nn/generate.h"
#include "nn/hugging_face.h"
#include "recipe/parse.h"
#include "train/failure.h"
#include "train/layout_text.h"
#include "train/parity.h"
#include "train/parity_report.h"
#include "train/restore.h"
#include "train/run.h"

namespace tutti::cli {
namespace {

// "DIR --name=value ..." or "--name value"; `tutti` has checked names and ranges.
struct Arguments {
  std::string run;
  std::map<std::string, std::string> options;

  bool has(const std::string& name) const { return options.contains(name); }
  std::string get(const std::string& name, const std::string& otherwise) const {
    const auto found = options.find(name);
    return found == options.end() ? otherwise : found->second;
  }
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (!word.starts_with("--")) {
      arguments.run = word;
      continue;
    }
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
    if (equals != std::string::npos)
      arguments.options[name] = word.substr(equals + 1);
    else if (name == "run" && i + 1 < argc)
      arguments.run = argv[++i];
    else
      arguments.options[name] = "";
  }
  return arguments;
}

int train(const Arguments& arguments) {
  train::catch_stop_signals();
  const train::Worker worker =
      train::worker_from_environment(arguments.run, arguments.has("resume"));
  const recipe::Recipe recipe = train::recipe_of(arguments.run);
  if (worker.world_size > 1) set_log_rank(worker.rank);
  train::prepare_process(recipe);
  const train::Result result = train::run(recipe, worker);
  return result.interrupted ? exit_interrupted : exit_ok;
}

train::Restored restore(const Arguments& arguments) {
  std::optional<std::int64_t> step;
  if (arguments.has("checkpoint")) step = std::stoll(arguments.get("checkpoint", ""));
  return train::restore(arguments.run, step);
}

int eval(const Arguments& arguments) {
  auto restored = restore(arguments);
  train::prepare_process(restored.recipe);
  const train::Evaluation found = train::evaluate(restored);
  const Json json = {{"step", restored.step},
                     {"validation_loss", found.loss},
                     {"nats_per_byte", found.nats_per_byte},
                     {"targets", found.targets}};
  if (arguments.has("json"))
    std::cout << json.dump() << "\n";
  else
    std::cout << "step " << restored.step << ": validation loss " << found.loss << " nats a token, "
              << found.nats_per_byte << " nats a byte, over " << human_count(found.targets)
              << " tokens\n";
  return exit_ok;
}

// `tutti` has checked that it is one; too small a number is 0.
double number(const std::string& text) { return std::strtod(text.c_str(), nullptr); }

int generate(const Arguments& arguments) {
  auto restored = restore(arguments);
  train::prepare_process(restored.recipe);
  const std::string prompt = arguments.get("prompt", "\n");
  std::vector<std::int64_t> ids;
  for (const std::int32_t id : restored.tokenizer->encode(prompt)) ids.push_back(id);
  nn::Sampling sampling;
  sampling.temperature = number(arguments.get("temperature", "0.8"));
  sampling.top_k = std::stoll(arguments.get("top-k", "0"));
  sampling.top_p = number(arguments.get("top-p", "1"));
  sampling.seed = std::stoull(arguments.get("seed", "1"));
  sampling.ids = restored.tokenizer->vocab_size();
  data::StreamDecoder decoder(*restored.tokenizer);
  std::cout << prompt << std::flush;
  const auto end = restored.tokenizer->end_of_document();
  nn::generate(*restored.model, ids, std::stoll(arguments.get("tokens", "256")), sampling,
               [&](std::int64_t id) {
                 if (end && id == *end) return false;
                 std::cout << decoder.push(static_cast<std::int32_t>(id)) << std::flush;
                 return std::cout.good();
               });
  std::cout << decoder.finish() << "\n";
  return exit_ok;
}

int export_model(const Arguments& arguments) {
  const auto restored = restore(arguments);
  const fs::path folder = arguments.get("to", "");
  nn::save_pretrained(*restored.model, folder);
  const fs::path tokenizer = restored.recipe.data.tokenizer;
  for (const char* file : {"tokenizer.json", "tokenizer.model"}) {
    const fs::path source = fs::is_directory(tokenizer) ? tokenizer / file : tokenizer;
    if (fs::is_regular_file(source) && source.filename() == file)
      write_file(folder / file, read_file(source));
  }
  std::cout << "step " << restored.step << " written to " << folder.string() << " (Hugging Face)\n";
  return exit_ok;
}

// Says why nothing comes, if nothing does for a while.
class SlowNote {
 public:
  explicit SlowNote(const char* text)
      : thread_([text](const std::stop_token& stop) {
          std::mutex mutex;
          std::unique_lock lock(mutex);
          std::condition_variable_any().wait_for(lock, stop, std::chrono::seconds(3),
                                                 [] { return false; });
          if (!stop.stop_requested()) std::cerr << "note: " << text << "\n";
        }) {}

 private:
  std::jthread thread_;
};

recipe::Recipe whole_recipe(const Arguments& arguments) {
  recipe::Recipe recipe = recipe::parse(arguments.get("recipe", ""), "the recipe", {},
                                        fs::current_path(), recipe::Inputs::none)
                              .recipe;
  train::prepare_process(recipe);
  return recipe;
}

int layout(const Arguments& arguments) {
  const recipe::Recipe recipe = whole_recipe(arguments);
  const auto tokenizer = data::open_tokenizer(recipe.data.tokenizer);
  const SlowNote note(
      "running one step of this layout, its ranks as threads; fewer layers, experts or tokens show "
      "the same sooner");
  std::optional<comm::CostTable> costs;
  if (arguments.has("profile"))
    costs = comm::CostTable::read(arguments.get("profile", ""), arguments.get("transport", ""));
  std::cout << train::layout_text(recipe, tokenizer->vocab_size(), costs ? &*costs : nullptr);
  return exit_ok;
}

int parity(const Arguments& arguments) {
  const recipe::Recipe recipe = whole_recipe(arguments);
  train::ParityOptions options;
  options.precision = arguments.get("precision", options.precision);
  options.steps = std::stoll(arguments.get("steps", "2"));
  options.tolerance = number(arguments.get("tolerance", "0"));
  options.fault = arguments.get("with-fault", "");
  options.on_run = [](const train::ParityRun& run) {
    std::cerr << "parity: " << run.name << ": " << (run.holds ? "agrees" : "differs") << ", "
              << human_seconds(run.seconds) << "\n";
  };
  const train::ParityReport report = train::check_parity(recipe, options);
  std::cout << train::parity_text(report);
  if (arguments.has("html")) write_file(arguments.get("html", ""), train::parity_html(report));
  return report.holds ? exit_ok : exit_differs;
}

int bench(const Arguments& arguments) {
  CommBench bench;
  bench.transports = split(arguments.get("transports", ""), ',');
  bench.operations = split(arguments.get("operations", ""), ',');
  for (const std::string& size : split(arguments.get("sizes", ""), ','))
    bench.sizes.push_back(std::stoull(size));
  bench.seconds = number(arguments.get("seconds", "0.3"));
  bench.cores = std::stoi(arguments.get("cores", "1"));
  bench.result = arguments.get("result", "");
  bench_comm(bench);
  return exit_ok;
}

int run(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  if (verb == "version") {
    std::cout << "tutti-worker " << version << ", libtorch " << TORCH_VERSION << "\n";
    return exit_ok;
  }
  const Arguments arguments = parse(argc, argv);
  if (verb == "train") return train(arguments);
  if (verb == "eval") return eval(arguments);
  if (verb == "generate") return generate(arguments);
  if (verb == "layout") return layout(arguments);
  if (verb == "parity") return parity(arguments);
  if (verb == "bench") return bench(arguments);
  if (verb == "export") return export_model(arguments);
  throw ConfigError("tutti-worker is started by tutti: see tutti --help");
}

}  // namespace
}  // namespace tutti::cli

int main(int argc, char** argv) {
  using namespace tutti;
  std::signal(SIGPIPE, SIG_IGN);
  try {
    const int code = cli::run(argc, argv);
    check_standard_output();
    return code;
  } catch (const ConfigError& error) {
    std::cerr << "tutti: " << error.what() << "\n";
    return exit_config;
  } catch (const WorldError& error) {
    std::cerr << "tutti: " << error.what() << "\n";
    return exit_world;
  } catch (const std::exception& error) {
    const bool bug = !dynamic_cast<const c10::Error*>(&error) && !train::out_of_memory(error);
    std::cerr << "tutti: " << (bug ? "bug: " : "") << train::failure_text(error) << "\n";
    return bug ? exit_bug : exit_world;
  }
}
