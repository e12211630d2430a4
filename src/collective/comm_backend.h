// A group as a c10d backend, for code that speaks c10d. Operations are asynchronous and run in
// order on the group's threads; tensors must be contiguous and on the CPU. Sums follow the fixed
// tree.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <memory>
#include <string>
#include <vector>

#include "collective/comm_thread.h"

namespace tutti::collective {

class CommBackend : public c10d::Backend {
 public:
  explicit CommBackend(std::shared_ptr<CommThreads> threads);

  const std::string getBackendName() const override;
  void setTimeout(std::chrono::milliseconds timeout) override;

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                        std::vector<int64_t>& input_sizes,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;

 private:
  WorkPtr start(c10d::OpType type, Tensors results, CommThreads::Task task);
  template <class Begin>
  WorkPtr start_with(c10d::OpType type, Tensors results, Begin begin);

  std::shared_ptr<CommThreads> threads_;
};

}  // namespace tutti::collective
