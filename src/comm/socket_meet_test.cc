// Meeting over TCP: who stays away, who should not be there, and who changes what passes.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "comm/conformance.h"
#include "comm/socket_group.h"
#include "comm/socket_link.h"
#include "testing/boards.h"

using namespace tutti;
using namespace tutti::comm;
using tutti::testing::MemoryBoard;

namespace {

SocketOptions secret_options() {
  SocketOptions options;
  options.timeout = 30;
  options.secret = "only the ranks know this";
  return options;
}

// What rank r says in the end: "good" of body(), or its error.
using Texts = std::vector<std::string>;
template <class Body>
Texts run_all(const std::vector<Board*>& boards, const std::vector<SocketOptions>& options,
              Body body) {
  Texts texts(boards.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < boards.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        const auto c = join_tcp(*boards[r], "test", static_cast<int>(r),
                                static_cast<int>(boards.size()), options[r]);
        body(*c);
        texts[r] = "good";
      } catch (const std::exception& error) {
        texts[r] = error.what();
      }
    });
  for (auto& thread : threads) thread.join();
  return texts;
}

void sum_once(Communicator& c) {
  std::vector<float> data(1000, 1.0f);
  c.all_reduce(data.data(), data.size(), DType::f32, Reduce::sum);
  if (data[999] != static_cast<float>(c.size())) throw WorldError("wrong sum");
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

int port_of(const std::string& place) { return std::stoi(place.substr(place.rfind(' ') + 1)); }

sockaddr_in local(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

Descriptor connect_to(int port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = local(port);
  REQUIRE(connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return socket;
}

void say(const Descriptor& socket, const std::string& text) {
  [[maybe_unused]] const auto sent = send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
}

// Stands between the ranks: what connects to its port goes on to another, each byte through
// change(connection, from the connector?, offset, byte).
class Proxy {
 public:
  using Change = std::function<char(int, bool, std::size_t, char)>;

  explicit Proxy(Change change)
      : change_(std::move(change)), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = local(0);
    socklen_t bytes = sizeof address;
    REQUIRE(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), bytes) == 0);
    REQUIRE(listen(listener_.get(), 100) == 0);
    REQUIRE(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &bytes) == 0);
    port_ = ntohs(address.sin_port);
  }
  ~Proxy() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  int port() const { return port_; }
  void lead_to(int port) {
    target_ = port;
    thread_ = std::thread([this] { run(); });
  }

 private:
  struct Way {
    Descriptor ends[2];
    std::size_t passed[2] = {};
    bool open[2] = {true, true};
  };

  void run() {
    while (!over_) {
      std::vector<pollfd> set{{listener_.get(), POLLIN, 0}};
      for (const auto& way : ways_)
        for (int end = 0; end < 2; ++end)
          set.push_back({way->open[end] ? way->ends[end].get() : -1, POLLIN, 0});
      poll(set.data(), set.size(), 10);
      for (std::size_t i = 1; i < set.size(); ++i)
        if (set[i].revents != 0) pass(static_cast<int>((i - 1) / 2), (i - 1) % 2);
      if (set[0].revents != 0) accept_one();
    }
  }

  void accept_one() {
    auto way = std::make_unique<Way>();
    way->ends[0] = Descriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    way->ends[1] = connect_to(target_);
    ways_.push_back(std::move(way));
  }

  void pass(int index, std::size_t end) {
    Way& way = *ways_[static_cast<std::size_t>(index)];
    char buffer[4096];
    const ssize_t got = recv(way.ends[end].get(), buffer, sizeof buffer, 0);
    if (got <= 0) {
      way.open[end] = false;
      shutdown(way.ends[1 - end].get(), SHUT_WR);
      return;
    }
    for (ssize_t i = 0; i < got; ++i)
      buffer[i] = change_(index, end == 0, way.passed[end]++, buffer[i]);
    say(way.ends[1 - end], std::string(buffer, static_cast<std::size_t>(got)));
  }

  Change change_;
  Descriptor listener_;
  int port_ = 0, target_ = 0;
  std::atomic<bool> over_ = false;
  std::vector<std::unique_ptr<Way>> ways_;
  std::thread thread_;
};

// Tells whoever asks for a rank the proxy's place.
class MisleadingBoard : public Board {
 public:
  MisleadingBoard(Board& board, Proxy& proxy) : board_(board), proxy_(proxy) {}
  void set(const std::string& key, const std::string& value) override { board_.set(key, value); }
  std::string get(const std::string& key, double timeout) override {
    proxy_.lead_to(port_of(board_.get(key, timeout)));
    return str("127.0.0.1 ", proxy_.port());
  }

 private:
  Board& board_;
  Proxy& proxy_;
};

Texts run_through(Proxy::Change change, const SocketOptions& options) {
  MemoryBoard board;
  Proxy proxy(std::move(change));
  MisleadingBoard misleading(board, proxy);
  return run_all({&board, &misleading}, {options, options}, sum_once);
}

// Of a connection, each way.
constexpr std::size_t handshake_bytes = 112 + 32;

}  // namespace

TEST_CASE("Meeting over tcp: who stays away is named") {
  MemoryBoard board;
  SocketOptions options;
  options.timeout = 0.2;
  CHECK_THROWS_WITH_AS(join_tcp(board, "a", 0, 3, options),
                       doctest::Contains("rank 1, 2 did not come within 0.2 s"), WorldError);
  CHECK_THROWS_WITH_AS(join_tcp(board, "b", 2, 3, options),
                       doctest::Contains("rank 0, 1 did not come within 0.2 s"), WorldError);
  board.set("tutti/tcp/c/0", "127.0.0.1 1");
  CHECK_THROWS_WITH_AS(join_tcp(board, "c", 1, 2, options),
                       doctest::Contains("rank 0 at 127.0.0.1 1: Connection refused"), WorldError);
  for (const char* nonsense : {"", "nonsense", "127.0.0.1 -1", " 5", "127.0.0.1 99999999"}) {
    board.set("tutti/tcp/d/0", nonsense);
    CHECK_THROWS_AS(join_tcp(board, "d", 1, 2, options), WorldError);
  }
}

TEST_CASE("Meeting over tcp: at addresses of IPv4 and IPv6, and at a name") {
  for (const char* address : {"127.0.0.1", "127.0.0.2", "::1", "localhost"}) {
    if (std::string(address) == "::1" && access("/proc/net/if_inet6", F_OK) != 0) continue;
    MemoryBoard board;
    SocketOptions options;
    options.timeout = 10;
    options.address = address;
    for (const std::string& text :
         run_all({&board, &board, &board}, {options, options, options}, sum_once))
      CHECK_MESSAGE(text == "good", address << ": " << text);
  }
}

TEST_CASE("Meeting over tcp: another secret, or only one that encrypts, is refused and said") {
  const auto texts_of = [](auto change) {
    MemoryBoard board;
    SocketOptions options = secret_options();
    options.timeout = 0.5;
    SocketOptions other = options;
    change(other);
    return run_all({&board, &board}, {options, other}, sum_once);
  };
  for (const bool none : {false, true}) {
    const Texts texts = texts_of([&](SocketOptions& o) { o.secret = none ? "" : "a guess"; });
    CHECK_MESSAGE(has(texts[0], "rank 1 did not come within 0.5 s; the last refusal: "), texts[0]);
    CHECK_MESSAGE(has(texts[1], "it does not prove that it knows the secret"), texts[1]);
  }
  const Texts texts = texts_of([](SocketOptions& o) { o.encrypt = true; });
  CHECK_MESSAGE(has(texts[0], "only one side encrypts"), texts[0]);
}

TEST_CASE("Meeting over tcp: strangers of all kinds harm nobody") {
  MemoryBoard board;
  Texts texts(2);
  const auto join = [&](int rank) {
    try {
      const auto c = join_tcp(board, "test", rank, 2, secret_options());
      sum_once(*c);
      texts[static_cast<std::size_t>(rank)] = "good";
    } catch (const std::exception& error) {
      texts[static_cast<std::size_t>(rank)] = error.what();
    }
  };
  std::thread first([&] { join(0); });
  const int port = port_of(board.get("tutti/tcp/test/0", 10));
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 300; ++i) strangers.push_back(connect_to(port));  // silent
  for (int i = 0; i < 20; ++i) {
    strangers.push_back(connect_to(port));
    say(strangers.back(), std::string(10000, static_cast<char>(i * 13)));
    connect_to(port);  // and gone
  }
  Hello hello{};  // one that knows all but the secret
  hello.size = 2;
  hello.from = 1;
  hello.chunk_bytes = SocketOptions{}.chunk_bytes;
  hello.eager_bytes = SocketOptions{}.eager_bytes;
  hello.group = sha256("test");
  const Handshake guess(hello, "a guess", true);
  strangers.push_back(connect_to(port));
  say(strangers.back(), guess.opening() + std::string(32, 'x'));
  strangers.push_back(connect_to(port));
  say(strangers.back(), guess.opening().substr(0, 50));
  join(1);
  first.join();
  CHECK(texts[0] == "good");
  CHECK(texts[1] == "good");
}

TEST_CASE("Meeting over tcp: strangers that take up all descriptors have to go") {
  int orders[2], answers[2];
  REQUIRE(pipe(orders) == 0);
  REQUIRE(pipe(answers) == 0);
  const pid_t crowd = fork();
  if (crowd == 0) {
    int port = 0;
    if (read(orders[0], &port, sizeof port) != sizeof port) _exit(1);
    std::vector<Descriptor> strangers;
    for (int i = 0; i < 200; ++i) strangers.push_back(connect_to(port));
    if (write(answers[1], &port, 1) != 1) _exit(1);
    pause();
  }
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const Descriptor next(dup(orders[0]));
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(next.get()) + 40;
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  MemoryBoard board;
  Texts texts(2);
  const auto join = [&](int rank) {
    try {
      const auto c = join_tcp(board, "test", rank, 2, secret_options());
      sum_once(*c);
      texts[static_cast<std::size_t>(rank)] = "good";
    } catch (const std::exception& error) {
      texts[static_cast<std::size_t>(rank)] = error.what();
    }
  };
  std::thread first([&] { join(0); });
  const int port = port_of(board.get("tutti/tcp/test/0", 10));
  char answer = 0;
  CHECK(write(orders[1], &port, sizeof port) == sizeof port);
  CHECK(read(answers[0], &answer, 1) == 1);
  join(1);
  first.join();
  setrlimit(RLIMIT_NOFILE, &before);
  kill(crowd, SIGKILL);
  waitpid(crowd, nullptr, 0);
  for (const int end : {orders[0], orders[1], answers[0], answers[1]}) close(end);
  CHECK(texts == Texts{"good", "good"});
}

// 4 KiB each 40 ms, once the ranks have met: a call of 160 KiB takes 1.6 s.
TEST_CASE("A slow wire is not a lost peer: the deadline begins anew with what moves") {
  constexpr std::size_t bytes = 160 << 10;
  constexpr double timeout = 0.5;
  MemoryBoard board;
  Proxy proxy([](int, bool, std::size_t offset, char byte) {
    if (offset % 4096 == 4095) std::this_thread::sleep_for(std::chrono::milliseconds(40));
    return byte;
  });
  MisleadingBoard misleading(board, proxy);
  const Texts texts =
      run_all({&board, &misleading}, {secret_options(), secret_options()}, [&](Communicator& c) {
        std::vector<std::uint8_t> data(bytes, static_cast<std::uint8_t>(c.rank()));
        if (c.rank() == 1) c.set_timeout(timeout);  // rank 0 has sent all long before it has come
        const double start = real_clock().now();
        c.broadcast(data.data(), bytes, DType::u8, 0);
        if (c.rank() == 0)
          c.send(data.data(), bytes, 1);
        else
          c.recv(data.data(), bytes, 0);
        const double seconds = real_clock().now() - start;
        c.set_timeout(30);
        c.barrier();
        if (data != std::vector<std::uint8_t>(bytes, 0)) throw WorldError("other bytes");
        if (c.rank() == 1 && seconds < 4 * timeout) throw WorldError(str("only ", seconds, " s"));
      });
  for (const std::string& text : texts) CHECK(text == "good");
}

TEST_CASE("What is sealed and changed on the way is refused; what is not changed passes") {
  SocketOptions options = secret_options();
  options.encrypt = true;
  const Texts good = run_through([](int, bool, std::size_t, char byte) { return byte; }, options);
  CHECK(good == Texts{"good", "good"});
  for (const std::size_t place : {4u, 60u, 300u})  // of the records: text and tags
    for (const bool from_connector : {true, false}) {
      const std::size_t spoilt = handshake_bytes + (from_connector ? 0 : 32) + place;
      const Texts texts = run_through(
          [&](int, bool connector, std::size_t offset, char byte) {
            const bool now = connector == from_connector && offset == spoilt;
            return static_cast<char>(now ? byte ^ 1 : byte);
          },
          options);
      const std::string& text = texts[from_connector ? 0 : 1];
      CHECK_MESSAGE(has(text, from_connector ? "rank 1 sent what was changed on the way"
                                             : "rank 0 sent what was changed on the way"),
                    text);
    }
}

TEST_CASE("A handshake that is spoilt is tried again") {
  std::atomic<int> spoilt = 0;
  const Texts texts = run_through(
      [&](int connection, bool connector, std::size_t offset, char byte) {
        if (connection > 2 || !connector || offset != 100) return byte;
        ++spoilt;
        return static_cast<char>(byte ^ 1);
      },
      secret_options());
  CHECK(spoilt == 3);
  CHECK(texts == Texts{"good", "good"});
}
