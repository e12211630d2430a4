#include "train/failure.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <new>
#include <string_view>

#include "base/error.h"
#include "base/text.h"

namespace tutti::train {
namespace {

const char* remedy =
    "a smaller batch.micro or model, recompute: full, or more workers with parallel.zero: 3 take "
    "less (tutti layout show tells what a worker holds)";

}  // namespace

bool out_of_memory(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
         std::string_view(error.what()).find("DefaultCPUAllocator") != std::string_view::npos;
}

std::string failure_text(const std::exception& error) {
  if (out_of_memory(error)) {
    const std::string what = error.what(), before = "tried to allocate ";
    const std::size_t at = what.find(before);
    const double bytes =
        at == std::string::npos ? 0 : std::strtod(what.c_str() + at + before.size(), nullptr);
    return str("out of memory", bytes > 0 ? ": " + human_bytes(bytes) + " more were asked for" : "",
               "; ", remedy);
  }
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  return torch ? torch->what_without_backtrace() : error.what();
}

}  // namespace tutti::train
