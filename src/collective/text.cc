#include "collective/text.h"

#include <ATen/ATen.h>

#include <cstring>

namespace tutti::collective {

std::vector<std::string> all_gather_text(Group& group, const std::string& text) {
  const at::Tensor sizes =
      group.all_gather(at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong));
  const auto* first = sizes.const_data_ptr<std::int64_t>();
  const Counts counts(first, first + group.size());
  at::Tensor mine = at::empty({counts[static_cast<std::size_t>(group.rank())]}, at::kByte);
  if (!text.empty()) std::memcpy(mine.data_ptr(), text.data(), text.size());
  at::Tensor all = at::empty({sizes.sum().item<std::int64_t>()}, at::kByte);
  group.all_gather_v(mine, all, counts);
  std::vector<std::string> texts;
  const char* at = static_cast<const char*>(all.data_ptr());
  for (const std::int64_t count : counts) {
    texts.emplace_back(at, static_cast<std::size_t>(count));
    at += count;
  }
  return texts;
}

}  // namespace tutti::collective
