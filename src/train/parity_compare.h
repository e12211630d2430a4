// Pieces that ranks hold, against the whole tensors of one device.
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "train/parity_twin.h"

namespace tutti::train {

// What the ranks of one layout saw. Ranks call it at the same time, each for itself.
class Comparison {
 public:
  Comparison(const Twin& twin, const ParityOptions& options);

  void outcome(int rank, std::int64_t step, const parallel::StepOutcome& outcome);
  void gradients(int rank, std::int64_t step, const parallel::StepOutcome& outcome,
                 const std::vector<parallel::StateTensor>& pieces);
  void state(int rank, std::int64_t step, const std::vector<parallel::StateTensor>& pieces);

  // After the last step: fills in what run says of differences. `error` is left alone unless
  // elements have no owner or several.
  void finish(ParityRun& run) const;

 private:
  using Key = std::pair<Quantity, std::string>;
  struct Scales {  // of a step, by full name; never so small that rounding looks like a difference
    std::map<std::string, double> gradient, update, state;
    // fp32: how much an element's update counts. Adam makes as much of a gradient that is nothing
    // but rounding as of a large one.
    std::map<std::string, torch::Tensor> weights;
  };

  Scales scales_of(std::size_t step) const;
  void number(Quantity quantity, int rank, std::int64_t step, double mine, double theirs);
  void piece(const parallel::StateTensor& piece, const torch::Tensor& mine,
             const torch::Tensor& theirs, double scale, const torch::Tensor& weight,
             Difference difference);
  void note(Difference difference);

  const Twin& twin_;
  const ParityOptions& options_;
  std::vector<Scales> scales_;
  mutable std::mutex mutex_;
  std::vector<std::map<Key, Difference>> seen_;  // by step
  std::map<std::string, std::int64_t> owned_;    // elements of weights in pieces, in the last step
};

}  // namespace tutti::train
