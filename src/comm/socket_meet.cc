// How the ranks of a group come by their connections. Each listens and tells the board where; the
// higher rank of a pair connects, once a lane. Connections from anybody are served side by side, so
// that a stranger holds up nobody.
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "comm/socket_communicator.h"

namespace tutti::comm {
namespace {

std::size_t n(int value) { return static_cast<std::size_t>(value); }

constexpr double patience = 10;     // seconds that a connection may take to prove itself
constexpr double pause = 0.05;      // seconds before a connection is tried again
constexpr std::size_t crowd = 256;  // strangers at once; one more, and the first has to go

struct Addresses {
  addrinfo* first = nullptr;
  ~Addresses() {
    if (first) freeaddrinfo(first);
  }
};

std::string look_up(const std::string& address, const std::string& port, int flags,
                    Addresses& found) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  const int error = getaddrinfo(address.c_str(), port.c_str(), &hints, &found.first);
  return error == 0 ? "" : str("cannot resolve '", address, "': ", gai_strerror(error));
}

void set_option(int socket, int level, int name, int value) {
  setsockopt(socket, level, name, &value, sizeof value);
}

// A host that vanishes is noticed, also when nothing is sent.
void set_options(int socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

// A message of 128 KiB must fit before anybody receives.
void make_room(int socket) { set_option(socket, SOL_SOCKET, SO_SNDBUF, 1 << 20); }

// A connection that has yet to prove itself.
struct Candidate {
  Descriptor socket;
  Handshake shake;
  int peer;  // that this rank connects to, and the lane; -1: somebody came
  std::size_t lane;
  bool connecting;
  double deadline;
  std::string in = {};
};

class Meeting {
 public:
  Meeting(Board& board, const std::string& name, int rank, int size, const SocketOptions& options)
      : board_(board),
        name_(name),
        rank_(rank),
        options_(options),
        deadline_(real_clock().now() + options.timeout),
        places_(n(size)),
        tries_(n(size) * lanes),
        next_try_(n(size) * lanes),
        connections_(n(size)) {
    hello_.encrypt = options.encrypt;
    hello_.size = static_cast<std::uint32_t>(size);
    hello_.from = static_cast<std::uint32_t>(rank);
    hello_.chunk_bytes = options.chunk_bytes;
    hello_.eager_bytes = options.eager_bytes;
    hello_.group = sha256(name);
  }

  std::vector<Connections> run() {
    open_listener();
    board_.set(key_of(rank_), str(options_.address, " ", port()));
    look_up_places();
    while (!absent().empty()) {
      if (real_clock().now() > deadline_) fail(absence());
      connect_missing();
      serve();
    }
    return std::move(connections_);
  }

 private:
  int size() const { return static_cast<int>(connections_.size()); }
  std::string key_of(int r) const { return str("tutti/tcp/", name_, "/", r); }

  // At the given address where it is this host's own, else (a name, or behind a translator) at all.
  void open_listener() {
    Addresses found;
    const bool numeric = look_up(options_.address, "0", AI_NUMERICHOST, found).empty();
    if (numeric && listen_at(found.first)) return;
    for (const char* any : {"::", "0.0.0.0"}) {
      Addresses all;
      if (look_up(any, "0", AI_NUMERICHOST, all).empty() && listen_at(all.first)) return;
    }
    fail(str("cannot listen at ", options_.address, ": ", errno_text()));
  }

  bool listen_at(const addrinfo* place) {
    Descriptor socket(::socket(place->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket.get() < 0) return false;
    if (place->ai_family == AF_INET6) set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (bind(socket.get(), place->ai_addr, place->ai_addrlen) != 0 ||
        listen(socket.get(), SOMAXCONN) != 0)
      return false;
    listener_ = std::move(socket);
    return true;
  }

  int port() const {
    sockaddr_storage own{};
    socklen_t bytes = sizeof own;
    if (getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&own), &bytes) != 0)
      fail(str("cannot read the port: ", errno_text()));
    return ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&own)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&own)->sin_port);
  }

  void look_up_places() {
    std::string missing, cause;
    for (int r = 0; r < rank_; ++r) try {
        places_[n(r)] = board_.get(key_of(r), std::max(deadline_ - real_clock().now(), 0.01));
      } catch (const std::exception& error) {
        missing += str(missing.empty() ? "rank " : ", ", r);
        cause = error.what();
      }
    if (!missing.empty())
      fail(str(missing, " did not come within ", options_.timeout, " s (", cause, ")"));
  }

  Connection& connection(int r, std::size_t lane) { return connections_[n(r)][lane]; }

  std::vector<int> absent() const {
    std::vector<int> ranks;
    for (int r = 0; r < size(); ++r)
      for (std::size_t lane = 0; lane < lanes; ++lane)
        if (r != rank_ && connections_[n(r)][lane].socket.get() < 0) {
          ranks.push_back(r);
          break;
        }
    return ranks;
  }

  std::string absence() const {
    std::string text;
    for (const int r : absent()) text += str(text.empty() ? "rank " : ", ", r);
    text += str(" did not come within ", options_.timeout, " s");
    return refusal_.empty() ? text : str(text, "; the last refusal: ", refusal_);
  }

  void connect_missing() {
    const double now = real_clock().now();
    for (int r = 0; r < rank_; ++r)
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        double& next = next_try_[n(r) * lanes + lane];
        if (connection(r, lane).socket.get() >= 0 || now < next) continue;
        next = deadline_;  // unless this try fails
        try {
          connect_to(r, lane);
        } catch (const Refused& refused) {
          retry(r, lane, refused.what());
        }
      }
  }

  void retry(int r, std::size_t lane, const std::string& why) {
    const std::size_t index = n(r) * lanes + lane;
    const int tries = std::min(++tries_[index], 20);
    next_try_[index] = real_clock().now() + pause * tries;
    refusal_ = str("of rank ", r, " at ", places_[n(r)], ": ", why);
  }

  // A name may have several addresses: each try takes the next.
  void connect_to(int r, std::size_t lane) {
    const std::string& place = places_[n(r)];
    const std::size_t space = std::min(place.rfind(' '), place.size());
    Addresses found;
    if (const auto error = look_up(place.substr(0, space),
                                   place.substr(std::min(space + 1, place.size())), 0, found);
        !error.empty())
      throw Refused(error);
    const addrinfo* address = found.first;
    for (int i = tries_[n(r) * lanes + lane]; i > 0; --i)
      address = address->ai_next ? address->ai_next : found.first;
    Descriptor socket(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket.get() < 0) throw Refused(errno_text());
    set_options(socket.get());
    if (connect(socket.get(), address->ai_addr, address->ai_addrlen) != 0 && errno != EINPROGRESS)
      throw Refused(errno_text());
    Hello hello = hello_;
    hello.to = static_cast<std::uint32_t>(r);
    hello.lane = static_cast<std::uint32_t>(lane);
    candidates_.push_back({std::move(socket), Handshake(hello, options_.secret, true), r, lane,
                           /*connecting=*/true, deadline_});
  }

  // Waits a moment for anybody, and gives each candidate that has something to say its turn.
  void serve() {
    std::vector<pollfd> set;
    for (const Candidate& candidate : candidates_)
      set.push_back(
          {candidate.socket.get(), static_cast<short>(candidate.connecting ? POLLOUT : POLLIN), 0});
    set.push_back({listener_.get(), POLLIN, 0});
    poll(set.data(), set.size(), 20);
    const std::size_t present = candidates_.size();
    std::vector<bool> over(present);
    for (std::size_t i = 0; i < present; ++i) over[i] = !take_turn(candidates_[i], set[i].revents);
    for (std::size_t i = present; i-- > 0;)
      if (over[i]) candidates_.erase(candidates_.begin() + static_cast<std::ptrdiff_t>(i));
    if (set.back().revents != 0) accept_some();
  }

  void accept_some() {
    for (std::size_t i = 0; i < crowd; ++i) {
      Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.get() < 0 && (errno == EMFILE || errno == ENFILE)) {
        refusal_ = str("cannot accept more: ", errno_text());
        if (!drop_first_stranger()) real_clock().sleep(pause);
        return;
      }
      if (socket.get() < 0) return;
      set_options(socket.get());
      make_place();
      candidates_.push_back({std::move(socket), Handshake(hello_, options_.secret, false), -1, 0,
                             /*connecting=*/false, real_clock().now() + patience});
    }
  }

  void make_place() {
    const auto came = [](const Candidate& candidate) { return candidate.peer < 0; };
    if (static_cast<std::size_t>(std::ranges::count_if(candidates_, came)) <
        crowd + n(size()) * lanes)
      return;
    drop_first_stranger();
  }

  bool drop_first_stranger() {
    const auto first = std::ranges::find(candidates_, -1, &Candidate::peer);
    if (first == candidates_.end()) return false;
    candidates_.erase(first);
    return true;
  }

  // Whether the candidate remains one.
  bool take_turn(Candidate& candidate, short events) {
    try {
      if (candidate.connecting && events != 0) greet(candidate);
      if (!candidate.connecting && events != 0) read(candidate);
      if (candidate.shake.wants() > 0 && real_clock().now() > candidate.deadline)
        throw Refused("it was silent");
    } catch (const Refused& refused) {
      if (candidate.peer >= 0)
        retry(candidate.peer, candidate.lane, refused.what());
      else
        refusal_ = str("of who came: ", refused.what());
      return false;
    }
    if (candidate.shake.wants() > 0) return true;
    welcome(candidate);
    return false;
  }

  void greet(Candidate& candidate) {
    int error = 0;
    socklen_t bytes = sizeof error;
    getsockopt(candidate.socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error != 0) throw Refused(errno_text(error));
    candidate.connecting = false;
    say(candidate, candidate.shake.opening());
  }

  // Of the messages that come, and never a byte more: what follows belongs to the link.
  void read(Candidate& candidate) {
    while (candidate.shake.wants() > 0) {
      char buffer[512];
      const std::size_t missing = candidate.shake.wants() - candidate.in.size();
      const ssize_t got =
          recv(candidate.socket.get(), buffer, std::min(missing, sizeof buffer), MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (got < 0) throw Refused(errno_text());
      if (got == 0) throw Refused("it closed the connection");
      candidate.in.append(buffer, static_cast<std::size_t>(got));
      if (candidate.in.size() < candidate.shake.wants()) continue;
      const std::string message = std::exchange(candidate.in, {});
      const std::string answer = candidate.shake.answer(message);
      check_place(candidate);
      say(candidate, answer);
    }
  }

  // The few bytes of a handshake fit into any fresh socket.
  static void say(Candidate& candidate, const std::string& text) {
    if (::send(candidate.socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
        static_cast<ssize_t>(text.size()))
      throw Refused(str("cannot answer: ", errno_text()));
  }

  // Before who came is welcome: that its place is free.
  void check_place(const Candidate& candidate) {
    if (candidate.peer >= 0 || candidate.shake.wants() > 0) return;
    const Hello& who = candidate.shake.peer();
    const int r = static_cast<int>(who.from);
    if (r < rank_ || who.lane >= lanes) throw Refused("it should not connect");
    if (connection(r, who.lane).socket.get() >= 0)
      throw Refused(str("another process came as rank ", r, " before"));
  }

  void welcome(Candidate& candidate) {
    const Hello& who = candidate.shake.peer();
    Connection& place = connection(static_cast<int>(who.from), who.lane);
    if (who.lane == static_cast<std::uint32_t>(Lane::messages)) make_room(candidate.socket.get());
    place.socket = std::move(candidate.socket);
    if (options_.encrypt) place.keys = std::make_unique<Keys>(candidate.shake.keys());
  }

  [[noreturn]] void fail(const std::string& cause) const {
    throw WorldError(str("tcp group '", options_.group, "', rank ", rank_, " of ", size(),
                         ": meeting under the name '", name_, "': ", cause));
  }

  Board& board_;
  std::string name_;
  int rank_;
  const SocketOptions& options_;
  double deadline_;
  Hello hello_{};
  Descriptor listener_;
  std::vector<std::string> places_;  // "address port" of the lower ranks
  std::vector<int> tries_;           // by rank and lane
  std::vector<double> next_try_;     // the same
  std::vector<Candidate> candidates_;
  std::vector<Connections> connections_;
  std::string refusal_;  // the last
};

}  // namespace

std::unique_ptr<Communicator> join_tcp(Board& board, const std::string& name, int rank, int size,
                                       const SocketOptions& options) {
  TUTTI_ASSERT(0 <= rank && rank < size, "rank ", rank, " of ", size);
  TUTTI_ASSERT(options.chunk_bytes >= 128, "chunk_bytes ", options.chunk_bytes);
  auto communicator = std::make_unique<SocketCommunicator>(
      Meeting(board, name, rank, size, options).run(), rank, options);
  communicator->barrier();
  return communicator;
}

}  // namespace tutti::comm
