// One thread a group that owns its communicator and runs what it is given, in order.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/communicator.h"

namespace tutti::collective {

class CommThread {
 public:
  using Task = std::function<void(comm::Communicator&)>;
  // Called on the thread after the task, with its exception if it threw one.
  using Done = std::function<void(std::exception_ptr)>;

  explicit CommThread(std::unique_ptr<comm::Communicator> communicator);
  ~CommThread();  // finishes
  CommThread(const CommThread&) = delete;
  CommThread& operator=(const CommThread&) = delete;

  // After finish() the task is not run, and `done` is told so at once.
  void start(Task task, Done done);
  // Runs what is queued, then ends the thread. Not from the thread itself.
  void finish();

  // For what is allowed from any thread: rank, size, names, abort, allocate_shared.
  comm::Communicator& communicator() { return *communicator_; }
  // For what lies in its shared memory and may outlive this thread.
  const std::shared_ptr<comm::Communicator>& owner() const { return communicator_; }

 private:
  struct Job {
    Task task;
    Done done;
  };
  void loop();

  std::shared_ptr<comm::Communicator> communicator_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tutti::collective
