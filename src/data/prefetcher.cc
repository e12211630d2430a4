#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "data/sampler.h"

namespace tutti::data {

struct Prefetcher::State {
  const Sampler& sampler;
  std::int64_t batch;
  std::function<std::uint64_t(std::uint64_t)> positions;
  std::size_t depth;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Batch> ready;
  std::exception_ptr failure;
  bool stopping = false;
  std::thread thread;

  Batch make(std::uint64_t index) const {
    const auto sequence = static_cast<std::size_t>(sampler.sequence());
    const std::size_t size = sequence * static_cast<std::size_t>(batch);
    Batch made{positions(index), std::vector<std::int32_t>(size), std::vector<std::int32_t>(size),
               std::vector<std::int32_t>(size)};
    for (std::size_t row = 0; row < static_cast<std::size_t>(batch); ++row)
      sampler.fill(made.first + row, std::span(made.inputs).subspan(row * sequence, sequence),
                   std::span(made.targets).subspan(row * sequence, sequence),
                   std::span(made.documents).subspan(row * sequence, sequence));
    return made;
  }

  void work() {
    for (std::uint64_t index = 0;; ++index) {
      Batch made;
      std::exception_ptr error;
      try {
        made = make(index);
      } catch (...) {
        error = std::current_exception();
      }
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return stopping || ready.size() < depth; });
      if (stopping) return;
      if (error)
        failure = error;
      else
        ready.push_back(std::move(made));
      changed.notify_all();
      if (error) return;
    }
  }
};

Prefetcher::Prefetcher(const Sampler& sampler, std::int64_t batch,
                       std::function<std::uint64_t(std::uint64_t index)> positions, int depth)
    : state_(new State{.sampler = sampler,
                       .batch = batch,
                       .positions = std::move(positions),
                       .depth = static_cast<std::size_t>(depth),
                       .mutex = {},
                       .changed = {},
                       .ready = {},
                       .failure = {},
                       .stopping = false,
                       .thread = {}}) {
  TUTTI_ASSERT(batch > 0 && depth > 0, "batch ", batch, ", depth ", depth);
  state_->thread = std::thread([state = state_.get()] { state->work(); });
}

Prefetcher::~Prefetcher() { stop(); }

Batch Prefetcher::next() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(
      lock, [&] { return !state_->ready.empty() || state_->failure || state_->stopping; });
  if (state_->ready.empty() && state_->failure) std::rethrow_exception(state_->failure);
  TUTTI_ASSERT(!state_->ready.empty(), "next() after stop()");
  Batch batch = std::move(state_->ready.front());
  state_->ready.pop_front();
  state_->changed.notify_all();
  return batch;
}

void Prefetcher::stop() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
}

}  // namespace tutti::data
