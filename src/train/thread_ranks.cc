#include "train/thread_ranks.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/memory_group.h"
#include "train/failure.h"

namespace tutti::train {

std::string on_thread_ranks(
    int ranks, const std::function<void(int, std::shared_ptr<collective::Group>)>& body) {
  if (ranks > comm::max_memory_ranks)
    throw ConfigError({{"parallel.workers", "", str(ranks),
                        str("must not be above ", comm::max_memory_ranks,
                            " here, where all ranks are threads of one process"),
                        "smaller degrees show the same"}});
  const auto groups = collective::make_thread_groups(ranks);
  const int threads = std::max(1, at::get_num_threads() / ranks);
  std::mutex mutex;
  std::string failure;
  std::atomic<bool> starved = false;
  std::vector<std::thread> all;
  for (int rank = 0; rank < ranks; ++rank)
    all.emplace_back([&, rank] {
      const auto& group = groups[static_cast<std::size_t>(rank)];
      const auto failed = [&](const std::string& what) {
        {
          const std::lock_guard lock(mutex);
          if (failure.empty()) failure = str("rank ", rank, ": ", what);
        }
        group->abort(str("rank ", rank, " failed"));
      };
      try {
        at::set_num_threads(threads);
        body(rank, group);
      } catch (const std::exception& error) {
        starved = starved || out_of_memory(error);
        failed(failure_text(error));
      }
    });
  for (std::thread& thread : all) thread.join();
  if (starved) throw WorldError(failure);
  return failure;
}

}  // namespace tutti::train
