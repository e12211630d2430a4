// The collectives on threads and on real processes: one body, run on both.
#include "comm/memory_group.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "comm/conformance.h"
#include "testing/ranks.h"

using namespace tutti;
using namespace tutti::comm;
using tutti::testing::run_ranks;

namespace {

MemoryOptions small_options() {
  MemoryOptions options;
  options.chunk_bytes = 4096;
  options.eager_bytes = 256;
  options.timeout = 20;
  options.shared_bytes = 16 << 20;
  return options;
}

std::string fresh_name() {
  static int count = 0;
  return str("test-", getpid(), "-", ++count);
}

struct Outcome {
  int status;        // as of waitpid
  std::string text;  // what the rank returned, or "error: ..." of its WorldError
};

// body(communicator) on `size` forked processes; its returned text, or its error, comes back.
std::vector<Outcome> run_processes(int size, const std::function<std::string(Communicator&)>& body,
                                   const MemoryOptions& options = small_options()) {
  const std::string name = fresh_name();
  std::vector<pid_t> children;
  std::vector<int> pipes;
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const pid_t child = fork();
    if (child == 0) {
      std::string text;
      try {
        text = body(*join_shm(name, rank, size, options));
      } catch (const std::exception& error) {
        text = str("error: ", error.what());
      }
      [[maybe_unused]] const auto written = write(ends[1], text.data(), text.size());
      _exit(0);
    }
    close(ends[1]);
    children.push_back(child);
    pipes.push_back(ends[0]);
  }
  std::vector<Outcome> outcomes;
  for (int rank = 0; rank < size; ++rank) {
    Outcome outcome{};
    char buffer[4096];
    for (ssize_t got;
         (got = read(pipes[static_cast<std::size_t>(rank)], buffer, sizeof buffer)) > 0;)
      outcome.text.append(buffer, static_cast<std::size_t>(got));
    close(pipes[static_cast<std::size_t>(rank)]);
    waitpid(children[static_cast<std::size_t>(rank)], &outcome.status, 0);
    outcomes.push_back(outcome);
  }
  return outcomes;
}

std::set<std::string> shared_files() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    names.insert(entry.path().filename());
  return names;
}

}  // namespace

TEST_CASE("Conformance: threads, in place") {
  for (const int size : {1, 2, 3, 5, 7})
    run_ranks(size, [](Communicator& c) { check_conformance(c); }, small_options());
}

TEST_CASE("Conformance: threads, through the staging slots") {
  auto options = small_options();
  options.force_staging = true;
  for (const int size : {1, 2, 3, 5, 7})
    run_ranks(size, [](Communicator& c) { check_conformance(c); }, options);
}

TEST_CASE("Conformance: processes") {
  for (const int size : {1, 2, 3, 5, 7})
    for (const auto& outcome : run_processes(size, [](Communicator& c) {
           check_conformance(c);
           return std::string("good");
         }))
      CHECK(outcome.text == "good");
}

TEST_CASE("Conformance: threads with random delays") {
  run_ranks(3, [](Communicator& c) { check_with_delays(c, 40); }, small_options());
}

// More threads than cores: ranks are often stopped between a call's meeting and their reading.
TEST_CASE("Small calls: a quick rank does not overwrite what a slow one still reads") {
  auto options = small_options();
  options.eager_bytes = 1 << 17;
  run_ranks(
      6,
      [](Communicator& c) {
        std::vector<float> values(30000);
        for (int round = 0; round < 300; ++round) {
          const auto mine = static_cast<float>((c.rank() + 1) * (round + 1));
          std::fill(values.begin(), values.end(), mine);
          c.all_reduce(values.data(), values.size(), DType::f32, Reduce::sum);
          const auto sum = static_cast<float>(21 * (round + 1));
          for (const float value : values)
            if (value != sum) throw WorldError(str("round ", round, ": ", value));
        }
      },
      options);
}

TEST_CASE("Tree sums: the same bits for 1 to 8 ranks, in and out of place") {
  for (const DType type : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    const std::string expected = tree_sum_twin(13, 1001, type);
    for (int size = 1; size <= 8; ++size) {
      const auto check = [&](Communicator& c) {
        if (tree_sum(c, 13, 1001, type) != expected) throw WorldError("other bits");
      };
      run_ranks(size, check, small_options());
      auto staged = small_options();
      staged.force_staging = true;
      run_ranks(size, check, staged);
      if (type == DType::f32)
        for (const auto& outcome : run_processes(size, [&](Communicator& c) {
               check(c);
               return std::string("good");
             }))
          CHECK(outcome.text == "good");
    }
  }
}

TEST_CASE("A killed peer is named within seconds and nothing is left behind") {
  const auto before = shared_files();
  for (const bool in_call : {false, true}) {
    const double start = real_clock().now();
    const auto outcomes = run_processes(3, [&](Communicator& c) {
      std::vector<float> data(100000, 1.0f);
      c.all_reduce(data.data(), data.size(), DType::f32, Reduce::sum);
      if (c.rank() == 1) {
        if (in_call)
          std::thread([] {
            usleep(20000);
            kill(getpid(), SIGKILL);
          }).detach();
        else
          kill(getpid(), SIGKILL);
      }
      for (;;) c.all_reduce(data.data(), data.size(), DType::f32, Reduce::max);
      return std::string();
    });
    CHECK(real_clock().now() - start < 5);
    CHECK(WIFSIGNALED(outcomes[1].status));
    for (const int survivor : {0, 2}) {
      const std::string& text = outcomes[static_cast<std::size_t>(survivor)].text;
      CHECK_MESSAGE(text.find("rank 1 (process ") != std::string::npos, text);
      CHECK_MESSAGE(text.find("all_reduce #") != std::string::npos, text);
      CHECK_MESSAGE(text.find(str("rank ", survivor, " of 3")) != std::string::npos, text);
    }
  }
  CHECK(shared_files() == before);
}

TEST_CASE("A peer that does not come is named at the deadline") {
  auto options = small_options();
  options.timeout = 0.3;
  std::atomic<bool> over = false;
  try {
    run_ranks(
        3,
        [&](Communicator& c) {
          c.barrier();
          if (c.rank() == 2) {
            while (!over) std::this_thread::yield();
            return;
          }
          try {
            c.barrier();
          } catch (...) {
            over = true;
            throw;
          }
        },
        options);
    FAIL("came");
  } catch (const std::runtime_error& error) {
    CHECK_MESSAGE(
        std::string(error.what()).find("rank 2 did not come within 0.3 s") != std::string::npos,
        error.what());
    CHECK(std::string(error.what()).find("barrier #2") != std::string::npos);
  }
}

TEST_CASE("Ranks that call different operations are named, and the group stays broken") {
  const auto text_of = [](auto body) {
    try {
      run_ranks(2, body, small_options());
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  float data[8] = {};
  const std::string order = text_of([&](Communicator& c) {
    float mine[8] = {};
    if (c.rank() == 0)
      c.all_reduce(mine, 8, DType::f32, Reduce::sum);
    else
      c.broadcast(mine, 8, DType::f32, 1);
  });
  CHECK_MESSAGE(order.find("broadcast #1 (F32 x 8, root 1)") != std::string::npos, order);
  const std::string count = text_of([&](Communicator& c) {
    std::vector<float> mine(10000);
    c.all_reduce(mine.data(), c.rank() ? 10000 : 9999, DType::f32, Reduce::sum);
  });
  CHECK_MESSAGE(count.find("x 9999") != std::string::npos, count);
  const std::string again = text_of([&](Communicator& c) {
    try {
      if (c.rank() == 0)
        c.barrier();
      else
        c.all_reduce(data, 1, DType::f32, Reduce::max);
    } catch (const WorldError&) {
    }
    c.barrier();
  });
  CHECK_MESSAGE(again.find("rank 0: threads group 'world'") != std::string::npos, again);
}

TEST_CASE("Counts that differ between ranks are named") {
  const auto text_of = [](auto body) {
    try {
      run_ranks(2, body, small_options());
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto plan = plan_reduction(even_ranges(2, 2));
  const std::string gather = text_of([](Communicator& c) {
    float data[9] = {}, out[9];
    const std::vector<std::size_t> counts{3, c.rank() ? 5u : 4u};
    c.all_gather_v(data, out, counts, DType::f32);
  });
  CHECK_MESSAGE(gather.find("all_gather #1 (F32 x 3+5)") != std::string::npos, gather);
  CHECK_MESSAGE(gather.find("all_gather #1 (F32 x 3+4)") != std::string::npos, gather);
  const std::string same_sum = text_of([&](Communicator& c) {
    std::vector<float> node(6000), out(6000);
    const std::vector<std::size_t> counts{c.rank() ? 2000u : 4000u, c.rank() ? 4000u : 2000u};
    const void* const nodes[] = {node.data()};
    c.tree_reduce_scatter(nodes, out.data(), counts, DType::f32, plan);
  });
  CHECK_MESSAGE(same_sum.find("tree_reduce_scatter #1 (F32 x 2000+4000)") != std::string::npos,
                same_sum);
  const std::string exchange = text_of([](Communicator& c) {
    float data[9] = {}, out[9];
    const std::vector<std::size_t> send{1, 3}, receive{1, c.rank() ? 2u : 1u};
    c.all_to_all_v(data, send, out, c.rank() ? std::vector<std::size_t>{2, 3} : receive,
                   DType::f32);
  });
  CHECK_MESSAGE(
      exchange.find("rank 0 sends 3 elements here, where 2 are expected") != std::string::npos,
      exchange);
}

TEST_CASE("After abort() every call throws at once, also one that would wait for nobody") {
  const auto group = make_thread_group(1);
  group[0]->barrier();
  group[0]->abort("had enough");
  CHECK_THROWS_WITH_AS(group[0]->barrier(), doctest::Contains("barrier #2: had enough"),
                       WorldError);
  CHECK_THROWS_WITH_AS(group[0]->barrier(), doctest::Contains("had enough"), WorldError);
}

TEST_CASE("A message of another length is named, and ends the collectives too") {
  const auto body = [](Communicator& c) {
    char data[8] = {};
    if (c.rank() == 0) c.send(data, 8, 1);
    if (c.rank() == 1) c.recv(data, 7, 0);
    c.barrier();
    c.barrier();
  };
  std::string text;
  try {
    run_ranks(2, body, small_options());
  } catch (const std::runtime_error& error) {
    text = error.what();
  }
  CHECK_MESSAGE(text.find("recv from rank 0 (7 bytes): rank 0 sends 8 bytes") != std::string::npos,
                text);
  CHECK_MESSAGE(
      text.find("rank 0: threads group 'world', rank 0 of 2, barrier") != std::string::npos, text);
}

TEST_CASE("Meeting: a rank that stays away is named; a taken name is refused") {
  auto options = small_options();
  options.timeout = 0.2;
  CHECK_THROWS_WITH_AS(join_shm(fresh_name(), 0, 3, options),
                       doctest::Contains("rank 1, 2 did not come"), WorldError);
  CHECK_THROWS_WITH_AS(join_shm(fresh_name(), 1, 3, options),
                       doctest::Contains("rank 0 did not come"), WorldError);
  const std::string name = fresh_name();
  std::thread first([&] { CHECK_THROWS_AS(join_shm(name, 0, 2, options), WorldError); });
  usleep(50000);
  CHECK_THROWS_WITH_AS(join_shm(name, 0, 2, options), doctest::Contains("taken"), WorldError);
  first.join();
  CHECK_THROWS_AS(make_thread_group(65), ConfigError);
}

TEST_CASE("run_ranks names the rank that failed and ends the others") {
  CHECK_THROWS_WITH(run_ranks(3,
                              [](Communicator& c) {
                                if (c.rank() == 1) throw WorldError("disk full");
                                c.barrier();
                              }),
                    doctest::Contains("rank 1: disk full"));
}
