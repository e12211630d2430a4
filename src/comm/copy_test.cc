#include "comm/copy.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using tutti::comm::copy_bytes;

// Each byte, and none beside them, wherever both ends lie within a line.
TEST_CASE("copy: any size at any place") {
  std::vector<unsigned char> from(1200000), to(from.size());
  for (std::size_t i = 0; i < from.size(); ++i)
    from[i] = static_cast<unsigned char>(1 + (i * 7 + i / 251) % 200);
  for (const std::size_t bytes : {0, 1, 63, 2047, 2048, 2049, 4096, 10007, 1048575, 1048576})
    for (const std::size_t at : {0, 1, 16, 63})
      for (const std::size_t start : {0, 5, 64}) {
        std::ranges::fill(to, 0);
        copy_bytes(to.data() + at + 64, from.data() + start, bytes);
        CAPTURE(bytes);
        CHECK(std::equal(to.begin() + 64 + static_cast<std::ptrdiff_t>(at),
                         to.begin() + static_cast<std::ptrdiff_t>(64 + at + bytes),
                         from.begin() + static_cast<std::ptrdiff_t>(start)));
        CHECK(std::ranges::count(to, 0) == static_cast<std::ptrdiff_t>(to.size() - bytes));
      }
}
