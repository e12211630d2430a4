#include "events/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>

#include "base/error.h"
#include "base/text.h"

namespace tutti::events {
namespace {

std::string rank_name(int rank, const char* extension) {
  char name[40];
  std::snprintf(name, sizeof name, "rank-%03d%s", rank, extension);
  return name;
}

}  // namespace

fs::path RunFolder::events(int rank) const { return path_ / "events" / rank_name(rank, ".jsonl"); }
fs::path RunFolder::flight(int rank) const { return path_ / "events" / rank_name(rank, ".flight"); }

fs::path RunFolder::log(int rank) const { return path_ / "logs" / rank_name(rank, ".log"); }

RunFolder create_run(const fs::path& path) {
  const RunFolder run(path);
  if (fs::exists(run.recipe()))
    throw ConfigError(
        {{"--out", "", path.string(), "holds a run already",
          str("go on with it: tutti resume ", path.string(), ", or choose another --out")}});
  for (const fs::path& folder : {path / "events", run.checkpoints(), run.logs(), run.tensorboard()})
    make_folders(folder);
  if (::access(path.c_str(), W_OK) != 0)
    throw WorldError(str("cannot write into ", path.string(), ": ", errno_text()));
  return run;
}

RunFolder create_dated_run(const std::string& name) {
  const RunFolder run = create_run(default_run_path(name));
  const fs::path link = run.path().parent_path() / name;
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(link)) && !fs::is_symlink(link)) return run;
  const fs::path fresh = run.path() / ".newest";
  fs::create_symlink(run.path().filename(), fresh, ignored);
  fs::rename(fresh, link, ignored);
  return run;
}

RunFolder open_run(const fs::path& path) {
  const RunFolder run(path);
  if (!fs::exists(run.recipe()))
    throw ConfigError(
        {{"", path.string(), "",
          fs::exists(path) ? "is not the folder of a run: it has no recipe.yaml" : "does not exist",
          "name a folder that tutti train wrote"}});
  return run;
}

fs::path default_run_path(const std::string& name) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char date[32];
  std::strftime(date, sizeof date, "-%Y%m%d-%H%M%S", &parts);
  const std::string base = "runs/" + name + date;
  fs::path path = base;
  for (int i = 2; fs::exists(path); ++i) path = base + "-" + std::to_string(i);
  return path;
}

RunLock::RunLock(const RunFolder& run) {
  const fs::path file = run.path() / ".lock";
  fd_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) throw WorldError(str("cannot open ", file.string(), ": ", errno_text()));
  try {
    take(run, file);
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

void RunLock::take(const RunFolder& run, const fs::path& file) const {
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK)
      throw WorldError(str("cannot lock ", file.string(), ": ", errno_text()));
    std::string other(32, '\0');
    const ssize_t count = ::pread(fd_, other.data(), other.size(), 0);
    other.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
    throw ConfigError({{"", run.path().string(), "", str("is in use by process ", trim(other)),
                        "wait for it, or choose another --out"}});
  }
  const std::string pid = str(::getpid(), "\n");
  if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, pid.data(), pid.size(), 0) < 0)
    throw WorldError(str("cannot write ", file.string(), ": ", errno_text()));
}

RunLock::~RunLock() { ::close(fd_); }

}  // namespace tutti::events
