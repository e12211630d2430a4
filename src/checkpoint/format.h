// The checkpoint format (docs/formats/checkpoint.md): a folder step-00000050 with safetensors
// shards and manifest.json. Nothing in it depends on the layout of the run that wrote it: a tensor
// is a global name and shape, and each stored piece says which box of it it is.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/fs.h"
#include "base/json.h"
#include "mesh/box.h"

namespace tutti::checkpoint {

inline constexpr int format_version = 2;  // 1, without keys, is read too

// One stored piece of a tensor.
struct Entry {
  std::string name;  // global
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  // global
  Box box;                          // the part that is stored here
  std::string file;                 // "rank-000.safetensors"
  std::uint64_t checksum = 0;       // hash64 of the piece's bytes
  std::string key = {};             // its name in the file, if that is not `name`

  const std::string& stored_name() const { return key.empty() ? name : key; }
};

struct Manifest {
  std::int64_t step = 0;
  int world = 1;
  Json state;  // everything that is not a tensor: data position, scaler, counters
  std::vector<Entry> entries;
};

Json to_json(const Entry& entry);
// ConfigError naming `origin` if the JSON is no such entry or manifest.
Entry entry_from(const Json& json, const std::string& origin);
Json to_json(const Manifest& manifest);
Manifest manifest_from(const Json& json, const std::string& origin);

std::string step_folder_name(std::int64_t step);               // "step-00000050"
std::optional<std::int64_t> step_of(const std::string& name);  // its inverse
std::string shard_name(int rank);                              // "rank-000.safetensors"

// Steps that have a named checkpoint in `folder`, ascending; empty if there is no such folder.
std::vector<std::int64_t> steps_in(const fs::path& folder);

}  // namespace tutti::checkpoint
