#include <unistd.h>

#include "base/error.h"
#include "cli/worker.h"

namespace tutti::cli {

fs::path program_folder() { return fs::read_symlink("/proc/self/exe").parent_path(); }

fs::path find_worker() {
  const fs::path worker = program_folder() / "tutti-worker";
  if (::access(worker.c_str(), X_OK) != 0) {
    throw WorldError(
        str(worker.string(), " is missing: this build has no libtorch in it; build it ",
            "with ./dev build (or: cmake --preset release && ninja -C build/release)"));
  }
  return worker;
}

void become_worker(const std::vector<std::string>& args) {
  const std::string program = find_worker().string();
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  throw WorldError(str("cannot start ", program, ": ", errno_text()));
}

}  // namespace tutti::cli
