#include "train/thread_ranks.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"

namespace tutti::train {

std::string on_thread_ranks(
    int ranks, const std::function<void(int, std::shared_ptr<collective::Group>)>& body) {
  const auto groups = collective::make_thread_groups(ranks);
  const int threads = std::max(1, at::get_num_threads() / ranks);
  std::mutex mutex;
  std::string failure;
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
      } catch (const c10::Error& error) {
        failed(error.what_without_backtrace());
      } catch (const std::exception& error) {
        failed(error.what());
      }
    });
  for (std::thread& thread : all) thread.join();
  return failure;
}

}  // namespace tutti::train
