#include "launch/meeting_place.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>

#include "base/error.h"

namespace tutti::launch {
namespace {

constexpr std::string_view prefix = "tutti-job-";

int lock_file(const fs::path& folder, int flags) {
  const int fd = ::open((folder / "owner").c_str(), O_RDWR | O_CLOEXEC | flags, 0600);
  if (fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd);
    return -1;
  }
  return fd;
}

void remove_dead_owners(const fs::path& root) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root, ignored)) {
    if (entry.path().filename().string().rfind(prefix, 0) != 0) continue;
    const int lock = lock_file(entry.path(), 0);  // fails for other users and for living owners
    if (lock < 0) continue;
    fs::remove_all(entry.path(), ignored);
    ::close(lock);
  }
}

}  // namespace

fs::path meeting_root() {
  if (::access("/dev/shm", W_OK | X_OK) == 0) return "/dev/shm";
  std::error_code ignored;
  const fs::path temporary = fs::temp_directory_path(ignored);
  return temporary.empty() ? fs::path("/tmp") : temporary;
}

MeetingPlace::MeetingPlace() {
  const fs::path root = meeting_root();
  remove_dead_owners(root);
  std::string name = (root / (std::string(prefix) + "XXXXXX")).string();
  if (!::mkdtemp(name.data())) {
    throw WorldError(str("cannot make a folder in ", root.string(), ": ", errno_text()));
  }
  folder_ = name;
  lock_ = lock_file(folder_, O_CREAT);
}

MeetingPlace::~MeetingPlace() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
  if (lock_ >= 0) ::close(lock_);
}

}  // namespace tutti::launch
