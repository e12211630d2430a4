// The model on one device, step by step: what parity.h holds layouts against.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "train/parity.h"

namespace tutti::train {

// Whole tensors by name. Gradients (by parameter) are of the mean loss; `before` and `after` are
// the state around the update, by the names that engines give it.
struct TwinStep {
  double loss = 0, count = 0, norm = 0;
  std::map<std::string, torch::Tensor> gradients, before, after;
};

struct Twin {
  std::vector<TwinStep> steps;
  std::vector<std::vector<parallel::Batch>> batches;  // [step][micro-batch]
  std::int64_t parameters = 0;
};

// A task of the subject with parameters of that type.
std::unique_ptr<parallel::Task> make_typed_task(const ParitySubject& subject,
                                                torch::ScalarType type);

parallel::StepInput parity_input(const recipe::Recipe& recipe, const Twin& twin, std::int64_t step);

Twin run_twin(const ParitySubject& subject, const ParityOptions& options);

}  // namespace tutti::train
