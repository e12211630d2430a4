#include "base/fs.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <iostream>
#include <utility>

#include "base/error.h"

namespace tutti {
namespace {

class Descriptor {
 public:
  Descriptor(const fs::path& path, int flags, const char* purpose, mode_t mode = 0666)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {
    if (fd_ < 0) throw WorldError(str("cannot ", purpose, " ", path.string(), ": ", errno_text()));
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

void write_all(int fd, std::string_view content, const fs::path& path) {
  while (!content.empty()) {
    const ssize_t count = ::write(fd, content.data(), content.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw WorldError(str("cannot write ", path.string(), ": ", errno_text()));
    content.remove_prefix(static_cast<std::size_t>(count));
  }
}

void write_beside(const fs::path& path, std::span<const std::string_view> parts, mode_t mode) {
  fs::path beside = path;
  beside += str(".tmp-", ::getpid());
  try {
    // Never into what lies there: it may be a link, or another's, who could read what is private.
    ::unlink(beside.c_str());
    const Descriptor file(beside, O_WRONLY | O_CREAT | O_EXCL, "write", mode);
    for (const std::string_view part : parts) write_all(file.get(), part, path);
    if (::fsync(file.get()) != 0)
      throw WorldError(str("cannot make ", path.string(), " durable: ", errno_text()));
  } catch (...) {
    ::unlink(beside.c_str());
    throw;
  }
  if (::rename(beside.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(beside.c_str());
    throw WorldError(str("cannot name ", path.string(), ": ", errno_text(error)));
  }
  make_durable(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

}  // namespace

void check_standard_output() {
  errno = 0;
  if (std::cout.flush()) return;
  const std::string why = errno_text();
  struct stat status{};
  if (::fstat(STDOUT_FILENO, &status) == 0 &&
      (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode)))
    return;
  throw WorldError("cannot write to standard output: " + (errno ? why : "it is closed or full"));
}

std::string read_file(const fs::path& path) {
  const Descriptor file(path, O_RDONLY, "read");
  struct stat status{};
  if (::fstat(file.get(), &status) == 0 && S_ISDIR(status.st_mode))
    throw WorldError(str("cannot read ", path.string(), ": it is a folder"));
  std::string content(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t filled = 0;
  for (;;) {  // Until end of file: /proc and pipes say size 0.
    if (filled == content.size()) content.resize(content.size() + 4096);
    const ssize_t count = ::read(file.get(), content.data() + filled, content.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw WorldError(str("cannot read ", path.string(), ": ", errno_text()));
    if (count == 0) break;
    filled += static_cast<std::size_t>(count);
  }
  content.resize(filled);
  return content;
}

void write_file(const fs::path& path, std::string_view content) {
  write_beside(path, std::span(&content, 1), 0666);
}

void write_private_file(const fs::path& path, std::string_view content) {
  write_beside(path, std::span(&content, 1), 0600);
}

void write_file(const fs::path& path, std::span<const std::string_view> parts) {
  write_beside(path, parts, 0666);
}

void make_folders(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw WorldError(str("cannot create folder ", path.string(), ": ", error.message()));
}

void make_durable(const fs::path& path) {
  const Descriptor file(path, O_RDONLY, "open");
  // Some file systems refuse fsync of a folder (EINVAL): they have nothing to make durable.
  if (::fsync(file.get()) != 0 && errno != EINVAL)
    throw WorldError(str("cannot make ", path.string(), " durable: ", errno_text()));
}

std::uint64_t free_bytes(const fs::path& path) {
  struct statvfs status{};
  if (::statvfs(path.c_str(), &status) != 0)
    throw WorldError(str("cannot ask for the free space of ", path.string(), ": ", errno_text()));
  return std::uint64_t{status.f_bavail} * status.f_frsize;
}

TempFolder::TempFolder(std::string_view prefix) {
  std::string name = (fs::temp_directory_path() / prefix).string() + "-XXXXXX";
  if (!::mkdtemp(name.data()))
    throw WorldError(str("cannot create folder ", name, ": ", errno_text()));
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

MappedFile::MappedFile(const fs::path& path) {
  const Descriptor file(path, O_RDONLY, "read");
  struct stat status{};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    throw WorldError(str("cannot map ", path.string(), ": not a regular file"));
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (mapped == MAP_FAILED) throw WorldError(str("cannot map ", path.string(), ": ", errno_text()));
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace tutti
