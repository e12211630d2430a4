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
//
// Streaming (Douillard et al., "Streaming DiLoCo with overlapping communication", 2025, algorithm
// 2): the parameters are P fragments in the model's order, of about as many elements each, and
// fragment p = 0.. takes its outer step at the end of step (p + 1) H / P of a round. What it needs
// is sent T = overlap_steps earlier, from the weights of then, and crosses while the island trains
// on; what comes is mixed with the island's own weights of now:
//
//   w_i <- a w_i + (1 - a) w   with a = outer_mix if T > 0, else 0
//
// T < H / P, so that nothing is under way at the end of a round. Buffers that training changes are
// island 0's. Checkpoints, comparisons and the end of a run fall on the end of a round. The run's
// weights are w; where islands then differ from it (P > 1 or T > 0) each one's own are state too.
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
  // The mean of the islands' losses with the run's weights, each over all of [0, count): a mean of
  // parts would weigh their targets otherwise than one process does.
  double evaluate(std::int64_t count, const BatchSource& batches) override;
  std::int64_t agree(std::int64_t value) override;
  std::vector<StateTensor> gradients() override { return inner_->gradients(); }
  // The weights, the outer momentum "outer.momentum/<parameter>", and of each island its optimizer,
  // "island.1/optimizer.exp_avg/<parameter>", what it has not sent yet, "island.1/outer.error/...",
  // and, if they are not the run's, its weights, "island.1/local/<parameter>".
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
  // What this rank sends of a fragment.
  struct Fragment {
    std::vector<std::string> keys;    // pieces, in the order in which they lie in `all`
    std::vector<std::int64_t> sizes;  // elements of `all` each (of one island)
    torch::Tensor all;                // the sum of weights, or what each island sent
    std::shared_ptr<collective::Work> work;
  };
  std::vector<StateTensor> trained();
  void remember();
  // Parameters of each fragment, from the whole model: alike on all ranks.
  void cut_fragments(Task& task);
  // Who sends what, of the ranks of an island that hold it.
  void learn_owners();
  bool sends(const StateTensor& tensor) const;
  bool in_fragment(const StateTensor& tensor, int fragment) const;
  // Starts the mean of a fragment, and takes the outer step with it.
  void send(int fragment);
  void take(int fragment);
  // Sets the values of pieces that this rank has sent to their mean over the islands.
  void means_of(const Fragment& fragment, std::map<std::string, torch::Tensor>& values) const;
  // From owners to the others of the island that hold the same pieces.
  void hand_round(std::map<std::string, torch::Tensor>& values);
  void outer_step(Outer& outer, torch::Tensor& mean) const;
  void share_buffers();
  // What of the round ends with its step `place`, 1 to local_steps.
  void fragments_at(std::int64_t place);
  // The run's weights into the engine and the island's into their place, or back.
  void swap_weights();
  bool rounds() const { return recipe_.optimizer.outer_type != "fp32"; }
  bool streams() const {
    return recipe_.parallel.fragments > 1 || recipe_.parallel.overlap_steps > 0;
  }
  void share(StepOutcome& outcome);
  void add_of_island(std::vector<StateTensor>& all, StateTensor tensor) const;
  void add_outer(std::vector<StateTensor>& all, StateTensor tensor) const;

  recipe::Recipe recipe_;
  std::shared_ptr<collective::Group> world_, island_, across_;  // across: one rank of each island
  int place_;                                                   // of this rank's island
  std::unique_ptr<Engine> inner_;
  std::map<std::string, int> trained_;  // fragment of each parameter, "model/..."
  std::set<std::string> moving_;        // buffers
  std::vector<Fragment> fragments_;
  std::map<std::string, int> owner_;          // rank of the island, by name and box
  std::vector<std::vector<std::string>> to_;  // each rank of the island: pieces that it gets
  std::map<std::string, Outer> outer_;        // by name and box
  double elapsed_ = 0;
};

}  // namespace tutti::parallel
