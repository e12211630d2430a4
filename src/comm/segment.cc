#include "comm/segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <ctime>
#include <fstream>
#include <new>

#include "base/error.h"

namespace tutti::comm {
namespace {

constexpr std::size_t page = 4096;

std::size_t paged(std::size_t bytes) { return (bytes + page - 1) / page * page; }
std::size_t n(int r) { return static_cast<std::size_t>(r); }

// Where the parts begin.
struct Layout {
  std::size_t eager, stage, messages, arena, total;

  Layout(int size, const MemoryOptions& options) {
    eager = paged(sizeof(GroupBlock) + n(size) * sizeof(RankBlock));
    stage = eager + paged(2 * n(size) * options.eager_bytes);
    messages = stage + paged(n(size) * options.chunk_bytes);
    arena = messages + n(size) * n(size) * 2 * Segment::message_chunk;
    total = arena + n(size) * paged(options.shared_bytes);
  }
};

}  // namespace

std::size_t Segment::bytes_for(int size, const MemoryOptions& options) {
  return Layout(size, options).total;
}

Segment::Segment(int size, const MemoryOptions& options, int fd)
    : size_(size), options_(options), bytes_(bytes_for(size, options)) {
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, fd, 0);
  const int error = errno;
  if (fd >= 0) close(fd);
  if (memory == MAP_FAILED)
    throw WorldError(str("group '", options.group, "': cannot map ", bytes_,
                         " bytes of shared memory: ", errno_text(error)));
  base_ = static_cast<std::byte*>(memory);
}

Segment::~Segment() { munmap(base_, bytes_); }

std::byte* Segment::eager(int r, std::uint64_t parity) const {
  return base_ + Layout(size_, options_).eager + (2 * n(r) + (parity & 1)) * options_.eager_bytes;
}

std::byte* Segment::stage(int r) const {
  return base_ + Layout(size_, options_).stage + n(r) * options_.chunk_bytes;
}

std::byte* Segment::message(int from, int to, std::uint32_t index) const {
  const std::size_t channel = n(from) * n(size_) + n(to);
  return base_ + Layout(size_, options_).messages + (2 * channel + (index & 1)) * message_chunk;
}

std::byte* Segment::allocate(int r, std::size_t bytes) {
  const std::size_t arena = paged(options_.shared_bytes), room = arena - used_[r];
  if (bytes > room || paged(bytes) > room) return nullptr;
  std::byte* memory = base_ + Layout(size_, options_).arena + n(r) * arena + used_[r];
  used_[r] += paged(bytes);
  return memory;
}

bool Segment::holds(const void* data, std::size_t bytes) const {
  const std::uint64_t at = to_location(data);
  return at < bytes_ && bytes <= bytes_ - at;
}

void publish(RankBlock& block, std::atomic<std::uint32_t>& counter, std::uint32_t value) {
  counter.store(value);
  if (block.waiters.load() > 0)
    syscall(SYS_futex, &counter, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void sleep_on(RankBlock& block, std::atomic<std::uint32_t>& counter, std::uint32_t seen,
              double seconds) {
  const auto nanoseconds = static_cast<std::int64_t>(std::max(0.0, seconds) * 1e9);
  const timespec span{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  ++block.waiters;
  if (counter.load() == seen) syscall(SYS_futex, &counter, FUTEX_WAIT, seen, &span, nullptr, 0);
  --block.waiters;
}

void wake_all(Segment& segment, int size) {
  const auto wake = [](std::atomic<std::uint32_t>& counter) {
    syscall(SYS_futex, &counter, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  };
  for (int r = 0; r < size; ++r) {
    RankBlock& block = segment.rank(r);
    wake(block.phase);
    for (int peer = 0; peer < size; ++peer) wake(block.sent[peer]), wake(block.received[peer]);
  }
}

ProcessWatch::ProcessWatch(int process)
    : process_(process),
      fd_(process > 0 ? static_cast<int>(syscall(SYS_pidfd_open, process, 0)) : -1) {}

ProcessWatch::~ProcessWatch() {
  if (fd_ >= 0) close(fd_);
}

bool ProcessWatch::ended() const {
  if (process_ <= 0) return false;
  if (fd_ >= 0) {
    pollfd event{fd_, POLLIN, 0};
    return poll(&event, 1, 0) > 0;
  }
  // Without pidfds: an uncollected process still takes signals, so its state is asked for.
  std::ifstream stat(str("/proc/", process_, "/stat"));
  std::string line;
  if (!std::getline(stat, line)) return kill(process_, 0) != 0 && errno == ESRCH;
  const auto name_end = line.rfind(')');
  return name_end != std::string::npos && name_end + 2 < line.size() && line[name_end + 2] == 'Z';
}

}  // namespace tutti::comm
