// The algorithms over shared memory (memory_group.h). A call is posted with the places of its
// pieces; after all peers posted theirs, each rank reads what it needs straight from them.
#pragma once
#include <array>
#include <memory>
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
  void all_gather(const void* in, void* out, std::size_t count, DType type) override;
  void reduce_scatter(const void* in, void* out, std::size_t count, DType type,
                      Reduce reduce) override;
  void all_to_all(const void* in, void* out, std::size_t count, DType type) override;
  void send(const void* data, std::size_t bytes, int to) override;
  void recv(void* data, std::size_t bytes, int from) override;
  void tree_all_reduce(std::span<const void* const> nodes, void* out, std::size_t count, DType type,
                       const ReductionPlan& plan) override;
  void* allocate_shared(std::size_t bytes) override;
  void abort(const std::string& reason) override;

  // Notes the peers' processes, so that their end is noticed. Once all ranks are there.
  void watch_processes();

 private:
  enum class Operation {
    barrier,
    broadcast,
    all_reduce,
    all_gather,
    reduce_scatter,
    all_to_all,
    tree_all_reduce,
    send,
    recv
  };

  struct Call {
    Operation operation;
    DType type = DType::u8;
    std::size_t count = 0;  // elements a piece
    Reduce reduce = Reduce::sum;
    int root = 0;
    int max_pieces = 1;                   // the most that any rank brings
    const ReductionPlan* plan = nullptr;  // of reductions to all
    std::byte* out = nullptr;
    int pieces = 0;  // what this rank brings
    std::array<const std::byte*, max_memory_ranks> piece;

    bool reduces_to_all() const { return plan != nullptr; }
  };

  void set_pieces(Call& call, const void* data, int pieces) const;
  void run(Call& call);
  void run_eager(const Call& call);
  void run_in_chunks(const Call& call);
  void post(const Call& call, bool in_place);
  void copy_in(const Call& call, std::byte* to, std::size_t stride, std::size_t first,
               std::size_t count) const;
  // What all ranks do with elements [first, first + count) once these lie ready.
  void work(const Call& call, std::size_t first, std::size_t count);
  void reduce_part(const Call& call, std::size_t first, std::size_t count);
  void reduce_own_piece(const Call& call, std::size_t first, std::size_t count);
  const std::byte* source(int rank, int piece, std::size_t first) const;
  std::byte* target(int rank, std::size_t first) const;

  void synchronise();
  void check_peers();
  bool visible(const void* data, std::size_t bytes) const;
  bool everybody_in_place();

  // Waits until `counter` of `peer` has reached `target`.
  void wait_for(int peer, std::atomic<std::uint32_t>& counter, std::uint32_t target);
  // Throws when the group is aborted, a peer has ended without `arrived()`, or the time is over.
  template <class Arrived>
  void check_world(int peer, double started, Arrived arrived);
  Posted& posted(int rank) const { return segment_->rank(rank).posted[sequence_ & 1]; }
  RankBlock& own() const { return segment_->rank(rank()); }
  void begin(const Call& call, int peer = -1);
  [[noreturn]] void fail(const std::string& cause);
  std::string describe(const Posted& posted) const;

  std::shared_ptr<Segment> segment_;
  MemoryOptions options_;
  bool threads_;
  ReductionPlan ranks_plan_;  // one id a rank
  std::vector<ProcessWatch> processes_;
  std::uint64_t sequence_ = 0;
  std::uint32_t phase_ = 0;
  std::string broken_;  // why, once an operation has failed

  // Of the current call, for its errors and for source().
  Posted current_{};
  int current_peer_ = -1;
  bool eager_ = false;
  std::size_t element_ = 1, stride_ = 0, chunk_begin_ = 0;
};

}  // namespace tutti::comm
