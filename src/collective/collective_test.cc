#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "collective/gloo.h"
#include "collective/group.h"
#include "collective/test_ranks.h"
#include "comm/conformance.h"

using namespace tutti;
using namespace tutti::collective;

namespace {

std::string as_bytes(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

void check_group(Group& group) {
  const int rank = group.rank(), size = group.size();
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw WorldError(what);
  };
  at::Tensor one = at::full({1000}, rank + 1, at::kFloat), other = at::full({3}, rank, at::kLong);
  auto first = group.all_reduce_async(one);
  auto second = group.broadcast_async(other, size - 1);
  second->wait();
  require(first->done(), "operations end in order");
  require(one.eq(size * (size + 1) / 2).all().item<bool>(), "all_reduce");
  require(other.eq(size - 1).all().item<bool>(), "broadcast");
  const at::Tensor all = group.all_gather(at::full({2, 2}, rank, at::kInt));
  require(
      all.sizes() == at::IntArrayRef({size, 2, 2}) && all[size - 1].eq(size - 1).all().item<bool>(),
      "all_gather");
  at::Tensor shared = group.empty_shared(5000, at::kDouble);
  shared.fill_(rank);
  group.all_reduce(shared, comm::Reduce::max);
  require(shared.eq(size - 1).all().item<bool>(), "shared memory");
  group.barrier();
}

void check_backend(c10d::Backend& backend) {
  const int rank = backend.getRank(), size = backend.getSize();
  std::vector<at::Tensor> data{at::full({7}, 1.0)};
  backend.allreduce(data)->wait();
  at::Tensor in = at::arange(size * 2, at::kFloat) + rank, out = at::empty({2}, at::kFloat);
  backend._reduce_scatter_base(out, in)->wait();
  at::Tensor all = at::empty({size * 2}, at::kFloat);
  backend._allgather_base(all, out)->wait();
  const at::Tensor expected = at::arange(size * 2, at::kFloat) * size + size * (size - 1) / 2;
  std::vector<std::vector<at::Tensor>> lists{{}};
  for (int r = 0; r < size; ++r) lists[0].push_back(at::empty({2}, at::kFloat));
  std::vector<at::Tensor> mine{out};
  backend.allgather(lists, mine)->wait();
  at::Tensor swapped = at::empty_like(all);
  std::vector<std::int64_t> equal;
  backend.alltoall_base(swapped, in, equal, equal)->wait();
  // Rank r sends r + 1 rows of two to each rank.
  std::vector<std::int64_t> sent(static_cast<std::size_t>(size), rank + 1), received;
  for (int r = 0; r < size; ++r) received.push_back(r + 1);
  at::Tensor rows = at::full({size * (rank + 1), 2}, rank, at::kInt);
  at::Tensor uneven = at::empty({size * (size + 1) / 2, 2}, at::kInt);
  backend.alltoall_base(uneven, rows, received, sent)->wait();
  for (int r = 0, row = 0; r < size; row += ++r)
    if (!uneven.narrow(0, row, r + 1).eq(r).all().item<bool>()) throw WorldError("uneven");
  if (size > 1) {  // around the ring
    std::vector<at::Tensor> token{at::full({3}, rank, at::kFloat)}, got{at::empty({3})};
    const auto sending = backend.send(token, (rank + 1) % size, 0);
    backend.recv(got, (rank + size - 1) % size, 0)->wait();
    sending->wait();
    if (!got[0].eq((rank + size - 1) % size).all().item<bool>()) throw WorldError("ring");
  }
  backend.barrier()->wait();
  if (!data[0].eq(size).all().item<bool>() || !all.equal(expected) ||
      !at::cat(lists[0]).equal(expected) ||
      swapped[0].item<float>() != static_cast<float>(rank * 2))
    throw WorldError("backend");
}

}  // namespace

TEST_CASE("Conformance: Gloo") {
  for (const int size : {1, 2, 3, 7}) {
    const int port = free_port();
    CHECK(on_threads(size, [&](int rank) {
            auto communicator = join(options_of("gloo", rank, size, port));
            if (size < 7)
              comm::check_conformance(*communicator);
            else
              comm::check_parts(*communicator);
          }) == "");
  }
}

TEST_CASE("Tree sums over Gloo have the bits of every other transport") {
  for (const int size : {1, 2, 3, 5, 7}) {
    const int port = free_port();
    CHECK(on_threads(size, [&](int rank) {
            auto communicator = join(options_of("gloo", rank, size, port));
            for (const DType type : {DType::f32, DType::f64, DType::bf16})
              if (comm::tree_sum(*communicator, 13, 1001, type) !=
                  comm::tree_sum_twin(13, 1001, type))
                throw WorldError("other bits");
          }) == "");
  }
}

TEST_CASE("auto is shared memory for as many ranks of one host as it takes") {
  const auto in_memory = [](const char* transport, int local, int size) {
    return GroupOptions{.transport = transport, .size = size, .local_size = local}.in_memory();
  };
  CHECK(in_memory("auto", 64, 64));
  CHECK(!in_memory("auto", 65, 65));
  CHECK(!in_memory("auto", 2, 4));
  CHECK(in_memory("shm", 65, 65));  // and refused where it is made
  CHECK(!in_memory("gloo", 2, 2));
}

TEST_CASE("Group and c10d backend: shm, gloo, threads") {
  for (const char* transport : {"shm", "gloo", "tcp", "auto"})
    for (const int size : {1, 2, 3}) {
      const int port = free_port();
      CHECK(on_threads(size, [&](int rank) {
              auto group = make_group(options_of(transport, rank, size, port));
              check_group(*group);
              check_backend(*group->backend());
            }) == "");
    }
  const auto groups = make_thread_groups(5);
  CHECK(on_threads(5, [&](int rank) {
          check_group(*groups[static_cast<std::size_t>(rank)]);
          check_backend(*groups[static_cast<std::size_t>(rank)]->backend());
        }) == "");
}

TEST_CASE("tree_all_reduce of tensors: asynchronous, in place, equal to the tree by hand") {
  const auto plan = comm::plan_reduction(comm::even_ranges(3, 2));
  const at::Tensor leaves = at::rand({3, 5001});
  const at::Tensor expected = (leaves[0] + leaves[1]) + leaves[2];
  const auto groups = make_thread_groups(2);
  CHECK(on_threads(2, [&](int rank) {
          at::Tensor mine = rank == 0 ? leaves[0] + leaves[1] : leaves[2].clone();
          auto work =
              groups[static_cast<std::size_t>(rank)]->tree_all_reduce_async({mine}, mine, plan);
          work->wait();
          if (as_bytes(mine) != as_bytes(expected)) throw WorldError("other bits");
        }) == "");
}

TEST_CASE("A failing peer ends the others' waits; a taken port and a wrong name are said") {
  const auto groups = make_thread_groups(2);
  const std::string errors = on_threads(2, [&](int rank) {
    if (rank == 1) return groups[1]->abort("rank 1 had enough");
    groups[0]->barrier();
  });
  CHECK_MESSAGE(errors.find("rank 1 had enough") != std::string::npos, errors);
  const Port port = taken_port();
  CHECK_THROWS_WITH_AS(make_group(options_of("gloo", 0, 1, port.number)),
                       doctest::Contains("is taken"), WorldError);
  close(port.socket_fd);
  CHECK_THROWS_AS(make_group(options_of("pigeon", 0, 1, 1)), ConfigError);
  CHECK_THROWS_AS(make_group(options_of("gloo", 0, 1, 0)), ConfigError);
}

TEST_CASE("Gloo: a killed peer is named") {
  const int port = free_port();
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const std::string name = str("kill-", getpid());
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      try {
        auto options = options_of("gloo", rank, 2, port);
        options.name = name;
        auto communicator = join(options);
        communicator->barrier();
        if (rank == 1) kill(getpid(), SIGKILL);
        std::vector<float> data(1000);
        for (;;) communicator->all_reduce(data.data(), 1000, DType::f32, comm::Reduce::sum);
      } catch (const std::exception& error) {
        [[maybe_unused]] const auto n = write(ends[1], error.what(), std::strlen(error.what()));
      }
      _exit(0);
    }
    children.push_back(child);
  }
  close(ends[1]);
  std::string text;
  char buffer[1024];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  close(ends[0]);
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  CHECK_MESSAGE(text.find("rank 1 (process ") != std::string::npos, text);
  CHECK_MESSAGE(text.find("all_reduce #") != std::string::npos, text);
}

TEST_CASE("group: it may go while an operation on its shared memory is under way") {
  auto groups = make_thread_groups(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      auto group = std::move(groups[static_cast<std::size_t>(rank)]);
      at::Tensor kept = group->empty_shared(1000, at::kFloat).fill_(1);
      {
        const at::Tensor dropped = group->empty_shared(1 << 20, at::kFloat);
        group->all_reduce_async(dropped);
        group->all_reduce_async(kept);
      }
      group.reset();
      CHECK(kept.sum().item<float>() == 2000);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("group: a backend that outlives its group says so") {
  auto groups = make_thread_groups(2);
  std::vector<c10::intrusive_ptr<c10d::Backend>> backends{groups[0]->backend(),
                                                          groups[1]->backend()};
  at::Tensor first = at::ones({100}), second = at::ones({100});
  std::vector<at::Tensor> a{first}, b{second};
  const auto work_a = backends[0]->allreduce(a), work_b = backends[1]->allreduce(b);
  groups.clear();  // ends what was started
  CHECK(first.sum().item<float>() == 200);
  CHECK(second.sum().item<float>() == 200);
  CHECK_THROWS_WITH(backends[0]->allreduce(a)->wait(), doctest::Contains("the group has ended"));
}
