// The algorithms over sockets (socket_group.h). A call queues what goes to and comes from each peer
// and one loop drives all connections at once, so that no order of ranks and no size of a socket's
// buffer can hold it up.
#pragma once
#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/call.h"
#include "comm/socket_alarm.h"
#include "comm/socket_group.h"
#include "comm/socket_link.h"

namespace tutti::comm {

// What a pair's connections are for.
enum class Lane : std::uint32_t { collectives, messages, alarm };
constexpr std::size_t lanes = 3;
// Of one pair; without sockets for a rank and itself.
using Connections = std::array<Connection, lanes>;

class SocketCommunicator : public Communicator {
 public:
  // `connections` to each rank, as meet() made them.
  SocketCommunicator(std::vector<Connections> connections, int rank, const SocketOptions& options);

  const char* transport() const override { return "tcp"; }
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
  void abort(const std::string& reason) override;

 private:
  // What the peers compare with their own call.
  struct Call {
    Operation operation;
    DType type = DType::u8;
    std::size_t count = 0;  // of the longest part; of all_to_all_v 0, as no rank knows it
    Reduce reduce = Reduce::sum;
    int root = 0;
    const ReductionPlan* plan = nullptr;
    std::span<const std::size_t> parts = {};     // counts, of operations in parts
    std::span<const std::size_t> received = {};  // counts of all_to_all_v
  };
  struct Message {
    bool to;
    int peer;
    std::size_t bytes;
  };
  // A connection for collectives, and what poll() last said of it.
  struct Peer {
    explicit Peer(Connection connection) : link(std::move(connection)) {}
    Link link;
    bool readable = true, writable = true;
    std::size_t head_end = 0;  // received() once its call's head has come
    bool checked = true;       // that this is as our own
  };
  struct Messages {
    explicit Messages(Connection connection) : link(std::move(connection)) {}
    Link link;
    std::vector<pollfd> sends, receives;  // for poll(), of the two threads
  };
  struct Part {
    std::size_t begin = 0, count = 0;  // elements
  };
  // A sum, cut so that rank r makes part r (parts_) of it, chunk by chunk.
  struct Reduction {
    std::span<const void* const> nodes;
    const ReductionPlan& plan;
    DType type;
    Reduce reduce;
    std::byte* result = nullptr;             // where this rank's part goes
    std::byte* whole = nullptr;              // where all parts come together, if here
    int keepers_begin = 0, keepers_end = 0;  // the ranks where they do
    bool in_one_round = false;               // each rank makes all that it needs
    std::size_t element = 1;                 // bytes
    std::size_t chunk = 0, chunks = 0;       // elements; how many the longest part has

    bool keeps(int rank) const { return keepers_begin <= rank && rank < keepers_end; }
  };

  // Starts a call: its name goes to every peer, and theirs are awaited.
  void begin(const Call& call);
  void send_to(int peer, const void* data, std::size_t bytes);
  void receive_from(int peer, void* data, std::size_t bytes);
  // visit(peer) for all others, the next rank first.
  template <class Visit>
  void each_peer(Visit visit) const {
    for (int step = 1; step < size(); ++step) visit((rank() + step) % size());
  }
  // Moves bytes of all peers until `done()`.
  template <class Done>
  void drive(Done done) {
    for (;;) {
      bool moved = false;
      each_peer([&](int peer) { moved |= move(peer); });
      if (done()) return;
      if (!moved) wait();
    }
  }
  // Until all that is queued has gone and come.
  void finish();
  Link& link(int peer) const { return peers_[static_cast<std::size_t>(peer)]->link; }
  bool move(int peer);
  void check_call(int peer);
  double deadline();
  void wait();
  [[noreturn]] void end();
  std::string late() const;
  [[noreturn]] void fail(const std::string& cause);
  [[noreturn]] void fail(const Message* message, const std::string& cause);
  std::string lost(int peer, const LinkLost& error);

  void relay(std::byte* data, std::size_t bytes, int root);
  void check_nodes(const ReductionPlan& plan, std::size_t nodes) const;
  // Runs a call that sums; `out` of the whole, or of this rank's part.
  void sum(const Call& call, std::span<const void* const> nodes, void* out);
  void cut(const Call& call, Reduction& reduction);
  void place(const Call& call, Reduction& reduction, std::byte* out);
  std::size_t elements(const Reduction& reduction, int part, std::size_t chunk) const;
  std::byte* waiting(const Reduction& reduction, int source, std::size_t chunk);
  void post_sources(const Reduction& reduction, std::size_t chunk);
  bool has_come(const Reduction& reduction, std::size_t chunk) const;
  void sum_chunk(const Reduction& reduction, std::size_t chunk);
  void post_result(const Reduction& reduction, std::size_t chunk);

  template <class Moves>
  void run_message(const Message& message, short event, std::vector<pollfd>& set, Moves moves);
  static std::string describe(const Message& message);

  SocketOptions options_;
  Alarm alarm_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<std::unique_ptr<Messages>> messages_;
  ReductionPlan ranks_plan_;  // one id a rank

  // Of the collective that runs.
  const Call* call_ = nullptr;
  CallHead head_{};
  std::uint64_t sequence_ = 0;
  std::size_t moved_ = 0;  // bytes ever, both ways
  double last_moved_ = 0;
  std::string broken_;
  std::vector<std::uint64_t> own_head_, peer_heads_;  // a CallHead and a part a rank
  std::vector<pollfd> polled_;
  std::vector<int> polled_peers_;

  // Scratch of sums: grows, never shrinks.
  std::vector<Part> parts_;
  std::vector<std::size_t> marks_;  // received() of peers once they have brought a chunk
  std::vector<std::byte> chunks_, result_;
  std::vector<const std::byte*> sources_;
};

}  // namespace tutti::comm
