// How the processes of one host come by the same segment: rank 0 hands its memfd over an abstract
// Unix socket, which has no file and dies with its process.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "comm/segment.h"

namespace tutti::comm {
namespace {

struct Descriptor {
  int fd;
  explicit Descriptor(int number) : fd(number) {}
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int release() { return std::exchange(fd, -1); }
};

struct Hello {
  std::int32_t rank, size;
  std::uint64_t bytes;  // of the segment: the options must agree
};

class Meeting {
 public:
  Meeting(const std::string& name, int rank, int size, const MemoryOptions& options)
      : name_(name),
        rank_(rank),
        size_(size),
        options_(options),
        deadline_(real_clock().now() + options.timeout) {
    address_.sun_family = AF_UNIX;
    // Hashed, as an address holds 107 bytes and names are longer.
    const std::string text = str("tutti-", getuid(), "-", hex64(hash64(name)));
    std::memcpy(address_.sun_path + 1, text.data(), text.size());
    address_bytes_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }

  int host() {
    Descriptor memory(memfd_create("tutti", MFD_CLOEXEC));
    const std::size_t bytes = Segment::bytes_for(size_, options_);
    if (memory.fd < 0 || ftruncate(memory.fd, static_cast<off_t>(bytes)) != 0)
      fail(str("cannot create ", bytes, " bytes of shared memory: ", errno_text()));
    Descriptor listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (bind(listener.fd, reinterpret_cast<sockaddr*>(&address_), address_bytes_) != 0)
      fail(errno == EADDRINUSE ? "the name is taken by another job that runs on this host"
                               : str("cannot open a socket: ", errno_text()));
    if (listen(listener.fd, size_) != 0) fail(str("cannot listen: ", errno_text()));
    std::vector<bool> present(static_cast<std::size_t>(size_));
    present[0] = true;
    for (int missing = size_ - 1; missing > 0;)
      if (serve(listener.fd, memory.fd, present)) --missing;
    return memory.release();
  }

  int visit() {
    for (;;) {
      Descriptor peer(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (connect(peer.fd, reinterpret_cast<sockaddr*>(&address_), address_bytes_) == 0 &&
          same_user(peer.fd)) {
        const Hello hello{rank_, size_, Segment::bytes_for(size_, options_)};
        const bool said = send(peer.fd, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello;
        if (const int fd = said ? receive(peer.fd) : -1; fd >= 0) return fd;
      }
      if (real_clock().now() > deadline_)
        fail(str("rank 0 did not come within ", options_.timeout, " s"));
      real_clock().sleep(0.002);
    }
  }

 private:
  // Answers one visitor; true when it is a new member.
  bool serve(int listener, int memory, std::vector<bool>& present) {
    pollfd event{listener, POLLIN, 0};
    if (poll(&event, 1, 50) <= 0) {
      if (real_clock().now() > deadline_) fail(absent(present));
      return false;
    }
    const Descriptor peer(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (peer.fd < 0 || !same_user(peer.fd)) return false;
    set_patience(peer.fd);
    Hello hello{};
    if (recv(peer.fd, &hello, sizeof hello, MSG_WAITALL) != sizeof hello) return false;
    if (hello.rank < 1 || hello.rank >= size_ || hello.size != size_ ||
        hello.bytes != Segment::bytes_for(size_, options_))
      fail(str("a process came as rank ", hello.rank, " of ", hello.size,
               " or with other options; this group has ", size_, " ranks"));
    if (present[static_cast<std::size_t>(hello.rank)])
      fail(str("two processes came as rank ", hello.rank));
    if (!give(peer.fd, memory)) return false;
    return present[static_cast<std::size_t>(hello.rank)] = true;
  }

  std::string absent(const std::vector<bool>& present) const {
    std::string text;
    for (int r = 0; r < size_; ++r)
      if (!present[static_cast<std::size_t>(r)]) text += str(text.empty() ? "" : ", ", r);
    return str("rank ", text, " did not come within ", options_.timeout, " s");
  }

  static void set_patience(int fd) {
    const timeval span{1, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &span, sizeof span);
  }

  static bool same_user(int fd) {
    ucred who{};
    socklen_t bytes = sizeof who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0 && who.uid == getuid();
  }

  static msghdr message(iovec& text, char* control, std::size_t bytes) {
    msghdr header{};
    header.msg_iov = &text;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = bytes;
    return header;
  }

  static bool give(int peer, int fd) {
    char byte = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    iovec text{&byte, 1};
    msghdr header = message(text, control, sizeof control);
    cmsghdr* part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &fd, sizeof fd);
    return sendmsg(peer, &header, MSG_NOSIGNAL) == 1;
  }

  static int receive(int peer) {
    set_patience(peer);
    char byte = 0;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    iovec text{&byte, 1};
    msghdr header = message(text, control, sizeof control);
    if (recvmsg(peer, &header, MSG_CMSG_CLOEXEC) != 1) return -1;
    const cmsghdr* part = CMSG_FIRSTHDR(&header);
    if (!part || part->cmsg_type != SCM_RIGHTS) return -1;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(part), sizeof fd);
    return fd;
  }

  [[noreturn]] void fail(const std::string& cause) const {
    throw WorldError(str("shm group '", options_.group, "', rank ", rank_, " of ", size_,
                         ": meeting under the name '", name_, "': ", cause));
  }

  std::string name_;
  int rank_, size_;
  const MemoryOptions& options_;
  double deadline_;
  sockaddr_un address_{};
  socklen_t address_bytes_;
};

}  // namespace

std::shared_ptr<Segment> meet(const std::string& name, int rank, int size,
                              const MemoryOptions& options) {
  Meeting meeting(name, rank, size, options);
  const int fd = rank == 0 ? meeting.host() : meeting.visit();
  return std::make_shared<Segment>(size, options, fd);
}

}  // namespace tutti::comm
