// The threads of a group: each runs what it is given, in order.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/communicator.h"

namespace tutti::collective {

class CommThread {
 public:
  using Task = std::function<void(comm::Communicator&)>;
  // Called on the thread after the task, with its exception if it threw one.
  using Done = std::function<void(std::exception_ptr)>;

  explicit CommThread(std::shared_ptr<comm::Communicator> communicator);
  ~CommThread();  // finishes
  CommThread(const CommThread&) = delete;
  CommThread& operator=(const CommThread&) = delete;

  // After finish() the task is not run, and `done` is told so at once. With a group of one, which
  // waits for nobody, it runs here and now.
  void start(Task task, Done done);
  // Runs what is queued, then ends the thread. Not from the thread itself.
  void finish();

 private:
  struct Job {
    Task task;
    Done done;
  };
  void loop();
  void run(Job& job);

  std::shared_ptr<comm::Communicator> communicator_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  bool stopping_ = false;
  std::thread thread_;
};

// One thread for the collectives of a communicator and, once they are used, one a peer and
// direction for its messages, so that no message waits for another peer's.
class CommThreads {
 public:
  using Task = CommThread::Task;
  using Done = CommThread::Done;

  explicit CommThreads(std::unique_ptr<comm::Communicator> communicator);

  // As CommThread::start.
  void start(Task task, Done done) { collectives_.start(std::move(task), std::move(done)); }
  void start_send(int to, Task task, Done done) { start_message({to, true}, task, done); }
  void start_recv(int from, Task task, Done done) { start_message({from, false}, task, done); }
  // Runs what is queued, then ends the threads.
  void finish();

  // For what is allowed from any thread: rank, size, names, abort, allocate_shared.
  comm::Communicator& communicator() { return *communicator_; }
  // For what lies in its shared memory and may outlive these threads.
  const std::shared_ptr<comm::Communicator>& owner() const { return communicator_; }

 private:
  using Lane = std::pair<int, bool>;  // peer, whether to it
  void start_message(Lane lane, Task task, Done done);

  std::shared_ptr<comm::Communicator> communicator_;
  CommThread collectives_;
  std::mutex mutex_;  // of the two below
  std::map<Lane, CommThread> messages_;
  bool finished_ = false;
};

}  // namespace tutti::collective
