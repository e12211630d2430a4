// What a model's tensors are called in a Hugging Face folder. They have our names, but for mixtures
// of experts: each expert is a tensor of its own there.
#pragma once
#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "nn/model.h"

namespace tutti::nn {

// Every parameter, and the routers' biases, by their names there: views into the model's, in the
// order of named_parameters().
std::vector<std::pair<std::string, torch::Tensor>> hugging_face_tensors(const LanguageModel& model);

}  // namespace tutti::nn
