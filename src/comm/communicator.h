// One rank's end of a group of ranks: collectives over plain bytes with an element type.
//
// Rules for every operation
//   Order      All ranks of the group call the same operations in the same order with the same
//              arguments; a rank that does not is named in the error.
//   Threads    One collective at a time per communicator, and beside it one send a receiver and one
//              recv a sender.
//   Deadline   A call that waits longer than `timeout` throws WorldError, which names rank, group,
//              operation, sequence number and the peers that did not come. Over TCP the time
//              begins anew with each byte that moves.
//   Failure    After a WorldError the group is broken on this rank: buffers hold unspecified
//              values, each later call throws at once, and the peers' calls soon throw too.
//   Bits       Sums and products are made along reduction_tree.h's tree over the ranks,
//              elementwise; an average is a sum divided by the ranks. f16 and bf16 are reduced in
//              f32 and rounded once. All ranks get the same bits.
//   Types      An average of integers or truths is a ConfigError, thrown before anything is done.
//   Counts     counts[r] elements are rank r's part; parts lie one after the other in rank order.
//              Zeros are allowed; `counts` must be alike on all ranks.
//   Aliasing   Inputs and outputs must not overlap unless it says so.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/dtype.h"
#include "comm/reduction_tree.h"

namespace tutti::comm {

// average: of floats only. Of truths, sum and max are "or", product and min are "and".
enum class Reduce { sum, max, min, product, average };

class Communicator {
 public:
  virtual ~Communicator() = default;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // What errors call this group: "data".
  const std::string& group() const { return group_; }
  // "shm", "threads", "gloo".
  virtual const char* transport() const = 0;

  // Seconds that each later call may wait. 300 at first.
  void set_timeout(double seconds) { timeout_ = seconds; }
  double timeout() const { return timeout_; }

  virtual void barrier() = 0;
  virtual void broadcast(void* data, std::size_t count, DType type, int root) = 0;
  // In place.
  virtual void all_reduce(void* data, std::size_t count, DType type, Reduce reduce) = 0;
  // counts[r] elements of every rank r into `out`. `in` may lie in its place there.
  virtual void all_gather_v(const void* in, void* out, std::span<const std::size_t> counts,
                            DType type) = 0;
  // Element-wise reduction of `in` (all parts); rank r gets part r in `out`, which may lie in its
  // place in `in`.
  virtual void reduce_scatter_v(const void* in, void* out, std::span<const std::size_t> counts,
                                DType type, Reduce reduce) = 0;
  // Part r of `in` goes to rank r; part r of `out` came from rank r. `send_counts[r]` here must be
  // what `receive_counts` says on rank r of this rank.
  virtual void all_to_all_v(const void* in, std::span<const std::size_t> send_counts, void* out,
                            std::span<const std::size_t> receive_counts, DType type) = 0;
  // The reduction of every rank's `in` into `out` of rank `root`, which may be its `in`; `out` of
  // the others is not used.
  virtual void reduce(const void* in, void* out, std::size_t count, DType type, Reduce reduce,
                      int root) = 0;
  // counts[r] elements of every rank r into `out` of rank `root`; `out` of the others is not used.
  virtual void gather_v(const void* in, void* out, std::span<const std::size_t> counts, DType type,
                        int root) = 0;
  // Part r of `in` of rank `root` into `out` of rank r; `in` of the others is not used.
  virtual void scatter_v(const void* in, void* out, std::span<const std::size_t> counts, DType type,
                         int root) = 0;
  // The same with `count` elements in every part.
  void all_gather(const void* in, void* out, std::size_t count, DType type);
  void reduce_scatter(const void* in, void* out, std::size_t count, DType type, Reduce reduce);
  void all_to_all(const void* in, void* out, std::size_t count, DType type);
  void gather(const void* in, void* out, std::size_t count, DType type, int root);
  void scatter(const void* in, void* out, std::size_t count, DType type, int root);
  // Between two ranks, matched in order; not part of the group's common order.
  virtual void send(const void* data, std::size_t bytes, int to) = 0;
  virtual void recv(void* data, std::size_t bytes, int from) = 0;

  // Promise 3: the sum over all ids of `plan` along its tree. `nodes` are this rank's partial sums
  // in the order of forest_of(plan.ranges[rank]); `out` gets the sum on every rank and may be one
  // of the nodes. The other nodes are unspecified afterwards. `plan` must be alike on all ranks.
  // Nodes of 16-bit floats must be single ids for the bits to be free of the layout: accumulate in
  // f32.
  virtual void tree_all_reduce(std::span<const void* const> nodes, void* out, std::size_t count,
                               DType type, const ReductionPlan& plan) = 0;

  // The same sum cut in parts: this rank's into `out`, which may lie in its place in one of the
  // nodes. The nodes are unspecified afterwards. The bits are those of tree_all_reduce().
  virtual void tree_reduce_scatter(std::span<const void* const> nodes, void* out,
                                   std::span<const std::size_t> counts, DType type,
                                   const ReductionPlan& plan) = 0;

  // Memory that all ranks of the group reach directly: operations on it need no staging copy.
  // Zeroed, aligned to 4096 bytes, freed with the communicator; nullptr when the transport has none
  // (or no more), and then ordinary memory does. Ranks may allocate different sizes.
  virtual void* allocate_shared(std::size_t /*bytes*/) { return nullptr; }

  // Makes the waiting and later calls of all ranks of the group throw WorldError with this reason,
  // as far as the transport can. From any thread.
  virtual void abort(const std::string& reason) = 0;

 protected:
  Communicator(int rank, int size, std::string group)
      : rank_(rank), size_(size), group_(std::move(group)) {}

 private:
  int rank_, size_;
  std::string group_;
  std::atomic<double> timeout_ = 300;
};

}  // namespace tutti::comm
