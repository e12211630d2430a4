// The collectives over TCP: threads and processes as ranks, on this host.
#include "comm/socket_group.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/fs.h"
#include "comm/conformance.h"
#include "testing/boards.h"
#include "testing/ranks.h"

using namespace tutti;
using namespace tutti::comm;
using tutti::testing::FolderBoard;
using tutti::testing::MemoryBoard;

namespace {

using Group = std::vector<std::unique_ptr<Communicator>>;

SocketOptions small_options() {
  SocketOptions options;
  options.chunk_bytes = 4096;
  options.eager_bytes = 512;
  options.timeout = 60;
  return options;
}

SocketOptions sealed_options() {
  SocketOptions options = small_options();
  options.secret = "only the ranks know this";
  options.encrypt = true;
  return options;
}

Group make_group(int size, const SocketOptions& options) {
  MemoryBoard board;
  Group group(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  std::vector<std::string> errors(group.size());
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      const auto r = static_cast<std::size_t>(rank);
      try {
        group[r] = join_tcp(board, "test", rank, size, options);
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
    });
  for (auto& thread : threads) thread.join();
  for (const std::string& error : errors)
    if (!error.empty()) throw WorldError(error);
  return group;
}

template <class Body>
void run_tcp(int size, Body body, const SocketOptions& options = small_options()) {
  Group group = make_group(size, options);
  testing::run_members(group, [&](int, Communicator& communicator) { body(communicator); });
}

// The failures of all ranks, "" for none.
template <class Body>
std::string failure_of(int size, Body body, const SocketOptions& options = small_options()) {
  try {
    run_tcp(size, body, options);
  } catch (const WorldError& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::size_t open_files() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

struct Outcome {
  int status;        // as of waitpid
  std::string text;  // what the rank returned, or "error: ..." of its WorldError
};

// body(communicator) on `size` forked processes. while_running(processes) comes once all have
// joined.
std::vector<Outcome> run_processes(int size, const SocketOptions& options,
                                   const std::function<std::string(Communicator&)>& body,
                                   const std::function<void(std::vector<pid_t>)>& while_running) {
  const TempFolder folder;
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      std::string text;
      try {
        FolderBoard board(folder.path());
        const auto communicator = join_tcp(board, "test", rank, size, options);
        board.set(str("joined ", rank), "");
        text = body(*communicator);
      } catch (const std::exception& error) {
        text = str("error: ", error.what());
      }
      write_file(folder.path() / str("text-", rank), text);
      _exit(0);
    }
    children.push_back(child);
  }
  FolderBoard board(folder.path());
  for (int rank = 0; rank < size; ++rank) board.get(str("joined ", rank), 60);
  while_running(children);
  std::vector<Outcome> outcomes;
  for (int rank = 0; rank < size; ++rank) {
    Outcome outcome{};
    waitpid(children[static_cast<std::size_t>(rank)], &outcome.status, 0);
    const auto file = folder.path() / str("text-", rank);
    if (std::filesystem::exists(file)) outcome.text = read_file(file);
    outcomes.push_back(outcome);
  }
  return outcomes;
}

void sum_for_ever(Communicator& c) {
  std::vector<float> data(100000, 1.0f);
  for (;;) c.all_reduce(data.data(), data.size(), DType::f32, Reduce::max);
}

}  // namespace

TEST_CASE("Conformance: tcp") {
  for (const int size : {1, 2, 3, 7}) run_tcp(size, [](Communicator& c) { check_conformance(c); });
}

TEST_CASE("Conformance: tcp, sealed") {
  for (const int size : {1, 2, 3, 7})
    run_tcp(size, [](Communicator& c) { check_conformance(c); }, sealed_options());
}

TEST_CASE("Conformance: tcp with random delays, and with the usual sizes of chunks") {
  run_tcp(3, [](Communicator& c) { check_with_delays(c, 40); });
  run_tcp(3, [](Communicator& c) { check_parts(c); }, SocketOptions{});
}

TEST_CASE("Tcp, buffers of many chunks: a sum and a broadcast, plain and sealed") {
  const auto body = [](Communicator& c) {
    constexpr std::size_t count = 700001;
    std::vector<float> data(count);
    for (int root = 0; root < c.size(); ++root) {
      for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<float>(c.rank() + i % 1000);
      c.broadcast(data.data(), count, DType::f32, root);
      for (std::size_t i = 0; i < count; ++i)
        if (data[i] != static_cast<float>(static_cast<std::size_t>(root) + i % 1000))
          throw WorldError(str("broadcast of ", root, ": element ", i));
    }
    c.all_reduce(data.data(), count, DType::f32, Reduce::sum);
    for (std::size_t i = 0; i < count; ++i)
      if (data[i] != static_cast<float>(3 * (2 + i % 1000))) throw WorldError(str("sum: ", i));
  };
  SocketOptions options;
  run_tcp(3, body, options);
  options.encrypt = true;
  run_tcp(3, body, options);
}

TEST_CASE("Tree sums over tcp: the same bits for 1 to 8 ranks") {
  for (const DType type : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const std::string expected = tree_sum_twin(13, 1001, type);
    for (int size = 1; size <= 8; ++size)
      run_tcp(size, [&](Communicator& c) {
        if (tree_sum(c, 13, 1001, type) != expected) throw WorldError("other bits");
      });
  }
}

TEST_CASE("A group over tcp leaves no descriptor behind, and another may follow") {
  const std::size_t before = open_files();
  for (int round = 0; round < 3; ++round) {
    run_tcp(3, [](Communicator& c) { c.barrier(); });
    CHECK(!failure_of(3, [](Communicator& c) {
             if (c.rank() == 1) throw WorldError("disk full");
             c.barrier();
           }).empty());
  }
  CHECK(open_files() == before);
}

TEST_CASE("A peer that is killed is named within a second") {
  for (const bool sealed : {false, true}) {
    double killed = 0;
    const auto outcomes = run_processes(
        3, sealed ? sealed_options() : small_options(),
        [](Communicator& c) -> std::string {
          try {
            sum_for_ever(c);
          } catch (const WorldError& error) {
            return str(real_clock().now(), " ", error.what());
          }
          return "";
        },
        [&](const std::vector<pid_t>& children) {
          real_clock().sleep(0.2);
          killed = real_clock().now();
          kill(children[1], SIGKILL);
        });
    CHECK(WIFSIGNALED(outcomes[1].status));
    for (const int survivor : {0, 2}) {
      const std::string& text = outcomes[static_cast<std::size_t>(survivor)].text;
      CHECK_MESSAGE(has(text, "rank 1 has "), text);
      CHECK_MESSAGE(has(text, "its connection"), text);
      CHECK_MESSAGE(has(text, str("tcp group 'world', rank ", survivor, " of 3, all_reduce #")),
                    text);
      CHECK(std::atof(text.c_str()) - killed < 1);
    }
  }
}

TEST_CASE("A peer that stands still is named at the deadline") {
  auto options = small_options();
  const auto outcomes = run_processes(
      3, options,
      [](Communicator& c) {
        c.set_timeout(1);
        sum_for_ever(c);
        return std::string();
      },
      [&](const std::vector<pid_t>& children) {
        real_clock().sleep(0.2);
        kill(children[2], SIGSTOP);
        real_clock().sleep(2);
        kill(children[2], SIGKILL);
      });
  for (const std::size_t survivor : {0u, 1u}) {
    const std::string& text = outcomes[survivor].text;
    CHECK_MESSAGE(has(text, "rank 2 did not come within 1 s"), text);
    CHECK_MESSAGE(has(text, "all_reduce #"), text);
  }
}

TEST_CASE("A peer that does not come is named at the deadline, tcp") {
  std::atomic<int> over = 0;
  const std::string text = failure_of(3, [&](Communicator& c) {
    c.barrier();
    if (c.rank() == 2) {
      while (over < 2) std::this_thread::yield();
      return;
    }
    c.set_timeout(0.3);
    try {
      c.barrier();
    } catch (...) {
      ++over;
      throw;
    }
  });
  CHECK_MESSAGE(has(text, "barrier #3: rank 2 did not come within 0.3 s"), text);
}

TEST_CASE("Ranks that call different operations are named, and the group stays broken, tcp") {
  const std::string order = failure_of(2, [&](Communicator& c) {
    float mine[8] = {};
    if (c.rank() == 0)
      c.all_reduce(mine, 8, DType::f32, Reduce::sum);
    else
      c.broadcast(mine, 8, DType::f32, 1);
  });
  CHECK_MESSAGE(has(order,
                    "rank 1 called broadcast #2 (F32 x 8, root 1); all ranks must make the "
                    "same calls in the same order"),
                order);
  const std::string count = failure_of(2, [&](Communicator& c) {
    std::vector<float> mine(10000);
    c.all_reduce(mine.data(), c.rank() ? 10000 : 9999, DType::f32, Reduce::sum);
  });
  CHECK_MESSAGE(has(count, "x 9999"), count);
  const std::string again = failure_of(2, [&](Communicator& c) {
    float data = 0;
    try {
      if (c.rank() == 0)
        c.barrier();
      else
        c.all_reduce(&data, 1, DType::f32, Reduce::max);
    } catch (const WorldError&) {
    }
    c.barrier();
  });
  CHECK_MESSAGE(has(again, "rank 0: tcp group 'world', rank 0 of 2, barrier #2"), again);
}

TEST_CASE("Counts that differ between ranks are named, tcp") {
  const auto plan = plan_reduction(even_ranges(2, 2));
  const std::string gather = failure_of(2, [](Communicator& c) {
    float data[9] = {}, out[9];
    const std::vector<std::size_t> counts{3, c.rank() ? 5u : 4u};
    c.all_gather_v(data, out, counts, DType::f32);
  });
  CHECK_MESSAGE(has(gather, "all_gather #2 (F32 x 3+5)"), gather);
  CHECK_MESSAGE(has(gather, "all_gather #2 (F32 x 3+4)"), gather);
  const std::string same_sum = failure_of(2, [&](Communicator& c) {
    std::vector<float> node(6000), out(6000);
    const std::vector<std::size_t> counts{c.rank() ? 2000u : 4000u, c.rank() ? 4000u : 2000u};
    const void* const nodes[] = {node.data()};
    c.tree_reduce_scatter(nodes, out.data(), counts, DType::f32, plan);
  });
  CHECK_MESSAGE(has(same_sum, "tree_reduce_scatter #2 (F32 x 2000+4000)"), same_sum);
  const std::string exchange = failure_of(2, [](Communicator& c) {
    float data[9] = {}, out[9];
    const std::vector<std::size_t> send{1, 3}, receive{1, c.rank() ? 2u : 1u};
    c.all_to_all_v(data, send, out, c.rank() ? std::vector<std::size_t>{2, 3} : receive,
                   DType::f32);
  });
  CHECK_MESSAGE(has(exchange, "rank 0 sends 3 elements here, where 2 are expected"), exchange);
}

TEST_CASE("abort() wakes who waits, here and at the peers, and tells them why") {
  const std::string text = failure_of(3, [](Communicator& c) {
    std::thread late;
    if (c.rank() == 0)
      late = std::thread([&] {
        real_clock().sleep(0.1);
        c.abort("had enough");
      });
    const double start = real_clock().now();
    try {
      char byte;
      if (c.rank() == 0) c.recv(&byte, 1, 1);
      if (c.rank() == 1) c.barrier();
      if (c.rank() == 2) c.send(std::string(40 << 20, 'x').data(), 40 << 20, 0);
    } catch (...) {
      if (late.joinable()) late.join();
      if (real_clock().now() - start > 5) throw WorldError("too late");
      throw;
    }
  });
  for (const char* part : {"rank 0 of 3, recv from rank 1 (1 bytes): had enough",
                           "rank 1 of 3, barrier #2: had enough",
                           "rank 2 of 3, send to rank 0 (41943040 bytes): had enough"})
    CHECK_MESSAGE(has(text, part), text);
}

TEST_CASE("After abort() every call throws at once, tcp") {
  const Group group = make_group(1, small_options());
  group[0]->abort("had enough");
  CHECK_THROWS_WITH_AS(group[0]->barrier(), doctest::Contains("barrier #2: had enough"),
                       WorldError);
  CHECK_THROWS_WITH_AS(group[0]->barrier(), doctest::Contains("had enough"), WorldError);
}

TEST_CASE("A message of 128 KiB ends before anybody receives it") {
  for (const auto& options : {small_options(), sealed_options()})
    run_tcp(
        2,
        [](Communicator& c) {
          std::string data(128 << 10, static_cast<char>('a' + c.rank()));
          c.send(data.data(), data.size(), 1 - c.rank());
          c.barrier();
          c.recv(data.data(), data.size(), 1 - c.rank());
          if (data != std::string(128 << 10, static_cast<char>('b' - c.rank())))
            throw WorldError("another message");
        },
        options);
}

TEST_CASE("A message of another length is named, and ends the collectives too, tcp") {
  const std::string text = failure_of(2, [](Communicator& c) {
    char data[8] = {};
    if (c.rank() == 0) c.send(data, 8, 1);
    if (c.rank() == 1) c.recv(data, 7, 0);
    c.barrier();
    c.barrier();
  });
  CHECK_MESSAGE(has(text, "recv from rank 0 (7 bytes): rank 0 sends 8 bytes"), text);
  CHECK_MESSAGE(has(text, "rank 0: tcp group 'world', rank 0 of 2, barrier"), text);
  CHECK_MESSAGE(has(text, "rank 1 failed: rank 0 sends 8 bytes"), text);
}
