// memcpy for the transports.
#pragma once
#include <cstddef>

namespace tutti::comm {

// `to` and `from` may be the same, but not overlap otherwise.
void copy_bytes(void* to, const void* from, std::size_t bytes);

}  // namespace tutti::comm
