// `tutti-worker`, the executable beside ours that has libtorch in it:
//   tutti-worker train --run DIR [--resume]      one rank of a run, told by TUTTI_RANK and the like
//   tutti-worker eval|generate|export DIR ...    the flags of the verb of the same name
//   tutti-worker parity|layout --recipe=YAML ... the recipe whole
//   tutti-worker bench --sizes=1024,4096 ...     one rank of a measurement of the transports
#pragma once
#include <string>
#include <vector>

#include "base/fs.h"

namespace tutti::cli {

// The folder of this executable.
fs::path program_folder();

// WorldError that says how to build it where it is missing.
fs::path find_worker();

// Becomes `tutti-worker args...` (the process is replaced).
[[noreturn]] void become_worker(const std::vector<std::string>& args);

}  // namespace tutti::cli
