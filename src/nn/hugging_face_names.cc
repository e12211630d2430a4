#include "nn/hugging_face_names.h"

#include "base/error.h"

namespace tutti::nn {
namespace {

using Named = std::vector<std::pair<std::string, torch::Tensor>>;

void replace(std::string& text, std::string_view what, std::string_view with) {
  const std::size_t at = text.find(what);
  if (at != std::string::npos) text.replace(at, what.size(), with);
}

bool is_mixtral(const recipe::Model& m) {
  return m.moe.router == "softmax" && !m.qk_norm && m.moe.shared_experts == 0;
}

std::string stored_name(std::string name, const recipe::Model& m) {
  if (m.moe.experts == 0) return name;
  replace(name, ".mlp.router.bias", ".mlp.gate.e_score_correction_bias");
  replace(name, ".mlp.router.", ".mlp.gate.");
  if (!m.moe.shared_gate) replace(name, ".shared_expert.", ".shared_experts.");
  if (!is_mixtral(m)) return name;
  replace(name, ".mlp.", ".block_sparse_moe.");
  replace(name, "gate_proj", "w1");
  replace(name, "down_proj", "w2");
  replace(name, "up_proj", "w3");
  return name;
}

void add(Named& all, const std::string& name, const torch::Tensor& tensor, const recipe::Model& m) {
  const std::string marker = ".experts.", stored = stored_name(name, m);
  const std::size_t at = stored.find(marker);
  if (m.moe.experts == 0 || at == std::string::npos) {
    all.emplace_back(stored, tensor);
    return;
  }
  for (std::int64_t e = 0; e < tensor.size(0); ++e) {
    std::string one = stored;
    one.insert(at + marker.size(), str(e, "."));
    all.emplace_back(one, tensor[e]);
  }
}

}  // namespace

Named hugging_face_tensors(const LanguageModel& model) {
  torch::NoGradGuard no_grad;
  Named all;
  for (const auto& p : model.named_parameters()) add(all, p.key(), p.value(), model.config());
  if (model.config().moe.router != "sigmoid") return all;  // a softmax's has no place there
  for (const auto& b : model.named_buffers())
    if (b.key().ends_with(".router.bias")) add(all, b.key(), b.value(), model.config());
  return all;
}

}  // namespace tutti::nn
