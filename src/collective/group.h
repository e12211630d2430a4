// Collectives on tensors: a Communicator with a thread that runs its operations in order, so that
// they overlap with compute. What the engines talk to.
//
// Collectives start in the order in which they are called and end in that order; all ranks call the
// same ones in the same order. Messages (send, recv) are matched in order per sender and receiver
// and wait for nothing else: not for collectives, not for other peers, nor the other direction.
// Tensors must be contiguous and on the CPU; they are kept alive until the work ends and must not
// be touched before. Counts are elements.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace tutti::collective {

class CommThreads;
class Group;

// Elements of each rank's part, in rank order; zeros are allowed.
using Counts = std::vector<std::int64_t>;

// A started operation. Dropping it does not stop the operation.
class Work {
 public:
  virtual ~Work() = default;
  virtual bool done() const = 0;
  // Returns when the operation has ended; rethrows its WorldError. Deadlines are the operation's.
  virtual void wait() = 0;
};

// One operation as this rank asks its group for it.
struct Call {
  const Group& group;
  const char* operation;  // "all_reduce"
  std::int64_t bytes;     // of the largest buffer that this rank brings or gets
};

class Group {
 public:
  // How the members of a subgroup meet, once all have agreed on the list.
  struct Meeting {
    int rank, size;    // in the subgroup
    bool one_host;     // whether all its members can share memory
    std::string name;  // what errors call it
    std::string key;   // unique to the members and this subgroup
  };
  using Meet = std::function<std::unique_ptr<comm::Communicator>(const Meeting&)>;

  // Takes the communicator; its calls all happen on this group's threads from now on. Without
  // `meet` there are no subgroups.
  explicit Group(std::unique_ptr<comm::Communicator> communicator, Meet meet = {});
  // Ends what was started (at the latest by the deadline; abort() ends it sooner), then the
  // threads.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const;
  int size() const;
  // "shm", "threads", "gloo".
  std::string transport() const;
  // What errors call it: "world", "tensor (ranks 1, 3)".
  const std::string& name() const;

  // The group of the ranks `members` of this one (ascending or not: member i becomes rank i), with
  // this rank among them. All ranks call it in the same order, each with its own list; ranks with
  // other lists make other groups at the same time. A list of one makes a group that only copies.
  // WorldError when a member's list differs or does not come. Only of groups of make_group() and
  // make_thread_groups().
  std::shared_ptr<Group> subgroup(const std::vector<int>& members, const std::string& name);

  // Communicator::tree_all_reduce on tensors of one dtype and size. `plan` must outlive the work.
  std::shared_ptr<Work> tree_all_reduce_async(std::vector<at::Tensor> nodes, at::Tensor out,
                                              const comm::ReductionPlan& plan);
  std::shared_ptr<Work> all_reduce_async(at::Tensor data, comm::Reduce reduce = comm::Reduce::sum);
  std::shared_ptr<Work> broadcast_async(at::Tensor data, int root);
  // Of the same sum, cut in consecutive parts of counts[r] elements, this rank's part into `out`,
  // which may be that part of one of the nodes: the bits of tree_all_reduce.
  std::shared_ptr<Work> tree_reduce_scatter_async(std::vector<at::Tensor> nodes, at::Tensor out,
                                                  Counts counts, const comm::ReductionPlan& plan);
  // The same of one tensor a rank.
  std::shared_ptr<Work> reduce_scatter_v_async(at::Tensor in, at::Tensor out, Counts counts,
                                               comm::Reduce reduce = comm::Reduce::sum);
  // counts[r] elements of every rank r into `out`, in rank order. `in` may be its part of `out`.
  std::shared_ptr<Work> all_gather_v_async(at::Tensor in, at::Tensor out, Counts counts);
  // send[r] elements to rank r and recv[r] from it, both in rank order.
  std::shared_ptr<Work> all_to_all_v_async(at::Tensor in, at::Tensor out, Counts send, Counts recv);
  // The reduction of all ranks' `in` into `out` of rank `root`, which may be its `in`; the others'
  // `out` is not used and may be undefined.
  std::shared_ptr<Work> reduce_async(at::Tensor in, at::Tensor out, int root,
                                     comm::Reduce reduce = comm::Reduce::sum);
  // counts[r] elements of rank r into `out` of rank `root`; the others' `out` may be undefined.
  std::shared_ptr<Work> gather_v_async(at::Tensor in, at::Tensor out, Counts counts, int root);
  // Part r of `in` of rank `root` into `out` of rank r; the others' `in` may be undefined.
  std::shared_ptr<Work> scatter_v_async(at::Tensor in, at::Tensor out, Counts counts, int root);
  // A message of the tensor's bytes; the receiver's must be as many. The send of up to 128 KiB ends
  // without its receive when none before it is outstanding.
  std::shared_ptr<Work> send_async(at::Tensor data, int to);
  std::shared_ptr<Work> recv_async(at::Tensor data, int from);

  // The same, waited for.
  void tree_all_reduce(std::vector<at::Tensor> nodes, at::Tensor out,
                       const comm::ReductionPlan& plan);
  void all_reduce(at::Tensor data, comm::Reduce reduce = comm::Reduce::sum);
  void broadcast(at::Tensor data, int root);
  void tree_reduce_scatter(std::vector<at::Tensor> nodes, at::Tensor out, Counts counts,
                           const comm::ReductionPlan& plan);
  void reduce_scatter_v(at::Tensor in, at::Tensor out, Counts counts,
                        comm::Reduce reduce = comm::Reduce::sum);
  void all_gather_v(at::Tensor in, at::Tensor out, Counts counts);
  void all_to_all_v(at::Tensor in, at::Tensor out, Counts send, Counts recv);
  void reduce(at::Tensor in, at::Tensor out, int root, comm::Reduce reduce = comm::Reduce::sum);
  void gather_v(at::Tensor in, at::Tensor out, Counts counts, int root);
  void scatter_v(at::Tensor in, at::Tensor out, Counts counts, int root);
  void send(at::Tensor data, int to);
  void recv(at::Tensor data, int from);
  // [size, ...]: every rank's `data`, equal shapes.
  at::Tensor all_gather(at::Tensor data);
  void barrier();

  // A zeroed tensor in memory that all ranks reach, so that collectives on it need no staging copy;
  // ordinary memory where the transport has none. Its memory lives as long as group and tensor.
  at::Tensor empty_shared(std::int64_t count, at::ScalarType type);

  // Told of every later operation of this group and of the subgroups made of it, on the thread that
  // asks for it, before it starts; those through backend() apart. Empty: nobody is.
  using Observer = std::function<void(const Call&)>;
  void on_call(Observer observer) { *observer_ = std::move(observer); }

  // The same group as a c10d backend (operations go through the same threads, in order).
  c10::intrusive_ptr<c10d::Backend> backend();

  // All ranks' waiting and later operations throw WorldError with this reason, also those of the
  // subgroups that this rank is in. From any thread.
  void abort(const std::string& reason);

 private:
  std::shared_ptr<CommThreads> threads_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  void tell(const char* operation, std::size_t bytes) const;

  Meet meet_;
  std::shared_ptr<Observer> observer_ = std::make_shared<Observer>();
  int subgroups_made_ = 0;
  std::mutex mutex_;  // of subgroups_
  std::vector<std::weak_ptr<Group>> subgroups_;
};

// How the ranks of a job meet.
struct GroupOptions {
  std::string transport = "auto";  // shm | gloo | auto
  int rank = 0, size = 1;
  int local_size = 1;                     // ranks on this host; auto compares it with size
  std::string name = "tutti";             // unique to job and group; the same on all ranks (shm)
  std::string host = "127.0.0.1";         // of rank 0's store (gloo)
  int port = 0;                           // of rank 0's store (gloo); on rank 0, 0: any free one
  std::function<void(int)> publish = {};  // rank 0: told the port, once it listens
  std::string group = "world";            // what errors call it
  double timeout = 300;                   // seconds, for meeting and for every operation

  // Whether they meet in shared memory: shm, or auto, if all are on this host and not too many.
  bool in_memory() const;
};

// ConfigError for an unknown transport, WorldError when the peers do not come or the port is taken.
std::shared_ptr<Group> make_group(const GroupOptions& options);

// Groups for `size` threads of this process (tests); entry r is rank r's. They make subgroups.
std::vector<std::shared_ptr<Group>> make_thread_groups(int size);

}  // namespace tutti::collective
