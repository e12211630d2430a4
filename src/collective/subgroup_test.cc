#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "collective/group.h"
#include "collective/test_ranks.h"

using namespace tutti;
using namespace tutti::collective;

namespace {

void require(bool holds, const std::string& what) {
  if (!holds) throw WorldError(what);
}

// The ranks that differ from `rank` in the axis of this stride only; all axes have two places.
std::vector<int> along(int rank, int stride) {
  const int first = rank / stride % 2 ? rank - stride : rank;
  return {first, first + stride};
}

// All groups of a mesh with axes of two at work at the same time.
void check_mesh(Group& world) {
  std::vector<std::shared_ptr<Group>> groups;
  std::vector<std::vector<int>> members;
  for (int stride = 1; stride < world.size(); stride *= 2) {
    members.push_back(along(world.rank(), stride));
    groups.push_back(world.subgroup(members.back(), str("axis", stride)));
    require(members.back()[static_cast<std::size_t>(groups.back()->rank())] == world.rank(),
            "its rank");
  }
  for (int round = 0; round < 20; ++round) {
    std::vector<at::Tensor> sums;
    std::vector<std::shared_ptr<Work>> works;
    for (const auto& group : groups) {
      sums.push_back(at::full({1 + round * 500}, world.rank() + round, at::kLong));
      works.push_back(group->all_reduce_async(sums.back()));
    }
    at::Tensor total = at::full({100}, world.rank(), at::kLong);
    world.all_reduce(total);
    require(total.eq(world.size() * (world.size() - 1) / 2).all().item<bool>(), "the world's sum");
    for (std::size_t axis = 0; axis < groups.size(); ++axis) {
      works[axis]->wait();
      const auto expected = std::accumulate(members[axis].begin(), members[axis].end(), 2 * round);
      require(sums[axis].eq(expected).all().item<bool>(), groups[axis]->name());
    }
  }
}

TEST_CASE(
    "calls are told with their bytes, those of subgroups too, before and after they are made") {
  auto groups = make_thread_groups(2);
  std::vector<std::string> told[2];
  const std::string errors = on_threads(2, [&](int rank) {
    Group& world = *groups[static_cast<std::size_t>(rank)];
    const auto early = world.subgroup({0, 1}, "early");
    world.on_call([&told = told[rank]](const Call& call) {
      told.push_back(str(call.group.name(), " ", call.operation, " ", call.bytes));
    });
    const auto late = world.subgroup({rank}, "late");
    const comm::ReductionPlan plan = comm::plan_reduction(comm::even_ranges(2, 2));
    const at::Tensor data = at::zeros({6}), half = data.narrow(0, 3 * rank, 3);
    early->all_reduce(data);
    early->tree_all_reduce({data}, data, plan);
    early->tree_reduce_scatter({data}, half, {3, 3}, plan);
    early->all_gather_v(half, data, {3, 3});
    early->all_to_all_v(at::zeros({2}), at::zeros({2}), {1, 1}, {1, 1});
    late->broadcast(data, 0);
    if (rank == 0)
      world.send(data, 1);
    else
      world.recv(data, 0);
    world.on_call({});
    world.barrier();
  });
  CHECK(errors == "");
  for (int rank = 0; rank < 2; ++rank) {
    const std::string early = "early (ranks 0, 1) ";
    const std::vector<std::string> expected{
        "world all_gather 32",  // the lists of a subgroup's members
        early + "all_reduce 24",
        early + "tree_all_reduce 24",
        early + "tree_reduce_scatter 24",
        early + "all_gather_v 24",
        early + "all_to_all_v 8",
        str("late (rank ", rank, ") broadcast 24"),
        rank == 0 ? "world send 24" : "world recv 24"};
    CHECK(told[rank] == expected);
  }
}

}  // namespace

TEST_CASE("Subgroups: the axes of a mesh work at the same time") {
  CHECK(on_groups("threads", 8, check_mesh) == "");
  CHECK(on_groups("shm", 8, check_mesh) == "");
  CHECK(on_groups("auto", 4, check_mesh) == "");
  CHECK(on_groups("gloo", 4, check_mesh) == "");
  CHECK(on_groups("hosts", 4, [](Group& world) {
          check_mesh(world);
          const auto local = world.subgroup(along(world.rank(), 1), "local");
          require(world.transport() == "tcp" && local->transport() == "tcp", "transport");
        }) == "");
  CHECK(on_groups("pairs", 4, [](Group& world) {
          check_mesh(world);
          const auto local = world.subgroup(along(world.rank(), 1), "local");
          const auto across = world.subgroup(along(world.rank(), 2), "across");
          require(world.transport() == "shm+tcp", "levels");
          require(local->transport() == "shm" && across->transport() == "tcp", "transport");
        }) == "");
}

TEST_CASE("Subgroups: of any lists, also of one, in the order of the list") {
  for (const char* transport : {"threads", "shm", "tcp", "pairs", "gloo"})
    CHECK(on_groups(transport, 3, [](Group& world) {
            const auto group =
                world.rank() == 0 ? world.subgroup({0}, "part") : world.subgroup({2, 1}, "part");
            at::Tensor mine = at::full({2}, world.rank(), at::kInt);
            const at::Tensor all = group->all_gather(mine);
            if (world.rank() == 0) {
              require(group->size() == 1 && all.equal(mine.view({1, 2})), "of one");
              require(group->name() == "part (rank 0)", group->name());
              at::Tensor out = at::empty({2}, at::kInt);
              group->all_to_all_v(mine, out, {2}, {2});
              require(out.equal(mine), "a copy");
            } else {
              require(group->size() == 2 && group->rank() == 2 - world.rank(), "rank");
              require(all[0].eq(2).all().item<bool>() && all[1].eq(1).all().item<bool>(), "order");
              require(group->name() == "part (ranks 2, 1)", group->name());
            }
            world.subgroup({world.rank()}, "part")->barrier();  // the same name again
          }) == "");
}

TEST_CASE("Subgroups: lists that differ are named") {
  const std::string errors = on_groups("threads", 2, [](Group& world) {
    if (world.rank() == 0)
      world.subgroup({0, 1}, "data");
    else
      world.subgroup({1}, "data");
  });
  CHECK(
      errors ==
      "rank 0: group 'world', rank 0: rank 1 does not ask for the subgroup 'data (ranks 0, 1)'\n");
}

TEST_CASE("Subgroups: an error names the group; aborting the world ends its parts") {
  for (const char* transport : {"threads", "shm"}) {
    const std::string errors = on_groups(transport, 4, [](Group& world) {
      const auto group = world.subgroup(along(world.rank(), 2), "tensor");
      if (world.rank() == 1) return world.abort("rank 1 had enough");
      if (world.rank() == 3) group->barrier();
    });
    CHECK_MESSAGE(errors.find(str("rank 3: ", transport,
                                  " group 'tensor (ranks 1, 3)', rank 1 of 2, barrier #")) == 0,
                  errors);
    CHECK(errors.find("rank 1 had enough") != std::string::npos);
    CHECK(errors.find("rank 2:") == std::string::npos);
  }
}

TEST_CASE("Subgroups: real processes; a killed one is named by its group only") {
  const std::string name = str("mesh-", getpid());
  std::vector<pid_t> children;
  std::vector<int> pipes;
  for (int rank = 0; rank < 4; ++rank) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const pid_t child = fork();
    if (child == 0) {
      std::string text = "good";
      try {
        auto options = options_of("auto", rank, 4, 1);
        options.name = name;
        const auto world = make_group(options);
        check_mesh(*world);
        const auto group = world->subgroup(along(rank, 2), "replica");
        world->barrier();
        if (rank == 1) kill(getpid(), SIGKILL);
        for (int i = 0; i < (rank == 3 ? 1 << 30 : 100); ++i) group->barrier();
      } catch (const std::exception& error) {
        text = error.what();
      }
      [[maybe_unused]] const auto n = write(ends[1], text.data(), text.size());
      _exit(0);
    }
    close(ends[1]);
    children.push_back(child);
    pipes.push_back(ends[0]);
  }
  std::vector<std::string> texts;
  for (const int end : pipes) {
    char buffer[1024] = {};
    texts.emplace_back(
        buffer, static_cast<std::size_t>(std::max<ssize_t>(0, read(end, buffer, sizeof buffer))));
    close(end);
  }
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  CHECK(texts[0] == "good");
  CHECK(texts[2] == "good");
  CHECK_MESSAGE(
      texts[3].find(str("'replica (ranks 1, 3)', rank 1 of 2, barrier #")) != std::string::npos,
      texts[3]);
  CHECK_MESSAGE(
      texts[3].find(str("rank 0 (process ", children[1], ") has ended")) != std::string::npos,
      texts[3]);
}

TEST_CASE("Groups: subgroups of subgroups, alike in all but their ranks") {
  for (const char* transport : {"threads", "shm", "tcp", "pairs", "gloo"})
    CHECK(on_groups(transport, 4, [&](Group& group) {
            const int rank = group.rank();
            const bool low = rank < 2;
            const auto half = group.subgroup(low ? std::vector{0, 1} : std::vector{2, 3}, "half");
            const auto whole = half->subgroup({0, 1}, "data");
            const auto crossed =
                group.subgroup(low ? std::vector{0, 1} : std::vector{2, 3}, "data");
            require(whole->name() == (low ? "data (ranks 0, 1)" : "data (ranks 2, 3)"), "its name");
            for (const auto& one : {whole, crossed}) {
              const at::Tensor sum = at::full({1}, rank, at::kInt);
              one->all_reduce(sum);
              require(sum.item<int>() == (low ? 1 : 5), "its sum");
            }
          }) == "");
}

TEST_CASE("Groups: uneven parts of tensors, in and out of place") {
  const auto plan = comm::plan_reduction(comm::even_ranges(3, 2));
  const at::Tensor leaves = at::rand({3, 5001});
  const at::Tensor expected = (leaves[0] + leaves[1]) + leaves[2];
  for (const char* transport : {"threads", "shm", "tcp", "pairs", "gloo"})
    CHECK(on_groups(transport, 2, [&](Group& group) {
            const int rank = group.rank();
            const Counts counts{4990, 11};
            const auto mine = [&](at::Tensor& whole) {
              return whole.narrow(0, rank ? counts[0] : 0, counts[static_cast<std::size_t>(rank)]);
            };
            at::Tensor node = rank == 0 ? leaves[0] + leaves[1] : leaves[2].clone();
            at::Tensor part = mine(node), whole = at::zeros({5001});
            const auto reduced = group.tree_reduce_scatter_async({node}, part, counts, plan);
            const auto gathered = group.all_gather_v_async(part, whole, counts);
            gathered->wait();
            require(reduced->done() && whole.equal(expected), "other bits");
            group.all_gather_v(mine(whole), whole, counts);
            require(whole.equal(expected), "gathered in place");
            group.reduce_scatter_v(whole, part, counts, comm::Reduce::max);
            at::Tensor same = expected;
            require(part.equal(mine(same)), "reduce_scatter_v");
            const at::Tensor sent = at::full({3}, rank, at::kInt);
            at::Tensor received = at::empty({rank ? 4 : 2}, at::kInt);
            group.all_to_all_v(sent, received, {1, 2}, rank ? Counts{2, 2} : Counts{1, 1});
            require(received.narrow(0, 0, rank ? 2 : 1).eq(0).all().item<bool>() &&
                        received.narrow(0, rank ? 2 : 1, rank ? 2 : 1).eq(1).all().item<bool>(),
                    "all_to_all_v");
          }) == "");
}
