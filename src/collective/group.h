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

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "collective/comm_thread.h"
#include "comm/communicator.h"
#include "comm/flight_recorder.h"

namespace tutti::collective {

class Group;

// Elements of each rank's part, in rank order; zeros are allowed.
using Counts = std::vector<std::int64_t>;

// Where an operation was asked for, for records and errors.
using Site = std::source_location;

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
    int rank, size;                   // in the subgroup
    std::vector<std::int64_t> hosts;  // of each member: alike where they can share memory
    std::string name;                 // what errors call it
    std::string key;                  // unique to the members and this subgroup
  };
  using Meet = std::function<std::unique_ptr<comm::Communicator>(const Meeting&)>;

  // Takes the communicator; its calls all happen on this group's threads from now on. Without
  // `meet` there are no subgroups. `host`: of this rank; Host::id.
  explicit Group(std::unique_ptr<comm::Communicator> communicator, Meet meet = {},
                 std::int64_t host = 0);
  // Ends what was started (at the latest by the deadline; abort() ends it sooner), then the
  // threads.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const;
  int size() const;
  // "shm", "threads", "tcp", "shm+tcp" (comm/hierarchy.h), "gloo".
  std::string transport() const;
  // What errors call it: "world", "tensor (ranks 1, 3)".
  const std::string& name() const;

  // The group of the ranks `members` of this one (ascending or not: member i becomes rank i), with
  // this rank among them. All ranks call it in the same order, each with its own list; ranks with
  // other lists make other groups at the same time. A list of one makes a group that only copies.
  // WorldError when a member's list differs or does not come. Only of groups of make_group() and
  // make_thread_groups(), and of subgroups.
  std::shared_ptr<Group> subgroup(const std::vector<int>& members, const std::string& name);

  // Communicator::tree_all_reduce on tensors of one dtype and size. `plan` must outlive the work.
  std::shared_ptr<Work> tree_all_reduce_async(std::vector<at::Tensor> nodes, at::Tensor out,
                                              const comm::ReductionPlan& plan,
                                              Site site = Site::current());
  std::shared_ptr<Work> all_reduce_async(at::Tensor data, comm::Reduce reduce = comm::Reduce::sum,
                                         Site site = Site::current());
  std::shared_ptr<Work> broadcast_async(at::Tensor data, int root, Site site = Site::current());
  // Of the same sum, cut in consecutive parts of counts[r] elements, this rank's part into `out`,
  // which may be that part of one of the nodes: the bits of tree_all_reduce.
  std::shared_ptr<Work> tree_reduce_scatter_async(std::vector<at::Tensor> nodes, at::Tensor out,
                                                  Counts counts, const comm::ReductionPlan& plan,
                                                  Site site = Site::current());
  // The same of one tensor a rank.
  std::shared_ptr<Work> reduce_scatter_v_async(at::Tensor in, at::Tensor out, Counts counts,
                                               comm::Reduce reduce = comm::Reduce::sum,
                                               Site site = Site::current());
  // counts[r] elements of every rank r into `out`, in rank order. `in` may be its part of `out`.
  std::shared_ptr<Work> all_gather_v_async(at::Tensor in, at::Tensor out, Counts counts,
                                           Site site = Site::current());
  // send[r] elements to rank r and recv[r] from it, both in rank order.
  std::shared_ptr<Work> all_to_all_v_async(at::Tensor in, at::Tensor out, Counts send, Counts recv,
                                           Site site = Site::current());
  // The reduction of all ranks' `in` into `out` of rank `root`, which may be its `in`; the others'
  // `out` is not used and may be undefined.
  std::shared_ptr<Work> reduce_async(at::Tensor in, at::Tensor out, int root,
                                     comm::Reduce reduce = comm::Reduce::sum,
                                     Site site = Site::current());
  // counts[r] elements of rank r into `out` of rank `root`; the others' `out` may be undefined.
  std::shared_ptr<Work> gather_v_async(at::Tensor in, at::Tensor out, Counts counts, int root,
                                       Site site = Site::current());
  // Part r of `in` of rank `root` into `out` of rank r; the others' `in` may be undefined.
  std::shared_ptr<Work> scatter_v_async(at::Tensor in, at::Tensor out, Counts counts, int root,
                                        Site site = Site::current());
  // A message of the tensor's bytes; the receiver's must be as many. The send of up to 128 KiB ends
  // without its receive when none before it is outstanding.
  std::shared_ptr<Work> send_async(at::Tensor data, int to, Site site = Site::current());
  std::shared_ptr<Work> recv_async(at::Tensor data, int from, Site site = Site::current());

  // The same, waited for.
  void tree_all_reduce(std::vector<at::Tensor> nodes, at::Tensor out,
                       const comm::ReductionPlan& plan, Site site = Site::current());
  void all_reduce(at::Tensor data, comm::Reduce reduce = comm::Reduce::sum,
                  Site site = Site::current());
  void broadcast(at::Tensor data, int root, Site site = Site::current());
  void tree_reduce_scatter(std::vector<at::Tensor> nodes, at::Tensor out, Counts counts,
                           const comm::ReductionPlan& plan, Site site = Site::current());
  void reduce_scatter_v(at::Tensor in, at::Tensor out, Counts counts,
                        comm::Reduce reduce = comm::Reduce::sum, Site site = Site::current());
  void all_gather_v(at::Tensor in, at::Tensor out, Counts counts, Site site = Site::current());
  void all_to_all_v(at::Tensor in, at::Tensor out, Counts send, Counts recv,
                    Site site = Site::current());
  void send(at::Tensor data, int to, Site site = Site::current());
  void recv(at::Tensor data, int from, Site site = Site::current());
  void reduce(at::Tensor in, at::Tensor out, int root, comm::Reduce reduce = comm::Reduce::sum,
              Site site = Site::current());
  void gather_v(at::Tensor in, at::Tensor out, Counts counts, int root,
                Site site = Site::current());
  void scatter_v(at::Tensor in, at::Tensor out, Counts counts, int root,
                 Site site = Site::current());
  // [size, ...]: every rank's `data`, equal shapes.
  at::Tensor all_gather(at::Tensor data, Site site = Site::current());
  void barrier(Site site = Site::current());

  // A zeroed tensor in memory that all ranks reach, so that collectives on it need no staging copy;
  // ordinary memory where the transport has none. Its memory lives as long as group and tensor.
  at::Tensor empty_shared(std::int64_t count, at::ScalarType type);

  // Told of every later operation of this group and of the subgroups made of it, on the thread that
  // asks for it, before it starts; those through backend() apart. Empty: nobody is.
  using Observer = std::function<void(const Call&)>;
  void on_call(Observer observer) { taps_->observer = std::move(observer); }
  // Writes down every later operation of this group and of the subgroups made of it afterwards
  // (those through backend() apart).
  void record(std::shared_ptr<comm::FlightRecorder> recorder);
  const std::shared_ptr<comm::FlightRecorder>& recorder() const { return taps_->recorder; }
  // Seconds that callers have waited for operations of this group and its subgroups so far.
  double waited() const { return taps_->waited; }

  // The same group as a c10d backend (operations go through the same threads, in order).
  c10::intrusive_ptr<c10d::Backend> backend();

  // All ranks' waiting and later operations throw WorldError with this reason, also those of the
  // subgroups that this rank is in. From any thread.
  void abort(const std::string& reason);

 private:
  std::shared_ptr<CommThreads> threads_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  // What a group and its subgroups share.
  struct Taps {
    Observer observer;
    std::shared_ptr<comm::FlightRecorder> recorder;
    std::atomic<double> waited = 0;
  };
  enum class Lane { collective, to, from };  // what an operation is matched in: messages by peer
  struct Asked {
    const char* operation;
    std::size_t bytes;
    DType type = DType::u8;
    Site site = {};
    Lane lane = Lane::collective;
    int peer = -1;  // or root
  };
  // Tells who wants to know, and gives the task to its thread.
  std::shared_ptr<Work> start(const Asked& asked, CommThreads::Task task);
  CommThreads::Task noted(const Asked& asked, CommThreads::Task task);
  void enter_record();

  Meet meet_;
  std::int64_t host_;
  std::shared_ptr<Taps> taps_ = std::make_shared<Taps>();
  std::string path_;        // what tells its subgroups from those of others
  std::vector<int> ranks_;  // its members in the first group of all; empty: this is it
  std::uint64_t key_ = 0;   // alike on the members; of the group in records
  int recorded_ = -1;       // the group's number in the recorder
  std::mutex asked_mutex_;  // of the numbers, and of the order in which threads get operations
  std::map<std::pair<Lane, int>, std::uint64_t> asked_;  // operations so far, by lane and peer
  int subgroups_made_ = 0;
  std::mutex mutex_;  // of subgroups_
  std::vector<std::weak_ptr<Group>> subgroups_;
};

// How the ranks of a job meet.
struct GroupOptions {
  // auto: shm within a host, tcp between hosts, in levels where hosts have several ranks.
  std::string transport = "auto";  // shm | tcp | gloo | auto
  int rank = 0, size = 1;
  int local_size = 1;                     // ranks on this host; auto compares it with size
  std::string name = "tutti";             // unique to job and group; the same on all ranks (shm)
  std::string host = "127.0.0.1";         // of rank 0's store (all but shm)
  int port = 0;                           // of rank 0's store; on rank 0, 0: any free one
  std::function<void(int)> publish = {};  // rank 0: told the port, once it listens
  std::string group = "world";            // what errors call it
  double timeout = 300;                   // seconds, for meeting and for every operation
  std::string address = "127.0.0.1";      // by which other hosts reach this rank (tcp)
  std::string secret;                     // the job's: only who has it is let in (tcp); "": all
  bool encrypt = false;                   // what goes between hosts (tcp)
  std::optional<std::int64_t> here = {};  // in place of this_host().id

  // Whether they meet in shared memory: shm, or auto, if all are on this host and not too many.
  bool in_memory() const;
};

// ConfigError for an unknown transport, WorldError when the peers do not come or the port is taken.
std::shared_ptr<Group> make_group(const GroupOptions& options);
// The bare communicator of such a group.
std::unique_ptr<comm::Communicator> make_communicator(const GroupOptions& options);

// Groups for `size` threads of this process (tests); entry r is rank r's. They make subgroups.
std::vector<std::shared_ptr<Group>> make_thread_groups(int size);

}  // namespace tutti::collective
