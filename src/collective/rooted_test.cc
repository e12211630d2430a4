// Operations with a root, and ranks that meet in a c10d store.
#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/error.h"
#include "collective/group.h"
#include "collective/store_meeting.h"
#include "collective/test_ranks.h"

using namespace tutti;
using namespace tutti::collective;

namespace {

void require(bool holds, const char* what) {
  if (!holds) throw WorldError(what);
}

void check_rooted(Group& group) {
  const int rank = group.rank(), size = group.size(), root = size - 1;
  const at::Tensor in = at::full({5}, rank + 1, at::kFloat), none;
  at::Tensor sum = rank == root ? at::empty({5}) : none;
  group.reduce(in, sum, root, comm::Reduce::average);
  require(rank != root || sum.eq((size + 1) / 2.0).all().item<bool>(), "reduce");
  Counts counts;
  for (int r = 0; r < size; ++r) counts.push_back(r % 2 ? 0 : r + 1);
  const std::int64_t own = counts[static_cast<std::size_t>(rank)];
  at::Tensor all = rank == root ? at::empty({at::tensor(counts).sum().item<std::int64_t>()}) : none;
  group.gather_v(at::full({own}, rank, at::kFloat), all, counts, root);
  at::Tensor part = at::empty({own});
  group.scatter_v(rank == root ? all * 2 : none, part, counts, root);
  require(part.eq(2 * rank).all().item<bool>(), "gather and scatter");
  if (size > 1) try {
      group.all_reduce(at::ones({3}, at::kInt), comm::Reduce::average);
      require(false, "an average of integers");
    } catch (const ConfigError&) {
    }
  group.barrier();
}

// Errors of ranks that meet in one store; `host` says where each is.
std::string meet(int size, const std::function<Host(int)>& host) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  return on_threads(size, [&](int rank) {
    Group group(join_by_store(
        *store, {.rank = rank, .size = size, .timeout = 5, .group = "test", .host = host(rank)}));
    at::Tensor data = at::ones({10});
    group.all_reduce(data);
    require(data.eq(size).all().item<bool>(), "all_reduce");
  });
}

}  // namespace

TEST_CASE("Group: reduce, gather, scatter") {
  for (const char* transport : {"threads", "shm", "tcp", "pairs", "gloo"})
    for (const int size : {1, 2, 3, 7}) CHECK(on_groups(transport, size, check_rooted) == "");
}

TEST_CASE("A c10d store: ranks of one host meet; of several, all are told which") {
  for (const int size : {1, 2, 5}) CHECK(meet(size, [](int) { return this_host(); }) == "");
  const std::string errors =
      meet(3, [](int rank) { return Host{rank / 2, rank < 2 ? "north" : "south"}; });
  for (int rank = 0; rank < 3; ++rank)
    CHECK_MESSAGE(errors.find(str("rank ", rank, ": ")) != std::string::npos, errors);
  CHECK_MESSAGE(errors.find("rank 0 is on 'north', rank 2 on 'south'") != std::string::npos,
                errors);
  const std::string space = meet(2, [](int rank) { return Host{rank, "north"}; });
  CHECK_MESSAGE(space.find("another container") != std::string::npos, space);
}

TEST_CASE("A c10d store: a rank that does not come is an error of the group") {
  auto store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(std::chrono::milliseconds(200));
  CHECK_THROWS_WITH_AS(join_by_store(*store, {.rank = 0, .size = 2, .timeout = 1}),
                       doctest::Contains("did not meet in c10d's store"), WorldError);
}
