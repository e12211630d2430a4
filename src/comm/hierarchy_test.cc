// Levels of communicators give what one flat communicator gives, to the bit.
#include "comm/hierarchy.h"

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/conformance.h"
#include "testing/ranks.h"

using namespace tutti;
using namespace tutti::comm;

namespace {

using Communicators = std::vector<std::unique_ptr<Communicator>>;

std::string text_of(const HostSizes& hosts) {
  std::string text = "hosts of";
  for (const int size : hosts) text += str(" ", size);
  return text;
}

// Threads that share memory play hosts and network.
Communicators make_levels(const HostSizes& hosts) {
  MemoryOptions options;
  options.chunk_bytes = 4096;
  options.eager_bytes = 256;
  options.timeout = 20;
  options.force_staging = true;
  const auto group = [&](int size, const std::string& name) {
    options.group = name;
    return make_thread_group(size, options);
  };
  int ranks = 0;
  for (const int size : hosts) ranks += size;
  Communicators all = group(ranks, "world"), result;
  std::vector<Communicators> lanes;
  for (int lane = 0; lane < lanes_of(hosts); ++lane)
    lanes.push_back(group(static_cast<int>(hosts.size()), str("lane ", lane)));
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    Communicators local = group(hosts[h], str("host ", h));
    for (std::size_t i = 0; i < local.size(); ++i) {
      Levels levels;
      levels.all = std::move(all[result.size()]);
      levels.local = std::move(local[i]);
      if (i < lanes.size()) levels.across = std::move(lanes[i][h]);
      result.push_back(make_hierarchy(std::move(levels), hosts));
    }
  }
  return result;
}

const std::vector<HostSizes> shapes = {{1, 1}, {2, 2}, {1, 3}, {3, 2, 2}, {3, 3}, {4}, {2, 1, 4}};

template <class Body>
void on_hosts(const HostSizes& hosts, Body body) {
  auto ranks = make_levels(hosts);
  testing::run_members(ranks, [&](int, Communicator& communicator) { body(communicator); });
}

}  // namespace

TEST_CASE("levels keep the rules of every communicator") {
  for (const HostSizes& hosts : shapes) {
    CAPTURE(text_of(hosts));
    on_hosts(hosts, [](Communicator& c) { check_conformance(c); });
    on_hosts(hosts, [](Communicator& c) { check_messages_beside_collectives(c); });
    on_hosts(hosts, [](Communicator& c) { check_with_delays(c, 12); });
  }
}

TEST_CASE("levels sum along the one tree, whatever the hosts") {
  for (const HostSizes& hosts : shapes)
    for (const int leaves : {1, 2, 5, 8, 13, 32}) {
      CAPTURE(text_of(hosts));
      CAPTURE(leaves);
      const std::string expected = tree_sum_twin(leaves, 1031, DType::f32);
      on_hosts(hosts, [&](Communicator& c) {
        if (tree_sum(c, leaves, 1031, DType::f32) != expected)
          throw WorldError("other bits than the twin's");
      });
    }
}

TEST_CASE("hosts are told from the order of their ranks") {
  CHECK(hosts_of({7, 7, 9}) == HostSizes{2, 1});
  CHECK(hosts_of({7}) == HostSizes{1});
  CHECK(hosts_of({7, 9, 7}).empty());
}

TEST_CASE("a level that fails takes the others with it") {
  auto ranks = make_levels({2, 2});
  std::string failure;
  try {
    testing::run_members(ranks, [](int rank, Communicator& c) {
      float number = 1;
      c.all_reduce(&number, 1, DType::f32, Reduce::sum);
      if (rank == 3) throw WorldError("lost");
      c.all_reduce(&number, 1, DType::f32, Reduce::sum);
    });
  } catch (const WorldError& error) {
    failure = error.what();
  }
  for (const int rank : {0, 1, 2})
    CHECK(failure.find(str("rank ", rank, ": ")) != std::string::npos);
  CHECK(failure.find("rank 3 failed") != std::string::npos);
}

TEST_CASE("a message that fails takes the collectives with it, and keeps the timeout set") {
  auto ranks = make_levels({2, 2});
  std::vector<std::string> failures(4);
  testing::run_members(ranks, [&](int rank, Communicator& c) {
    try {
      float number = 1;
      c.set_timeout(rank == 0 ? 0.3 : 20);
      if (rank == 0) c.recv(&number, sizeof number, 2);  // which does not send
      c.barrier();
    } catch (const WorldError& error) {
      failures[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  CHECK(failures[0].find("0.3 s") != std::string::npos);
  for (const int rank : {1, 2, 3})
    CHECK(failures[static_cast<std::size_t>(rank)].find("20 s") == std::string::npos);
  for (const std::string& failure : failures) CHECK(failure != "");
}
