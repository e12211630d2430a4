// Collectives on tensors: a Communicator with a thread that runs its operations in order, so that
// they overlap with compute. What the engines talk to.
//
// Operations start in the order in which they are called and end in that order. Tensors must be
// contiguous and on the CPU; they are kept alive until the work ends and must not be touched
// before.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace tutti::collective {

class CommThread;

// A started operation. Dropping it does not stop the operation.
class Work {
 public:
  virtual ~Work() = default;
  virtual bool done() const = 0;
  // Returns when the operation has ended; rethrows its WorldError. Deadlines are the operation's.
  virtual void wait() = 0;
};

class Group {
 public:
  // Takes the communicator; its calls all happen on this group's thread from now on.
  explicit Group(std::unique_ptr<comm::Communicator> communicator);
  // Ends what was started (at the latest by the deadline), then the thread.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const;
  int size() const;
  // "shm", "threads", "gloo".
  std::string transport() const;

  // Communicator::tree_all_reduce on tensors of one dtype and size. `plan` must outlive the work.
  std::shared_ptr<Work> tree_all_reduce_async(std::vector<at::Tensor> nodes, at::Tensor out,
                                              const comm::ReductionPlan& plan);
  std::shared_ptr<Work> all_reduce_async(at::Tensor data, comm::Reduce reduce = comm::Reduce::sum);
  std::shared_ptr<Work> broadcast_async(at::Tensor data, int root);

  // The same, waited for.
  void tree_all_reduce(std::vector<at::Tensor> nodes, at::Tensor out,
                       const comm::ReductionPlan& plan);
  void all_reduce(at::Tensor data, comm::Reduce reduce = comm::Reduce::sum);
  void broadcast(at::Tensor data, int root);
  // [size, ...]: every rank's `data`, equal shapes.
  at::Tensor all_gather(at::Tensor data);
  void barrier();

  // A zeroed tensor in memory that all ranks reach, so that collectives on it need no staging copy;
  // ordinary memory where the transport has none. Its memory lives as long as group and tensor.
  at::Tensor empty_shared(std::int64_t count, at::ScalarType type);

  // The same group as a c10d backend (operations go through the same thread, in order).
  c10::intrusive_ptr<c10d::Backend> backend();

  // All ranks' waiting and later operations throw WorldError with this reason. From any thread.
  void abort(const std::string& reason);

 private:
  std::shared_ptr<CommThread> thread_;
  c10::intrusive_ptr<c10d::Backend> backend_;
};

// How the ranks of a job meet.
struct GroupOptions {
  std::string transport = "auto";  // shm | gloo | auto (shm when all ranks are on this host)
  int rank = 0, size = 1;
  int local_size = 1;                     // ranks on this host; auto compares it with size
  std::string name = "tutti";             // unique to job and group; the same on all ranks (shm)
  std::string host = "127.0.0.1";         // of rank 0's store (gloo)
  int port = 0;                           // of rank 0's store (gloo); on rank 0, 0: any free one
  std::function<void(int)> publish = {};  // rank 0: told the port, once it listens
  std::string group = "world";            // what errors call it
  double timeout = 300;                   // seconds, for meeting and for every operation
};

// ConfigError for an unknown transport, WorldError when the peers do not come or the port is taken.
std::shared_ptr<Group> make_group(const GroupOptions& options);

// Groups for `size` threads of this process (tests); entry r is rank r's.
std::vector<std::shared_ptr<Group>> make_thread_groups(int size);

}  // namespace tutti::collective
