#include "checkpoint/stored_tensors.h"

#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/json.h"

namespace tutti::checkpoint {
namespace {

std::optional<DType> dtype_named(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(DType::boolean); ++i)
    if (name_of(static_cast<DType>(i)) == name) return static_cast<DType>(i);
  return {};
}

[[noreturn]] void damaged(const fs::path& path, const std::string& what) {
  throw WorldError(str(path.string(), ": not a whole safetensors file: ", what));
}

StoredTensor read_entry(const fs::path& path, const std::string& name, const Json& entry,
                        std::span<const std::byte> data) {
  StoredTensor tensor;
  try {
    const auto type = dtype_named(entry.at("dtype").get<std::string>());
    if (!type) damaged(path, str(name, " has the unknown dtype ", entry.at("dtype").dump()));
    tensor.dtype = *type;
    tensor.shape = entry.at("shape").get<std::vector<std::int64_t>>();
    const auto range = entry.at("data_offsets").get<std::vector<std::uint64_t>>();
    std::uint64_t size = size_of(tensor.dtype);
    for (std::int64_t extent : tensor.shape)
      if (extent < 0 || __builtin_mul_overflow(size, static_cast<std::uint64_t>(extent), &size))
        damaged(path, str(name, " has an impossible shape"));
    if (range.size() != 2 || range[0] > range[1] || range[1] > data.size() ||
        range[1] - range[0] != size)
      damaged(path, str("the bytes of ", name, " are not where the header says"));
    tensor.bytes = data.subspan(range[0], size);
  } catch (const Json::exception& error) {
    damaged(path, str("the header's entry ", name, ": ", error.what()));
  }
  return tensor;
}

}  // namespace

StoredFile::StoredFile(const fs::path& path) : path_(path), file_(path) {
  const auto all = file_.bytes();
  std::uint64_t length = 0;
  if (all.size() < sizeof length) damaged(path, "shorter than 8 bytes");
  std::memcpy(&length, all.data(), sizeof length);
  if (length > all.size() - sizeof length) damaged(path, "its header is cut");
  const std::string_view text(reinterpret_cast<const char*>(all.data()) + sizeof length, length);
  // The JSON library takes a zero byte for the end.
  if (text.find('\0') != text.npos) damaged(path, "its header holds a zero byte");
  Json header;
  try {
    header = parse_json(text, path.string());
  } catch (const ConfigError&) {
    damaged(path, "its header is not JSON");
  }
  if (!header.is_object()) damaged(path, "its header is not an object");
  for (const auto& [name, entry] : header.items())
    if (name != "__metadata__")
      tensors_[name] = read_entry(path, name, entry, all.subspan(sizeof length + length));
}

void write_stored(const fs::path& path,
                  const std::vector<std::pair<std::string, StoredTensor>>& tensors) {
  Json header{{"__metadata__", {{"format", "pt"}}}};
  std::uint64_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", name_of(tensor.dtype)},
                    {"shape", tensor.shape},
                    {"data_offsets", {at, at + tensor.bytes.size()}}};
    at += tensor.bytes.size();
  }
  std::string text = header.dump();
  text.append((64 - (8 + text.size()) % 64) % 64, ' ');
  const std::uint64_t length = text.size();
  std::vector<std::string_view> parts{{reinterpret_cast<const char*>(&length), sizeof length},
                                      text};
  for (const auto& [name, tensor] : tensors)
    parts.emplace_back(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  write_file(path, parts);
}

}  // namespace tutti::checkpoint
