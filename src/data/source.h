// The files behind a source (corpus.h has what is read from them).
#pragma once
#include <string>
#include <vector>

#include "base/fs.h"

namespace tutti::data {

// The file itself, or each regular file below the folder, sorted by path, hidden names left out.
// ConfigError if there is none, WorldError if it cannot be listed.
std::vector<fs::path> source_files(const std::string& source);

}  // namespace tutti::data
