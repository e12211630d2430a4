// Your own module, loss and data as a training on several processes:
//
//   tutti::recipe::Recipe recipe;                 // batch, optimizer, schedule, workers, ...
//   recipe.parallel.workers = 2;
//   auto task = tutti::train::make_task(net, [](Net& net, const Batch& batch) -> Loss { ... });
//   tutti::train::fit(argc, argv, recipe, *task, train, &validation, {early_stop});
//
// The program that calls fit() becomes the launcher: it starts itself once a worker, and each
// worker comes to the same call. Write main() so that it comes there with the same model and data.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "train/trainer.h"

namespace tutti::train {

template <class Module, class LossFunction>
class ModuleTask : public parallel::Task {
 public:
  ModuleTask(std::shared_ptr<Module> module, LossFunction loss)
      : module_(std::move(module)), loss_(std::move(loss)) {}
  torch::nn::Module& module() override { return *module_; }
  parallel::Loss loss(const parallel::Batch& batch) override { return loss_(*module_, batch); }

 private:
  std::shared_ptr<Module> module_;
  LossFunction loss_;
};

// `loss(module, batch)` returns a sum over targets and their count: never a mean (engine.h says
// why).
template <class Module, class LossFunction>
std::unique_ptr<parallel::Task> make_task(std::shared_ptr<Module> module, LossFunction loss) {
  return std::make_unique<ModuleTask<Module, LossFunction>>(std::move(module), std::move(loss));
}

struct FitOptions {
  fs::path out;         // the run's folder; empty: runs/NAME-DATE
  bool resume = false;  // go on with the run that lies in `out`
  bool quiet = false;
};

// Returns what came of it to the launcher, whose module then holds what was learnt; a worker ends
// with its training. A program may call it several times, one training after another. A failure in
// a worker ends the others, shows its last lines with its rank, and throws WorldError in the
// launcher. Of `recipe`, the fields of model and data do not matter. All ranks must be given equal
// data.
Result fit(int argc, char** argv, const recipe::Recipe& recipe, parallel::Task& task,
           Samples& train, Samples* validation = nullptr,
           std::vector<std::shared_ptr<Callback>> callbacks = {}, const FitOptions& options = {});

}  // namespace tutti::train
