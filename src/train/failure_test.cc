#include "train/failure.h"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include "base/error.h"
#include "train/thread_ranks.h"

namespace tutti::train {

TEST_CASE("what libtorch says is said for a person, and a lack of memory with what to do") {
  const auto text_of = [](const auto& fail) {
    try {
      fail();
    } catch (const std::exception& error) {
      return failure_text(error) + (out_of_memory(error) ? " (memory)" : "");
    }
    return std::string("no error");
  };
  const std::string much = text_of([] { torch::empty({std::int64_t{1} << 46}); });
  CHECK(much.starts_with("out of memory: 256 TiB more were asked for; a smaller batch.micro"));
  CHECK(much.ends_with("(memory)"));
  CHECK(text_of([] { throw std::bad_alloc(); }).starts_with("out of memory; a smaller"));
  const std::string shapes = text_of([] { torch::mm(torch::ones({2, 3}), torch::ones({2, 3})); });
  CHECK(shapes.find("2x3") != std::string::npos);
  CHECK(shapes.find("frame #") == std::string::npos);
  CHECK(text_of([] { throw WorldError("a peer is gone"); }) == "a peer is gone");
}

TEST_CASE("ranks that are threads: no more than shared memory takes, and memory is no verdict") {
  CHECK_THROWS_WITH_AS(on_thread_ranks(65, [](int, const auto&) {}),
                       doctest::Contains("parallel.workers = 65: must not be above 64"),
                       ConfigError);
  const auto starve = [](int rank, const auto&) {
    if (rank == 1) torch::empty({std::int64_t{1} << 46});
  };
  CHECK_THROWS_WITH_AS(on_thread_ranks(2, starve), doctest::Contains("rank 1: out of memory"),
                       WorldError);
  const auto fail = [](int rank, const auto&) {
    if (rank == 1) throw WorldError("not this");
  };
  CHECK(on_thread_ranks(2, fail) == "rank 1: not this");
}

}  // namespace tutti::train
