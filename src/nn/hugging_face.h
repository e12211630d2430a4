// Folders that Hugging Face's transformers reads and writes: config.json with safetensors weights,
// one file or several with an index. Families: LlamaForCausalLM, MistralForCausalLM (without a
// sliding window), Qwen2ForCausalLM, Qwen3ForCausalLM, GPT2LMHeadModel, and the mixtures of experts
// MixtralForCausalLM, OlmoeForCausalLM, Qwen2MoeForCausalLM, Qwen3MoeForCausalLM, Dots1ForCausalLM
// (DeepSeek-V3's router and shared experts with grouped attention; multi-head latent attention is
// not supported).
//
// Mistakes in a folder's content throw ConfigError, all at once; unreadable or damaged files and a
// full disk throw WorldError.
#pragma once
#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/fs.h"
#include "base/json.h"
#include "nn/model.h"

namespace tutti::nn {

// The model that a config.json describes; every size is set, dropout is 0. `origin` is named in
// errors.
recipe::Model from_hugging_face(const Json& config, const std::string& origin);

// The config.json of a resolved model. Throws ConfigError for a combination that no architecture of
// Hugging Face has (qkv bias together with qk norm).
Json to_hugging_face(const recipe::Model& model, DType dtype);

recipe::Model read_config(const fs::path& folder);

// Copies every weight into `model`'s parameters, converting the dtype. Missing, unexpected and
// misshaped tensors are reported together and nothing was copied then.
void load_weights(LanguageModel& model, const fs::path& folder);

struct SaveOptions {
  DType dtype = DType::f32;                            // f32, bf16 or f16
  std::uint64_t shard_bytes = std::uint64_t{5} << 30;  // a file holds at most this, or one tensor
};

// Writes config.json and the weights into `folder` (made if absent; files of the same names are
// replaced). Each file appears whole or not at all; config.json comes last.
void save_pretrained(const LanguageModel& model, const fs::path& folder,
                     const SaveOptions& options = {});

}  // namespace tutti::nn
