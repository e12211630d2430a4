#include <unistd.h>

#include "recipe/check.h"
#include "recipe/suggest.h"

namespace tutti::recipe {
namespace {

class Finder {
 public:
  Finder(const fs::path& folder, const Where& where) : folder_(folder), where_(where) {}

  void find(std::string& path, const std::string& field, const std::string& place,
            const std::string& remedy) {
    if (path.empty()) return;  // that is another rule's
    const std::string beside = (folder_ / path).string();
    if (!exists(path) && exists(beside)) path = beside;
    if (!exists(path))
      found_.push_back({field, where_(place), path, "does not exist" + looked(), remedy});
    else if (::access(path.c_str(), R_OK) != 0)
      found_.push_back({field, where_(place), path, "may not be read: " + errno_text(),
                        "change its permissions"});
    else
      path = fs::absolute(path).lexically_normal().string();
  }

  void find(std::vector<Source>& sources, const std::string& field) {
    for (std::size_t i = 0; i < sources.size(); ++i) {
      std::string place = str(field, "[", i, "]");
      if (where_(place).empty()) place = field;
      find(sources[i].path, field, place, nearest_file(sources[i].path));
    }
  }

  std::vector<Violation> found() { return std::move(found_); }

 private:
  static bool exists(const fs::path& path) {
    std::error_code error;
    return fs::exists(path, error);
  }
  std::string looked() const {
    std::error_code error;
    if (folder_.empty() || fs::equivalent(folder_, ".", error)) return "";
    return str(" here nor in ", folder_.string());
  }

  const fs::path& folder_;
  const Where& where_;
  std::vector<Violation> found_;
};

}  // namespace

std::vector<Violation> find_inputs(Recipe& recipe, Inputs inputs, const fs::path& folder,
                                   const Where& where) {
  if (inputs == Inputs::none) return {};
  Finder finder(folder, where);
  finder.find(recipe.data.train, "data.train");
  finder.find(recipe.data.validation, "data.validation");
  if (recipe.data.tokenizer != "bytes" && !learnt_vocab(recipe.data.tokenizer))
    finder.find(recipe.data.tokenizer, "data.tokenizer", "data.tokenizer",
                "use bytes, bpe-N or the path of a tokenizer");
  if (inputs == Inputs::data_and_weights)
    finder.find(recipe.model.from, "model.from", "model.from",
                "name a folder with config.json and model.safetensors");
  return finder.found();
}

}  // namespace tutti::recipe
