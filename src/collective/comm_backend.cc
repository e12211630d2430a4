#include "collective/comm_backend.h"

#include <ATen/ATen.h>

#include <numeric>
#include <utility>

#include "collective/dtypes.h"

namespace tutti::collective {
namespace {

class BackendWork : public c10d::Work {
 public:
  BackendWork(int rank, c10d::OpType type, std::vector<at::Tensor> results)
      : Work(rank, type), results_(std::move(results)) {}
  std::vector<at::Tensor> result() override { return results_; }
  void end(std::exception_ptr error) { finish(std::move(error)); }

 private:
  std::vector<at::Tensor> results_;
};

void check(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().is_cpu() && tensor.is_contiguous(),
              "collectives take contiguous tensors on the CPU");
}

at::Tensor& only(std::vector<at::Tensor>& tensors) {
  TORCH_CHECK(tensors.size() == 1, "one tensor a rank, not ", tensors.size());
  check(tensors[0]);
  return tensors[0];
}

comm::Reduce to_reduce(const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op)) {
    case c10d::ReduceOp::SUM:
      return comm::Reduce::sum;
    case c10d::ReduceOp::MAX:
      return comm::Reduce::max;
    case c10d::ReduceOp::MIN:
      return comm::Reduce::min;
    default:
      TORCH_CHECK(false, "only sum, max and min are reduced here");
  }
}

std::size_t count_of(const at::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }
DType type_of(const at::Tensor& tensor) { return to_dtype(tensor.scalar_type()); }

void check_sizes(const at::Tensor& whole, const at::Tensor& part, int size) {
  check(whole);
  check(part);
  TORCH_CHECK(whole.numel() == part.numel() * size && whole.scalar_type() == part.scalar_type(),
              "expected ", size, " times ", part.numel(), " elements, not ", whole.numel());
}

// Counts of elements, from sizes of the first dimension; no sizes are equal ones.
std::vector<std::size_t> parts_of(const at::Tensor& tensor, const std::vector<int64_t>& sizes,
                                  int ranks) {
  TORCH_CHECK(tensor.dim() > 0, "alltoall_base takes tensors of at least one dimension");
  const int64_t rows = tensor.size(0), row = rows > 0 ? tensor.numel() / rows : 0;
  TORCH_CHECK(sizes.empty() ? rows % ranks == 0
                            : sizes.size() == static_cast<std::size_t>(ranks) &&
                                  std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) == rows,
              "the parts must add up to ", rows, " rows");
  std::vector<std::size_t> counts(static_cast<std::size_t>(ranks),
                                  static_cast<std::size_t>(rows / ranks * row));
  for (std::size_t r = 0; r < sizes.size(); ++r)
    counts[r] = static_cast<std::size_t>(sizes[r] * row);
  return counts;
}

}  // namespace

CommBackend::CommBackend(std::shared_ptr<CommThreads> threads)
    : Backend(threads->communicator().rank(), threads->communicator().size()),
      threads_(std::move(threads)) {}

const std::string CommBackend::getBackendName() const {
  return str("tutti_", threads_->communicator().transport());
}

void CommBackend::setTimeout(std::chrono::milliseconds timeout) {
  const double seconds = static_cast<double>(timeout.count()) * 1e-3;
  threads_->start([=](comm::Communicator& c) { c.set_timeout(seconds); }, [](auto) {});
}

// Has `begin` start a task of the group, told how it ends.
template <class Begin>
CommBackend::WorkPtr CommBackend::start_with(c10d::OpType type, Tensors results, Begin begin) {
  auto work = c10::make_intrusive<BackendWork>(getRank(), type, std::move(results));
  begin([work](std::exception_ptr error) { work->end(std::move(error)); });
  return work;
}

CommBackend::WorkPtr CommBackend::start(c10d::OpType type, Tensors results,
                                        CommThreads::Task task) {
  return start_with(type, std::move(results), [&](CommThreads::Done done) {
    threads_->start(std::move(task), std::move(done));
  });
}

CommBackend::WorkPtr CommBackend::broadcast(Tensors& tensors,
                                            const c10d::BroadcastOptions& options) {
  at::Tensor data = only(tensors);
  const int root = static_cast<int>(options.rootRank);
  return start(c10d::OpType::BROADCAST, tensors, [data, root](comm::Communicator& c) {
    c.broadcast(data.data_ptr(), count_of(data), type_of(data), root);
  });
}

CommBackend::WorkPtr CommBackend::allreduce(Tensors& tensors,
                                            const c10d::AllreduceOptions& options) {
  at::Tensor data = only(tensors);
  return start(c10d::OpType::ALLREDUCE, tensors,
               [data, reduce = to_reduce(options.reduceOp)](comm::Communicator& c) {
                 c.all_reduce(data.data_ptr(), count_of(data), type_of(data), reduce);
               });
}

CommBackend::WorkPtr CommBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions&) {
  at::Tensor in = only(inputs);
  TORCH_CHECK(outputs.size() == 1 && outputs[0].size() == static_cast<std::size_t>(getSize()),
              "one output a rank");
  return start(c10d::OpType::ALLGATHER, outputs[0],
               [in, parts = outputs[0]](comm::Communicator& c) {
                 const at::Tensor all = at::empty({c.size(), in.numel()}, in.options());
                 c.all_gather(in.data_ptr(), all.data_ptr(), count_of(in), type_of(in));
                 for (std::size_t r = 0; r < parts.size(); ++r)
                   parts[r].copy_(all[static_cast<std::int64_t>(r)].view(parts[r].sizes()));
               });
}

CommBackend::WorkPtr CommBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions&) {
  check_sizes(output, input, getSize());
  return start(c10d::OpType::_ALLGATHER_BASE, {output},
               [out = output, in = input](comm::Communicator& c) {
                 c.all_gather(in.data_ptr(), out.data_ptr(), count_of(in), type_of(in));
               });
}

CommBackend::WorkPtr CommBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                 const c10d::ReduceScatterOptions& options) {
  at::Tensor out = only(outputs);
  TORCH_CHECK(inputs.size() == 1 && inputs[0].size() == static_cast<std::size_t>(getSize()),
              "one input a rank");
  at::Tensor in = at::stack(inputs[0]);
  return _reduce_scatter_base(out, in, options);
}

CommBackend::WorkPtr CommBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& options) {
  check_sizes(input, output, getSize());
  return start(
      c10d::OpType::_REDUCE_SCATTER_BASE, {output},
      [out = output, in = input, reduce = to_reduce(options.reduceOp)](comm::Communicator& c) {
        c.reduce_scatter(in.data_ptr(), out.data_ptr(), count_of(out), type_of(out), reduce);
      });
}

CommBackend::WorkPtr CommBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<int64_t>& output_sizes,
                                                std::vector<int64_t>& input_sizes,
                                                const c10d::AllToAllOptions&) {
  check(output);
  check(input);
  TORCH_CHECK(input.scalar_type() == output.scalar_type(), "alltoall_base of two types");
  return start(c10d::OpType::ALLTOALL_BASE, {output},
               [out = output, in = input, receive = parts_of(output, output_sizes, getSize()),
                send = parts_of(input, input_sizes, getSize())](comm::Communicator& c) {
                 c.all_to_all_v(in.data_ptr(), send, out.data_ptr(), receive, type_of(in));
               });
}

CommBackend::WorkPtr CommBackend::barrier(const c10d::BarrierOptions&) {
  return start(c10d::OpType::BARRIER, {}, [](comm::Communicator& c) { c.barrier(); });
}

CommBackend::WorkPtr CommBackend::send(Tensors& tensors, int to, int) {
  return start_with(c10d::OpType::SEND, {}, [&](CommThreads::Done done) {
    const auto task = [data = only(tensors), to](comm::Communicator& c) {
      c.send(data.data_ptr(), data.nbytes(), to);
    };
    threads_->start_send(to, task, std::move(done));
  });
}

CommBackend::WorkPtr CommBackend::recv(Tensors& tensors, int from, int) {
  return start_with(c10d::OpType::RECV, tensors, [&](CommThreads::Done done) {
    const auto task = [data = only(tensors), from](comm::Communicator& c) {
      c.recv(data.data_ptr(), data.nbytes(), from);
    };
    threads_->start_recv(from, task, std::move(done));
  });
}

}  // namespace tutti::collective
