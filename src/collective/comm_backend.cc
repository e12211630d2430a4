#include "collective/comm_backend.h"

#include <numeric>
#include <utility>

#include "collective/dense.h"

namespace tutti::collective {
namespace {

using c10::ivalue::Future;

class BackendWork : public c10d::Work {
 public:
  BackendWork(int rank, c10d::OpType type, std::vector<at::Tensor> results)
      : Work(rank, type),
        results_(std::move(results)),
        future_(c10::make_intrusive<Future>(c10::ListType::ofTensors())) {}
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<Future> getFuture() override { return future_; }
  void end(std::exception_ptr error) {
    finish(error);
    if (error)
      future_->setError(std::move(error));
    else
      future_->markCompleted(results_);
  }

 private:
  std::vector<at::Tensor> results_;
  c10::intrusive_ptr<Future> future_;
};

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

void check_message(int tag) {
  TORCH_CHECK(tag == 0, "tutti matches messages in order and takes no tags, got tag ", tag);
}

}  // namespace

CommBackend::CommBackend(std::shared_ptr<CommThreads> threads)
    : Backend(threads->communicator().rank(), threads->communicator().size()),
      threads_(std::move(threads)) {}

void CommBackend::setTimeout(std::chrono::milliseconds timeout) {
  const double seconds = static_cast<double>(timeout.count()) * 1e-3;
  threads_->start([=](comm::Communicator& c) { c.set_timeout(seconds); }, [](auto) {});
}

void CommBackend::abort() { threads_->communicator().abort("the process group was aborted"); }

void CommBackend::shutdown() { threads_->finish(); }

// Has `begin` start a task of the group, told how it ends.
template <class Begin>
CommBackend::WorkPtr CommBackend::start_with(c10d::OpType type, Tensors results, Begin begin) {
  auto work = c10::make_intrusive<BackendWork>(getRank(), type, std::move(results));
  begin([work](std::exception_ptr error) { work->end(std::move(error)); });
  return work;
}

CommBackend::WorkPtr CommBackend::start(c10d::OpType type, Tensors results,
                                        CommThreads::Task task) {
  ++sequence_;
  return start_with(type, std::move(results), [&](CommThreads::Done done) {
    threads_->start(
        [task = std::move(task)](comm::Communicator& c) {
          const at::NoGradGuard no_grad;
          task(c);
        },
        std::move(done));
  });
}

CommBackend::WorkPtr CommBackend::broadcast(Tensors& tensors,
                                            const c10d::BroadcastOptions& options) {
  const Dense data(only(tensors));
  const int root = static_cast<int>(options.rootRank);
  return start(c10d::OpType::BROADCAST, tensors, [data, root](comm::Communicator& c) {
    c.broadcast(data.data(), data.count(), data.type(), root);
    data.give_back();
  });
}

CommBackend::WorkPtr CommBackend::allreduce(Tensors& tensors,
                                            const c10d::AllreduceOptions& options) {
  const Dense data(only(tensors));
  return start(c10d::OpType::ALLREDUCE, tensors,
               [data, reduce = to_reduce(options.reduceOp)](comm::Communicator& c) {
                 c.all_reduce(data.data(), data.count(), data.type(), reduce);
                 data.give_back();
               });
}

CommBackend::WorkPtr CommBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const Dense data(only(tensors));
  const int root = static_cast<int>(options.rootRank);
  return start(c10d::OpType::REDUCE, tensors,
               [data, root, reduce = to_reduce(options.reduceOp)](comm::Communicator& c) {
                 c.reduce(data.data(), data.data(), data.count(), data.type(), reduce, root);
                 if (c.rank() == root) data.give_back();
               });
}

CommBackend::WorkPtr CommBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::AllgatherOptions&) {
  check_sizes(output, input, getSize());
  return start(c10d::OpType::_ALLGATHER_BASE, {output},
               [out = Dense(output), in = Dense(input)](comm::Communicator& c) {
                 c.all_gather(in.data(), out.data(), in.count(), in.type());
                 out.give_back();
               });
}

CommBackend::WorkPtr CommBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::ReduceScatterOptions& options) {
  check_sizes(input, output, getSize());
  return start(c10d::OpType::_REDUCE_SCATTER_BASE, {output},
               [out = Dense(output), in = Dense(input),
                reduce = to_reduce(options.reduceOp)](comm::Communicator& c) {
                 c.reduce_scatter(in.data(), out.data(), out.count(), out.type(), reduce);
                 out.give_back();
               });
}

CommBackend::WorkPtr CommBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                std::vector<int64_t>& output_sizes,
                                                std::vector<int64_t>& input_sizes,
                                                const c10d::AllToAllOptions&) {
  TORCH_CHECK(input.scalar_type() == output.scalar_type(), "alltoall_base of two types");
  return start(
      c10d::OpType::ALLTOALL_BASE, {output},
      [out = Dense(output), in = Dense(input), receive = parts_of(output, output_sizes, getSize()),
       send = parts_of(input, input_sizes, getSize())](comm::Communicator& c) {
        c.all_to_all_v(in.data(), send, out.data(), receive, in.type());
        out.give_back();
      });
}

CommBackend::WorkPtr CommBackend::barrier(const c10d::BarrierOptions&) {
  return start(c10d::OpType::BARRIER, {}, [](comm::Communicator& c) { c.barrier(); });
}

CommBackend::WorkPtr CommBackend::send(Tensors& tensors, int to, int tag) {
  check_message(tag);
  return start_with(c10d::OpType::SEND, {}, [&](CommThreads::Done done) {
    const auto task = [data = Dense(only(tensors)), to](comm::Communicator& c) {
      c.send(data.data(), data.bytes(), to);
    };
    threads_->start_send(to, task, std::move(done));
  });
}

CommBackend::WorkPtr CommBackend::recv(Tensors& tensors, int from, int tag) {
  check_message(tag);
  return start_with(c10d::OpType::RECV, tensors, [&](CommThreads::Done done) {
    const auto task = [data = Dense(only(tensors)), from](comm::Communicator& c) {
      const at::NoGradGuard no_grad;
      c.recv(data.data(), data.bytes(), from);
      data.give_back();
    };
    threads_->start_recv(from, task, std::move(done));
  });
}

}  // namespace tutti::collective
