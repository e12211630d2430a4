#include "data/tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/fs.h"
#include "base/hash.h"
#include "data/hugging_face_tokenizer.h"
#include "data/sentencepiece.h"
#include "data/unicode.h"

namespace tutti::data {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids(text.size());
    std::transform(text.begin(), text.end(), ids.begin(),
                   [](char c) { return static_cast<std::int32_t>(static_cast<unsigned char>(c)); });
    return ids;
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      if (id < 0 || id > 255)
        throw WorldError(str("token id ", id, " is beyond the vocabulary of 256 (bytes)"));
      text += static_cast<char>(id);
    }
    return text;
  }
  std::int64_t vocab_size() const override { return 256; }
  std::optional<std::int32_t> end_of_document() const override { return std::nullopt; }
  const std::string& name() const override { return name_; }
  std::uint64_t hash() const override { return hash64("tutti bytes"); }
  std::optional<std::int32_t> id_of(std::string_view piece) const override {
    if (piece.size() != 1) return std::nullopt;
    return static_cast<unsigned char>(piece[0]);
  }

 private:
  std::string name_ = "bytes";
};

// tokenizer_config.json's eos_token: a string or an object with "content".
std::string end_piece(const fs::path& folder) {
  const fs::path file = folder / "tokenizer_config.json";
  if (!fs::exists(file)) return "";
  const auto config = nlohmann::json::parse(read_file(file), nullptr, false);
  if (!config.is_object() || !config.contains("eos_token")) return "";
  const auto& token = config["eos_token"];
  if (token.is_string()) return token.get<std::string>();
  return token.is_object() ? token.value("content", "") : "";
}

fs::path in_folder(const fs::path& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer.model"})
    if (fs::exists(folder / name)) return folder / name;
  throw ConfigError({{"data.tokenizer", "", folder.string(),
                      "is a folder without tokenizer.json or tokenizer.model", "name the file"}});
}

}  // namespace

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& spec) {
  if (spec == "bytes") return std::make_unique<ByteTokenizer>();
  fs::path path = spec;
  if (fs::is_directory(path)) path = in_folder(path);
  if (!fs::exists(path))
    throw ConfigError(
        {{"data.tokenizer", "", spec, "is no file or folder",
          "\"bytes\", a tokenizer.json, a folder with one, or a SentencePiece .model"}});
  const std::string content = read_file(path);
  if (path.extension() == ".model") return parse_sentencepiece(content, path.string());
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  return parse_hugging_face_tokenizer(content, path.string(), end_piece(folder));
}

std::string StreamDecoder::emit(bool last) {
  const std::string before = tokenizer_.decode(std::span(ids_).first(context_));
  std::string text = tokenizer_.decode(ids_);
  const bool raw = tokenizer_.name() == "bytes";
  const std::size_t open = raw ? incomplete_tail(text) : 0;
  if (!last && (open > 0 || (!raw && text.ends_with("\xEF\xBF\xBD")))) return "";
  if (text.size() < before.size() || !text.starts_with(before)) {
    if (!last) return "";
    return text.substr(std::min(before.size(), text.size()));
  }
  text.erase(0, before.size());
  constexpr std::size_t keep = 8;
  if (ids_.size() > keep * 2) ids_.erase(ids_.begin(), ids_.end() - keep);
  context_ = ids_.size();
  return text;
}

std::string StreamDecoder::push(std::int32_t id) {
  ids_.push_back(id);
  return emit(false);
}

std::string StreamDecoder::finish() { return ids_.size() == context_ ? "" : emit(true); }

}  // namespace tutti::data
