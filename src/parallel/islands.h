// Islands: groups of workers that train apart for some steps and then step together towards the
// mean of their weights. Between means nothing crosses from island to island, so that the wire
// between them carries the weights once in `local_steps` steps.
//
// With w the weights after the last mean, w_i those of island i after H steps of its own optimizer
// on its own part of each batch, and R islands (Douillard et al., "DiLoCo: distributed low-
// communication training of language models", 2023, algorithm 1):
//
//   mean = 1/R sum w_i    delta = w - mean      v <- mu v + delta
//   w <- w - lr (delta + mu v)   if mu > 0 (Nesterov),   w <- w - lr delta   else
//
// With optimizer.outer_type other than fp32, delta_i = w - w_i + e_i is sent rounded
// (compression.h), delta is the mean of what was sent, and e_i <- delta_i - sent_i (error feedback:
// Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression schemes", 2019).
//
// lr = 1 and mu = 0 is local SGD (Stich, "Local SGD converges fast and communicates little", 2019).
// Buffers that training changes are island 0's. All state is whole only after a mean: checkpoints,
// comparisons and the end of a run fall there (plan/layout.h refuses other intervals).
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "collective/group.h"
#include "parallel/engine.h"
#include "recipe/recipe.h"

namespace tutti::parallel {

class Islands : public Engine {
 public:
  using Make = std::function<std::unique_ptr<Engine>(const recipe::Recipe& island, Task& task,
                                                     std::shared_ptr<collective::Group> group)>;

  // Collective over `world`. `make` gives an island its engine.
  Islands(const recipe::Recipe& recipe, Task& task, const Make& make,
          std::shared_ptr<collective::Group> world);

  // The loss between means is this island's, and the count that of all if they had as many; those
  // of a step that ends in a mean are of all; the norm is always the island's. Only at a mean do
  // ranks agree to stop, on the time, and whether all islands could update: if one could not, no
  // mean is taken.
  StepOutcome step(const StepInput& input) override;
  std::int64_t parameter_count() const override { return inner_->parameter_count(); }
  // The mean of the islands' losses, each over all of [0, count): a mean of parts would weigh their
  // targets otherwise than one process does.
  double evaluate(std::int64_t count, const BatchSource& batches) override;
  std::int64_t agree(std::int64_t value) override;
  std::vector<StateTensor> gradients() override { return inner_->gradients(); }
  // The weights, the outer momentum "outer.momentum/<parameter>", and of each island its optimizer,
  // "island.1/optimizer.exp_avg/<parameter>", and what it has not sent yet,
  // "island.1/outer.error/...".
  std::vector<StateTensor> state() override;
  void restored() override;
  std::vector<StateTensor> copies() override { return inner_->copies(); }
  std::string scalars() const override { return inner_->scalars(); }
  void set_scalars(const std::string& json) override { inner_->set_scalars(json); }

 private:
  struct Outer {
    torch::Tensor weights, momentum;  // of one piece, as the last mean left it
    torch::Tensor error;  // undefined: another rank of the island sends it, or all is sent
  };
  std::vector<StateTensor> trained();
  void remember();
  void average();
  // Who sends what, of the ranks of an island that hold it.
  void learn_owners();
  void hand_round(std::vector<StateTensor>& all);
  bool sends(const StateTensor& tensor) const;
  // Sets the values of pieces that this rank sends to their mean over the islands.
  void mean_of(const std::vector<StateTensor>& sent);
  void mean_of_rounded(const std::vector<StateTensor>& sent);
  bool rounds() const { return recipe_.optimizer.outer_type != "fp32"; }
  void outer_step(Outer& outer, torch::Tensor& value) const;
  void share(StepOutcome& outcome);
  void add_of_island(std::vector<StateTensor>& all, StateTensor tensor) const;
  void add_outer(std::vector<StateTensor>& all, StateTensor tensor) const;

  recipe::Recipe recipe_;
  std::shared_ptr<collective::Group> world_, island_, across_;  // across: one rank of each island
  int place_;                                                   // of this rank's island
  std::unique_ptr<Engine> inner_;
  std::set<std::string> trained_, moving_;    // parameters and buffers, "model/..."
  std::map<std::string, int> owner_;          // rank of the island, by name and box
  std::vector<std::vector<std::string>> to_;  // each rank of the island: pieces that it gets
  std::map<std::string, Outer> outer_;        // by name and box
  double elapsed_ = 0;
};

}  // namespace tutti::parallel
