#include "nn/hugging_face.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <vector>

#include "base/error.h"
#include "checkpoint/stored_tensors.h"
#include "nn/hugging_face_names.h"

namespace tutti::nn {

using checkpoint::StoredFile, checkpoint::StoredTensor, checkpoint::write_stored;

namespace {

torch::ScalarType torch_type(DType type) {
  switch (type) {
    case DType::f64:
      return torch::kDouble;
    case DType::f16:
      return torch::kHalf;
    case DType::bf16:
      return torch::kBFloat16;
    case DType::i64:
      return torch::kLong;
    case DType::i32:
      return torch::kInt;
    case DType::i16:
      return torch::kShort;
    case DType::i8:
      return torch::kChar;
    case DType::u8:
      return torch::kByte;
    case DType::boolean:
      return torch::kBool;
    default:
      return torch::kFloat;
  }
}

// Buffers that older exports hold beside the weights.
bool ignorable(const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with("rotary_emb.inv_freq");
}

// The folder's weight files, from the index or the one file's name.
std::vector<fs::path> weight_files(const fs::path& folder) {
  const fs::path index = folder / "model.safetensors.index.json";
  if (!fs::exists(index)) {
    const fs::path single = folder / "model.safetensors";
    if (!fs::exists(single))
      throw ConfigError({{"model.from", "", folder.string(),
                          "must hold model.safetensors or model.safetensors.index.json", ""}});
    return {single};
  }
  const Json json = parse_json(read_file(index), index.string());
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    throw ConfigError({{"weight_map", index.string(), "", "must be an object: name -> file", ""}});
  std::set<fs::path> files;
  for (const auto& [name, file] : json["weight_map"].items()) {
    const std::string value = file.is_string() ? file.get<std::string>() : "";
    if (value.empty() || value.find('/') != std::string::npos)
      throw ConfigError({{name, index.string(), file.dump(), "must be the name of a file", ""}});
    files.insert(folder / value);
  }
  return {files.begin(), files.end()};
}

// A base model's file ("h.0...") has no prefix that the whole model's names have.
std::string full_name(const std::string& stored,
                      const std::map<std::string, torch::Tensor>& wanted) {
  if (wanted.count(stored)) return stored;
  for (const char* prefix : {"transformer.", "model."})
    if (wanted.count(prefix + stored)) return prefix + stored;
  return stored;
}

std::string shape_text(torch::IntArrayRef shape) {
  std::string text;
  for (std::int64_t extent : shape) text += (text.empty() ? "" : " x ") + std::to_string(extent);
  return text.empty() ? "scalar" : text;
}

}  // namespace

void load_weights(LanguageModel& model, const fs::path& folder) {
  const auto named = hugging_face_tensors(model);
  const std::map<std::string, torch::Tensor> wanted(named.begin(), named.end());
  std::vector<StoredFile> files;
  for (const auto& path : weight_files(folder)) files.emplace_back(path);

  std::vector<Violation> found;
  std::map<std::string, const StoredTensor*> sources;
  for (const auto& file : files)
    for (const auto& [stored, tensor] : file.tensors()) {
      const std::string name = full_name(stored, wanted);
      const auto at = wanted.find(name);
      if (at == wanted.end()) {
        const bool tied_head = name == "lm_head.weight" && model.config().tied;
        if (!tied_head && !ignorable(name))
          found.push_back({name, file.path().string(), "", "is not a weight of this model", ""});
      } else if (at->second.sizes() != torch::IntArrayRef(tensor.shape)) {
        found.push_back({name, file.path().string(), shape_text(tensor.shape),
                         "must have the shape " + shape_text(at->second.sizes()), ""});
      } else {
        sources[name] = &tensor;
      }
    }
  for (const auto& [name, parameter] : wanted)
    if (!sources.count(name) &&
        std::none_of(found.begin(), found.end(), [&](const auto& v) { return v.field == name; }))
      found.push_back({name, folder.string(), "", "is missing", ""});
  if (!found.empty()) throw ConfigError(found);

  torch::NoGradGuard no_grad;
  for (const auto& [name, source] : sources) {
    auto* data = const_cast<std::byte*>(source->bytes.data());
    torch::Tensor parameter = wanted.at(name);
    parameter.copy_(torch::from_blob(data, source->shape, torch_type(source->dtype)));
  }
}

void save_pretrained(const LanguageModel& model, const fs::path& folder,
                     const SaveOptions& options) {
  torch::NoGradGuard no_grad;
  const Json config = to_hugging_face(model.config(), options.dtype);
  make_folders(folder);

  const auto type = torch_type(options.dtype);
  std::vector<std::vector<std::string>> shards;
  std::uint64_t in_shard = 0, total = 0;
  const auto named = hugging_face_tensors(model);
  const std::map<std::string, torch::Tensor> tensors_of(named.begin(), named.end());
  for (const auto& [name, tensor] : named) {
    const auto bytes = static_cast<std::uint64_t>(tensor.numel()) * size_of(options.dtype);
    if (shards.empty() || in_shard + bytes > options.shard_bytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(name);
    in_shard += bytes;
    total += bytes;
  }

  Json map = Json::object();
  for (std::size_t i = 0; i < shards.size(); ++i) {
    std::string file = "model.safetensors";
    if (shards.size() > 1) {
      char name[64];
      std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
      file = name;
    }
    std::vector<torch::Tensor> alive;
    std::vector<std::pair<std::string, StoredTensor>> tensors;
    for (const auto& name : shards[i]) {
      const torch::Tensor& tensor = tensors_of.at(name);
      alive.push_back(tensor.detach().to(torch::kCPU, type).contiguous());
      const auto* data = static_cast<const std::byte*>(alive.back().data_ptr());
      tensors.push_back(
          {name, {options.dtype, tensor.sizes().vec(), {data, alive.back().nbytes()}}});
      map[name] = file;
    }
    write_stored(folder / file, tensors);
  }
  const fs::path index = folder / "model.safetensors.index.json";
  if (shards.size() > 1) {
    write_file(index,
               Json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) + "\n");
    fs::remove(folder / "model.safetensors");
  } else {
    fs::remove(index);
  }
  write_file(folder / "config.json", config.dump(2) + "\n");
}

}  // namespace tutti::nn
