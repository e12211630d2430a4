#include "checkpoint/format.h"

#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "base/hash.h"

namespace tutti::checkpoint {
namespace {

DType dtype_named(const std::string& name, const std::string& origin) {
  for (int i = 0; i <= static_cast<int>(DType::boolean); ++i)
    if (name_of(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  throw ConfigError(str(origin, ": unknown dtype ", name));
}

}  // namespace

Json to_json(const Entry& entry) {
  Json json = {{"name", entry.name},
               {"dtype", name_of(entry.dtype)},
               {"shape", entry.shape},
               {"offset", entry.box.offset},
               {"size", entry.box.size},
               {"file", entry.file},
               {"checksum", hex64(entry.checksum)}};
  if (!entry.key.empty()) json["key"] = entry.key;
  return json;
}

Entry entry_from(const Json& json, const std::string& origin) {
  try {
    Entry entry;
    entry.name = json.at("name").get<std::string>();
    entry.dtype = dtype_named(json.at("dtype").get<std::string>(), origin);
    entry.shape = json.at("shape").get<std::vector<std::int64_t>>();
    entry.box = {json.at("offset").get<std::vector<std::int64_t>>(),
                 json.at("size").get<std::vector<std::int64_t>>()};
    entry.file = json.at("file").get<std::string>();
    entry.key = json.value("key", std::string());
    entry.checksum = std::stoull(json.at("checksum").get<std::string>(), nullptr, 16);
    const std::size_t dims = entry.shape.size();
    bool good = entry.box.offset.size() == dims && entry.box.size.size() == dims &&
                entry.file.find('/') == std::string::npos;
    std::int64_t elements = 1;
    for (std::size_t d = 0; good && d < dims; ++d)
      good = !__builtin_mul_overflow(elements, entry.shape[d], &elements) && entry.shape[d] >= 0 &&
             entry.box.offset[d] >= 0 && entry.box.size[d] >= 0 &&
             entry.box.offset[d] <= entry.shape[d] - entry.box.size[d];
    if (!good)
      throw ConfigError(str(origin, ": the entry ", entry.name, " lies outside its tensor"));
    return entry;
  } catch (const std::logic_error& error) {  // stoull
    throw ConfigError(str(origin, ": bad checksum in an entry"));
  } catch (const Json::exception& error) {
    throw ConfigError(str(origin, ": bad entry: ", error.what()));
  }
}

Json to_json(const Manifest& manifest) {
  Json entries = Json::array();
  for (const Entry& entry : manifest.entries) entries.push_back(to_json(entry));
  Json json = {{"format", "tutti-checkpoint"}, {"version", format_version}, {"step", manifest.step},
               {"world", manifest.world},      {"state", manifest.state},   {"entries", entries}};
  json["checksum"] = hex64(hash64(json.dump()));
  return json;
}

Manifest manifest_from(const Json& json, const std::string& origin) {
  try {
    if (json.at("format") != "tutti-checkpoint")
      throw ConfigError(origin + ": not a Tutti checkpoint");
    const int version = json.at("version").get<int>();
    if (version < 1 || version > format_version)
      throw ConfigError(
          str(origin, ": format version ", version, "; this program reads 1 to ", format_version));
    Json rest = json;
    rest.erase("checksum");
    if (json.at("checksum") != hex64(hash64(rest.dump())))
      throw ConfigError(origin + ": its checksum does not hold: the file is damaged");
    Manifest manifest;
    manifest.step = json.at("step").get<std::int64_t>();
    manifest.world = json.at("world").get<int>();
    manifest.state = json.at("state");
    for (const Json& entry : json.at("entries"))
      manifest.entries.push_back(entry_from(entry, origin));
    return manifest;
  } catch (const Json::exception& error) {
    throw ConfigError(str(origin, ": bad manifest: ", error.what()));
  }
}

std::string step_folder_name(std::int64_t step) {
  char name[40];
  std::snprintf(name, sizeof name, "step-%08lld", static_cast<long long>(step));
  return name;
}

std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with("step-") || name.size() < 13 || name.size() > 23 ||
      name.find_first_not_of("0123456789", 5) != std::string::npos)
    return std::nullopt;
  const std::int64_t step = std::stoll(name.substr(5));
  return step_folder_name(step) == name ? std::optional(step) : std::nullopt;
}

std::string shard_name(int rank) {
  char name[40];
  std::snprintf(name, sizeof name, "rank-%03d.safetensors", rank);
  return name;
}

std::vector<std::int64_t> steps_in(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (const auto step = step_of(entry.path().filename().string()); step && entry.is_directory())
      steps.push_back(*step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

}  // namespace tutti::checkpoint
