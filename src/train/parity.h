// Whether a layout trains the same model as one device: the model runs both ways in this process,
// threads as ranks, and everything is compared by name. The obvious twin for gradients is a plain
// loop over Task::loss and autograd, without an engine; for updates, the engine on one rank. Each
// degree of the layout is then tried alone, and, where none alone differs, in pairs, so that the
// culprit has a name. docs/parity.md says how to read the result.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/engine.h"
#include "recipe/recipe.h"

namespace tutti::train {

struct ParityOptions {
  std::string precision = "fp64";  // fp64 | fp32
  std::int64_t steps = 2;
  double tolerance = 0;    // relative; 0: 1e-6 in fp64, 1e-4 in fp32
  std::string fault = {};  // base/fault.h: on while a layout runs, off on one device
  std::function<void(const struct ParityRun&)> on_run = {};  // told each as it ends

  double limit() const { return tolerance > 0 ? tolerance : precision == "fp64" ? 1e-6 : 1e-4; }
};

// What is compared, in the order in which a step makes it.
enum class Quantity { count, loss, gradient, norm, update, state };
inline constexpr std::array<const char*, 6> quantity_names = {"targets", "loss",   "gradient",
                                                              "norm",    "update", "optimizer"};

// Of one tensor (or number: name is empty), the largest |a - b| of its elements over the largest
// |b|, b on one device.
struct Difference {
  Quantity quantity = Quantity::count;
  std::string name;         // of the parameter
  double value = 0;         // NaN: it is not finite in the layout alone
  std::int64_t step = 0;    // from 0
  int rank = 0;             // where it was seen
  double factor = 0;        // a = factor x b, all elements alike; 0: they differ in other ways
  std::string detail = {};  // beside it: what the optimizer calls the tensor
};

// One layout against one device.
struct ParityRun {
  std::string name;               // "the layout", "tensor", "tensor + context"
  std::vector<std::string> axes;  // "tensor", ...; those of the layout for the whole
  std::string layout;             // its fields: "workers 4, tensor 2, context 2"
  int ranks = 1;
  std::string error;                // it did not run: why
  std::vector<Difference> worst;    // one a quantity, over steps, ranks and names
  std::vector<Difference> tensors;  // those above the limit in the first step that has any, by
                                    // quantity, worst first; at most 8 a quantity
  bool holds = true;
  double seconds = 0;
};

struct ParityReport {
  ParityOptions options;
  std::string recipe;  // its name
  std::int64_t parameters = 0;
  std::vector<ParityRun> runs;     // the whole first
  std::vector<std::string> notes;  // what could not be tried, what it costs
  bool holds = true;
  std::string verdict;  // a sentence or a few: what agrees, or who is to blame and what to look for
};

// A model with its data, made anew for each run.
struct ParitySubject {
  recipe::Recipe recipe;  // sizes of the model as they are, not 0
  std::function<std::unique_ptr<parallel::Task>()> make_task;  // with the same weights each time
  std::function<parallel::Batch(std::int64_t step, std::int64_t id)> batch;  // one thread
};

// The one-device run, against which any number of layouts can be held.
class Parity {
 public:
  Parity(ParitySubject subject, const ParityOptions& options);
  ~Parity();
  // The recipe's layout and its parts. `fault` as in ParityOptions.
  ParityReport check(const recipe::Parallel& layout, const std::string& fault = {}) const;

 private:
  struct One;
  std::unique_ptr<One> one_;
};

// The recipe's own model and the first batches of its data. ConfigError if it has no such layout.
ParityReport check_parity(const recipe::Recipe& recipe, const ParityOptions& options);

}  // namespace tutti::train
