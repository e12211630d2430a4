#include <charconv>
#include <cmath>

#include "recipe/fields.h"
#include "recipe/quantity.h"

namespace tutti::recipe {
namespace {

// Whole numbers without an exponent.
std::string digits(double value) {
  char text[64];
  if (value != std::floor(value) || std::abs(value) > 1e20) return number_text(value);
  return {text, std::to_chars(text, text + sizeof text, value, std::chars_format::fixed).ptr};
}

}  // namespace

bool Limits::hold(double value) const {
  return (!least || value >= *least) && (!above || value > *above) && (!most || value <= *most) &&
         (!below || value < *below);
}

std::string Limits::text() const {
  std::string low, high;
  if (least) low = digits(*least);
  if (above) low = "above " + digits(*above);
  if (most) high = digits(*most);
  if (below) high = "below " + digits(*below);
  if (high.empty()) return least ? "of at least " + low : low;
  return (above ? low : "from " + low) + " to " + high;
}

}  // namespace tutti::recipe
