#include "collective/comm_thread.h"

#include <exception>
#include <utility>

#include "base/error.h"

namespace tutti::collective {

CommThread::CommThread(std::unique_ptr<comm::Communicator> communicator)
    : communicator_(std::move(communicator)), thread_([this] { loop(); }) {}

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
    jobs_.push_back({std::move(task), std::move(done)});
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
    std::exception_ptr error;
    try {
      job.task(*communicator_);
    } catch (...) {
      error = std::current_exception();
    }
    job.task = nullptr;  // lets go of the tensors before the waiter goes on
    job.done(error);
  }
}

}  // namespace tutti::collective
