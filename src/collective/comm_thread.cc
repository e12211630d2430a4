#include "collective/comm_thread.h"

#include <exception>
#include <utility>

#include "base/error.h"

namespace tutti::collective {

CommThread::CommThread(std::shared_ptr<comm::Communicator> communicator)
    : communicator_(std::move(communicator)) {
  if (communicator_->size() > 1) thread_ = std::thread([this] { loop(); });
}

CommThread::~CommThread() { finish(); }

void CommThread::finish() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void CommThread::start(Task task, Done done) {
  {
    std::unique_lock lock(mutex_);
    if (stopping_) {
      lock.unlock();
      return done(std::make_exception_ptr(WorldError("the group has ended")));
    }
    Job job{std::move(task), std::move(done)};
    if (communicator_->size() == 1) return run(job);
    jobs_.push_back(std::move(job));
  }
  wake_.notify_one();
}

void CommThread::loop() {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    run(job);
  }
}

void CommThread::run(Job& job) {
  std::exception_ptr error;
  try {
    job.task(*communicator_);
  } catch (...) {
    error = std::current_exception();
  }
  job.task = nullptr;  // lets go of the tensors before the waiter goes on
  job.done(error);
}

CommThreads::CommThreads(std::unique_ptr<comm::Communicator> communicator)
    : communicator_(std::move(communicator)), collectives_(communicator_) {}

void CommThreads::start_message(Lane lane, Task task, Done done) {
  std::unique_lock lock(mutex_);
  if (finished_) {
    lock.unlock();
    return done(std::make_exception_ptr(WorldError("the group has ended")));
  }
  CommThread& thread = messages_.try_emplace(lane, communicator_).first->second;
  thread.start(std::move(task), std::move(done));
}

void CommThreads::finish() {
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  collectives_.finish();
  for (auto& [lane, thread] : messages_) thread.finish();
}

}  // namespace tutti::collective
