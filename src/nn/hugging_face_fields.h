// Reads fields of one JSON object and collects what is wrong with them, for config.json.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "recipe/recipe.h"

namespace tutti::nn {

class JsonFields {
 public:
  JsonFields(const Json& json, std::string origin) : json_(json), origin_(std::move(origin)) {}

  // Present and not null.
  bool has(const char* name) const { return json_.contains(name) && !json_[name].is_null(); }

  // `fallback` 0: must be there.
  std::int64_t size(const char* name, std::int64_t fallback = 0) {
    if (!has(name)) {
      if (fallback == 0) wrong(name, "(absent)", "must be there");
      return fallback;
    }
    if (json_[name].is_number_integer() && json_[name] > 0) return json_[name].get<std::int64_t>();
    wrong(name, json_[name].dump(), "must be a whole number above 0");
    return 1;
  }
  // 0 is legal, and what an absent one is.
  std::int64_t amount(const char* name) {
    if (!has(name)) return 0;
    if (json_[name].is_number_integer() && json_[name] >= 0) return json_[name].get<std::int64_t>();
    wrong(name, json_[name].dump(), "must be a whole number, 0 or more");
    return 0;
  }
  double number(const char* name, double fallback) {
    if (!has(name)) return fallback;
    if (json_[name].is_number()) return json_[name].get<double>();
    wrong(name, json_[name].dump(), "must be a number");
    return fallback;
  }
  bool flag(const char* name, bool fallback) {
    if (!has(name)) return fallback;
    if (json_[name].is_boolean()) return json_[name].get<bool>();
    wrong(name, json_[name].dump(), "must be true or false");
    return fallback;
  }
  std::string text(const char* name, const std::string& fallback) {
    if (!has(name)) return fallback;
    if (json_[name].is_string()) return json_[name].get<std::string>();
    wrong(name, json_[name].dump(), "must be a text");
    return fallback;
  }
  void wrong(const char* name, const std::string& value, const std::string& rule) {
    violations_.push_back({name, origin_, value, rule, ""});
  }
  void must_be(const char* name, const std::string& value,
               std::initializer_list<const char*> legal) {
    std::string list;
    for (const char* one : legal) {
      if (value == one) return;
      list += (list.empty() ? "" : " or ") + std::string(one);
    }
    wrong(name, value, "must be " + list + " here");
  }
  void must_be_off(const char* name) {
    if (flag(name, false)) wrong(name, "true", "is not supported here");
  }
  void finish() const {
    if (!violations_.empty()) throw ConfigError(violations_);
  }
  const Json& json() const { return json_; }

 private:
  const Json& json_;
  std::string origin_;
  std::vector<Violation> violations_;
};

// --- mixtures of experts (hugging_face_moe.cc)

// Whether an architecture is one: Mixtral, Olmoe, Qwen2Moe, Qwen3Moe, Dots1.
bool has_experts(const std::string& architecture);
// Fills in model.moe; all that a dense Llama has is read before.
void read_experts(JsonFields& fields, const std::string& architecture, recipe::Model& model);
// The architecture of a mixture ("MixtralForCausalLM"). ConfigError if none of them is this model.
std::string architecture_with_experts(const recipe::Model& model);
// Its own fields of config.json.
Json experts_json(const recipe::Model& model);

}  // namespace tutti::nn
