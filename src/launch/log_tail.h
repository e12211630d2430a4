// The workers' logs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/fs.h"

namespace tutti::launch {

// folder/rank-003.log
fs::path log_path(const fs::path& folder, int rank);

// The last `count` lines of what was written after byte `start`; at most 64 KiB are read. Control
// characters other than tabs are left out: the text goes to a terminal. No file: no lines.
std::vector<std::string> tail_of(const fs::path& path, std::uint64_t start, int count);

}  // namespace tutti::launch
