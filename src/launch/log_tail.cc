#include "launch/log_tail.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "base/text.h"

namespace tutti::launch {

fs::path log_path(const fs::path& folder, int rank) {
  char name[32];
  std::snprintf(name, sizeof name, "rank-%03d.log", rank);
  return folder / name;
}

std::vector<std::string> tail_of(const fs::path& path, std::uint64_t start, int count) {
  constexpr std::uint64_t most = 64 << 10;
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) return {};
  const std::uint64_t size = static_cast<std::uint64_t>(in.tellg());
  start = std::max(start, size - std::min(size, most));
  if (start >= size) return {};
  std::string text(size - start, '\0');
  in.seekg(static_cast<std::streamoff>(start));
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  std::erase_if(
      text, [](char c) { return static_cast<unsigned char>(c) < 32 && c != '\n' && c != '\t'; });
  if (!text.empty() && text.back() == '\n') text.pop_back();
  std::vector<std::string> lines = split(text, '\n');
  const std::size_t wanted = static_cast<std::size_t>(std::max(count, 0));
  if (lines.size() > wanted) lines.erase(lines.begin(), lines.end() - static_cast<long>(wanted));
  return lines;
}

}  // namespace tutti::launch
