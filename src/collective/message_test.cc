#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "collective/group.h"
#include "collective/test_ranks.h"

using namespace tutti;
using namespace tutti::collective;

namespace {

constexpr const char* transports[] = {"threads", "shm", "tcp", "gloo"};

void require(bool holds, const char* what) {
  if (!holds) throw WorldError(what);
}

// The text of what the work throws.
std::string failure(Work& work) {
  try {
    work.wait();
  } catch (const WorldError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("Messages: a receive that waits holds up nothing else") {
  for (const char* transport : transports)
    CHECK(on_groups(transport, 3, [](Group& group) {
            at::Tensor early = at::zeros({5}), late = at::zeros({50000}), sum = at::ones({100});
            if (group.rank() == 0) {
              const auto first = group.recv_async(late, 1);
              group.recv(early, 2);
              group.all_reduce(sum);
              require(!first->done(), "came before it was sent");
              group.send(early, 1);
              first->wait();
              require(late.eq(1).all().item<bool>() && early.eq(2).all().item<bool>(), "contents");
              return;
            }
            if (group.rank() == 2) group.send(at::full({5}, 2.0f), 0);
            group.all_reduce(sum);
            if (group.rank() == 1) {
              group.recv(early, 0);
              group.send(at::ones({50000}), 0);
            }
          }) == "");
}

TEST_CASE("Messages: in order between two ranks, both ways at once, of any length") {
  for (const char* transport : transports)
    CHECK(on_groups(transport, 2, [](Group& group) {
            const int peer = 1 - group.rank();
            std::vector<std::shared_ptr<Work>> works;
            std::vector<at::Tensor> got;
            for (int i = 0; i < 20; ++i) {
              const std::int64_t count = i * i * 300;
              works.push_back(group.send_async(at::full({count}, i + peer * 100, at::kInt), peer));
              got.push_back(at::empty({count}, at::kInt));
              works.push_back(group.recv_async(got.back(), peer));
            }
            for (const auto& work : works) work->wait();
            for (int i = 0; i < 20; ++i)
              require(
                  got[static_cast<std::size_t>(i)].eq(i + group.rank() * 100).all().item<bool>(),
                  "another message");
          }) == "");
}

TEST_CASE("Messages: a short send ends without its receive") {
  for (const char* transport : {"threads", "shm"})
    CHECK(on_groups(transport, 2, [](Group& group) {
            at::Tensor mine = at::full({32768}, group.rank(), at::kFloat),
                       theirs = at::empty({32768});
            group.send(mine, 1 - group.rank());
            group.recv(theirs, 1 - group.rank());
            require(theirs.eq(1 - group.rank()).all().item<bool>(), "contents");
          }) == "");
}

TEST_CASE("Messages: one that does not come is named at the deadline") {
  for (const char* transport : {"shm", "tcp", "gloo"}) {
    const std::string errors = on_groups(
        transport, 2,
        [](Group& group) {
          group.barrier();
          at::Tensor data = at::empty({4});
          if (group.rank() == 0) group.recv(data, 1);
          if (group.rank() == 1) real_clock().sleep(3.5);
        },
        3);  // also the time to meet in, on a busy machine
    CHECK_MESSAGE(errors.find(str(transport,
                                  " group 'world', rank 0 of 2, recv from rank 1 (16 "
                                  "bytes): ")) != std::string::npos,
                  errors);
  }
}

TEST_CASE("Messages: abort ends a receive that waits, and whatever comes after") {
  for (const char* transport : transports)
    CHECK(on_groups(transport, 2, [](Group& group) {
            const auto work = group.recv_async(at::empty({4}), 1 - group.rank());
            real_clock().sleep(0.05);
            group.abort("had enough");
            const double start = real_clock().now();
            require(failure(*work).find("had enough") != std::string::npos, "the reason is lost");
            require(real_clock().now() - start < 2, "waited");
            require(!failure(*group.send_async(at::empty({4}), 1 - group.rank())).empty(), "sent");
            require(!failure(*group.all_reduce_async(at::empty({4}))).empty(), "reduced");
          }) == "");
}
