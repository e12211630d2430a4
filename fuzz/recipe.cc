// A recipe from outside: either refused with ConfigError, or writable to text that parses again.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "recipe/parse.h"
#include "recipe/show.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  using namespace tutti;
  const std::string text(reinterpret_cast<const char*>(bytes), size);
  recipe::Parsed parsed;
  try {
    parsed = recipe::parse(text, "fuzz.yaml", {}, "/nonexistent", recipe::Inputs::none);
  } catch (const ConfigError&) {
    return 0;
  }
  const std::string shown = recipe::to_yaml(parsed.recipe);
  const auto again = recipe::parse(shown, "again.yaml", {}, "/nonexistent", recipe::Inputs::none);
  TUTTI_ASSERT(recipe::to_yaml(again.recipe) == shown, shown);
  return 0;
}
