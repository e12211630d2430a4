// The algorithms over shared memory (memory_group.h). A call is posted with the places of its
// pieces; after all peers posted theirs, each rank reads what it needs straight from them.
#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/segment.h"

namespace tutti::comm {

class MemoryCommunicator : public Communicator {
 public:
  // `threads`: all memory of all ranks is this process's. Returns when all ranks are there.
  MemoryCommunicator(std::shared_ptr<Segment> segment, int rank, int size,
                     const MemoryOptions& options, bool threads);

  const char* transport() const override { return threads_ ? "threads" : "shm"; }
  void barrier() override;
  void broadcast(void* data, std::size_t count, DType type, int root) override;
  void all_reduce(void* data, std::size_t count, DType type, Reduce reduce) override;
  void all_gather_v(const void* in, void* out, std::span<const std::size_t> counts,
                    DType type) override;
  void reduce_scatter_v(const void* in, void* out, std::span<const std::size_t> counts, DType type,
                        Reduce reduce) override;
  void all_to_all_v(const void* in, std::span<const std::size_t> send_counts, void* out,
                    std::span<const std::size_t> receive_counts, DType type) override;
  void reduce(const void* in, void* out, std::size_t count, DType type, Reduce reduce,
              int root) override;
  void gather_v(const void* in, void* out, std::span<const std::size_t> counts, DType type,
                int root) override;
  void scatter_v(const void* in, void* out, std::span<const std::size_t> counts, DType type,
                 int root) override;
  void send(const void* data, std::size_t bytes, int to) override;
  void recv(void* data, std::size_t bytes, int from) override;
  void tree_all_reduce(std::span<const void* const> nodes, void* out, std::size_t count, DType type,
                       const ReductionPlan& plan) override;
  void tree_reduce_scatter(std::span<const void* const> nodes, void* out,
                           std::span<const std::size_t> counts, DType type,
                           const ReductionPlan& plan) override;
  void* allocate_shared(std::size_t bytes) override;
  void abort(const std::string& reason) override;

  // Notes the peers' processes, so that their end is noticed. Once all ranks are there.
  void watch_processes();

 private:
  // A rank brings buffers ("nodes"), each whole or in one part a rank. What moves in one go, a
  // piece, is a part of a node, or the node.
  struct Call {
    Operation operation;
    DType type = DType::u8;
    std::size_t count = 0;  // of the longest piece; of all_to_all_v 0, as no rank knows it
    Reduce reduce = Reduce::sum;
    int root = 0;
    int max_nodes = 1;                           // the most that any rank brings
    bool scatters = false;                       // whether nodes are in parts
    std::span<const std::size_t> parts = {};     // counts, also of all_gather_v
    std::span<const std::size_t> received = {};  // counts of all_to_all_v
    const ReductionPlan* plan = nullptr;         // of sums
    std::byte* out = nullptr;
    int nodes = 0;  // what this rank brings
    std::array<const std::byte*, max_memory_ranks> node = {};

    bool reduces_whole() const { return plan != nullptr && !scatters; }
  };
  // A send or recv.
  struct Message {
    bool to;
    int peer;
    std::size_t bytes;
  };

  // Whether `rank` gets the whole of what is reduced.
  static bool gets_whole(const Call& call, int rank) {
    return call.reduces_whole() && (call.operation != Operation::reduce || rank == call.root);
  }
  void check_nodes(const ReductionPlan& plan, std::size_t nodes) const;
  void run(Call& call);
  void run_eager(const Call& call);
  void run_in_chunks(const Call& call);
  bool all_visible(const Call& call) const;
  std::size_t longest_piece(const Call& call) const;
  void post(const Call& call, bool in_place);
  void copy_in(const Call& call, std::byte* to, std::size_t first, std::size_t count) const;
  // What all ranks do with elements [first, first + count) of each piece once these lie ready.
  void work(const Call& call, std::size_t first, std::size_t count);
  void gather(const Call& call, std::size_t first, std::size_t count);
  void reduce_part(const Call& call, std::size_t first, std::size_t count);
  void reduce_own_part(const Call& call, std::size_t first, std::size_t count);
  // Element `first` of a node, or of its part `part` when the call scatters.
  const std::byte* source(const Call& call, int rank, int node, int part, std::size_t first) const;
  std::byte* target(int rank, std::size_t first) const;
  int pieces_a_node(const Call& call) const { return call.scatters ? size() : 1; }

  void synchronise();
  void check_peers(const Call& call);
  bool visible(const void* data, std::size_t bytes) const;
  bool everybody_in_place();

  // Waits until `counter` of `peer` has reached `target`, for the current call or for a message.
  void wait_for(const Message* message, int peer, std::atomic<std::uint32_t>& counter,
                std::uint32_t target);
  void give_way();
  // Throws when the group is aborted, a peer has ended without `arrived()`, or the time is over.
  template <class Arrived>
  void check_world(const Message* message, int peer, double started, Arrived arrived);
  Posted& posted(int rank) const { return segment_->rank(rank).posted[sequence_ & 1]; }
  RankBlock& own() const { return segment_->rank(rank()); }
  void begin(const Call& call);
  void begin(const Message& message);
  [[noreturn]] void fail(const Message* message, const std::string& cause);
  std::string describe(const Posted& posted) const {
    return comm::describe(posted, {posted.parts, static_cast<std::size_t>(size())});
  }
  static std::string describe(const Message& message);

  std::shared_ptr<Segment> segment_;
  MemoryOptions options_;
  bool threads_;
  bool crowded_;                     // whether ranks must share cores
  std::atomic<int> dear_waits_ = 0;  // how many waits still go without giving way
  ReductionPlan ranks_plan_;         // one id a rank
  std::vector<ProcessWatch> processes_;
  std::uint64_t sequence_ = 0;
  std::uint32_t phase_ = 0;
  std::string broken_;  // why, once a collective has failed

  // Of the current collective, for its errors and for source().
  Posted current_{};
  bool eager_ = false;
  std::size_t element_ = 1, stride_ = 0, chunk_begin_ = 0;
};

}  // namespace tutti::comm
