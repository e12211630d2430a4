// A Communicator over any c10d backend. Data move as bytes (all_to_all of slices, all_gather) and
// are summed here, along the fixed tree, so that the bits are those of every other transport.
//
// A mismatch of calls between ranks is only found where the backend finds it.
#pragma once
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace tutti::collective {

class BackendCommunicator : public comm::Communicator {
 public:
  // `lost_peers` returns "rank 2 (process 17) has ended" or "", and is asked when a call fails.
  BackendCommunicator(c10::intrusive_ptr<c10d::Backend> backend, std::string transport,
                      std::string group, double timeout, std::function<std::string()> lost_peers);

  const char* transport() const override { return transport_.c_str(); }
  void barrier() override;
  void broadcast(void* data, std::size_t count, DType type, int root) override;
  void all_reduce(void* data, std::size_t count, DType type, comm::Reduce reduce) override;
  // Parts are padded to the longest where they differ.
  void all_gather_v(const void* in, void* out, std::span<const std::size_t> counts,
                    DType type) override;
  void reduce_scatter_v(const void* in, void* out, std::span<const std::size_t> counts, DType type,
                        comm::Reduce reduce) override;
  void all_to_all_v(const void* in, std::span<const std::size_t> send_counts, void* out,
                    std::span<const std::size_t> receive_counts, DType type) override;
  void reduce(const void* in, void* out, std::size_t count, DType type, comm::Reduce reduce,
              int root) override;
  void gather_v(const void* in, void* out, std::span<const std::size_t> counts, DType type,
                int root) override;
  void scatter_v(const void* in, void* out, std::span<const std::size_t> counts, DType type,
                 int root) override;
  void send(const void* data, std::size_t bytes, int to) override;
  void recv(void* data, std::size_t bytes, int from) override;
  void tree_all_reduce(std::span<const void* const> nodes, void* out, std::size_t count, DType type,
                       const comm::ReductionPlan& plan) override;
  void tree_reduce_scatter(std::span<const void* const> nodes, void* out,
                           std::span<const std::size_t> counts, DType type,
                           const comm::ReductionPlan& plan) override;
  // Later calls and this rank's waiting messages throw; a collective that waits, and a peer's
  // message, end at their deadline.
  void abort(const std::string& reason) override;

 private:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Sizes = std::vector<std::int64_t>;  // bytes of each rank's part
  // Of a call, for its errors.
  struct Name {
    const char* operation;
    DType type = DType::u8;
    std::size_t count = 0;
    std::uint64_t sequence = 0;  // of collectives
    int peer = -1;               // of messages
  };

  // Starts a call of the backend, waits, and gives its errors our names.
  template <class Start>
  void run(const Name& name, Start start);
  template <class Start>
  void run_message(const Name& name, Start start);
  // Throws when the group is broken or aborted.
  void check_broken(const Name& name);
  void gather_to_all(const Name& name, const void* in, void* out,
                     std::span<const std::size_t> counts);
  std::pair<Sizes, Sizes> to_root(std::span<const std::size_t> counts, DType type, int root) const;
  void exchange(const Name& name, const void* in, Sizes send, void* out, Sizes receive);
  void reduce_scatter(const Name& name, std::span<const void* const> nodes, void* out,
                      std::span<const std::size_t> counts, comm::Reduce reduce,
                      const comm::ReductionPlan& plan);
  void reduce_to_all(const Name& name, std::span<const void* const> nodes, void* out,
                     comm::Reduce reduce, const comm::ReductionPlan& plan);
  [[noreturn]] void fail(const Name& name, const std::string& cause);
  std::string describe(const Name& name) const;

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::string transport_;
  std::function<std::string()> lost_peers_;
  comm::ReductionPlan ranks_plan_;  // one id a rank
  double backend_timeout_;
  std::uint64_t sequence_ = 0;
  std::mutex mutex_;               // of the two below
  std::string broken_;             // why, once the group is
  std::vector<WorkPtr> messages_;  // that wait
  at::Tensor scratch_[2];          // bytes; grow, never shrink
};

}  // namespace tutti::collective
