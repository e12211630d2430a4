#include "collective/group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <utility>

#include "collective/comm_backend.h"
#include "collective/comm_thread.h"
#include "collective/dtypes.h"

namespace tutti::collective {
namespace {

class StartedWork : public Work {
 public:
  bool done() const override {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  void wait() override {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return done_; });
    if (error_) std::rethrow_exception(error_);
  }
  void end(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    done_ = true;
    ended_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::exception_ptr error_;
};

std::pair<std::shared_ptr<Work>, CommThreads::Done> new_work() {
  auto work = std::make_shared<StartedWork>();
  return {work, [work](std::exception_ptr error) { work->end(std::move(error)); }};
}

std::shared_ptr<Work> start(CommThreads& threads, CommThreads::Task task) {
  auto [work, done] = new_work();
  threads.start(std::move(task), std::move(done));
  return work;
}

void check(const at::Tensor& tensor) {
  TUTTI_ASSERT(tensor.device().is_cpu() && tensor.is_contiguous(),
               "collectives take contiguous tensors on the CPU");
}

std::size_t count_of(const at::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }

std::vector<std::size_t> checked(const Counts& counts, int ranks) {
  TUTTI_ASSERT(counts.size() == static_cast<std::size_t>(ranks), counts.size(), " counts for ",
               ranks, " ranks");
  for (const std::int64_t count : counts) TUTTI_ASSERT(count >= 0, count);
  return {counts.begin(), counts.end()};
}

std::int64_t sum_of(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

void check_parts(const at::Tensor& whole, const Counts& counts) {
  const std::int64_t sum = sum_of(counts);
  TUTTI_ASSERT(whole.numel() == sum, "parts of ", sum, " elements, a tensor of ", whole.numel());
}

void check_part(const at::Tensor& part, const at::Tensor& whole, const Counts& counts, int rank) {
  check(part);
  TUTTI_ASSERT(part.scalar_type() == whole.scalar_type() &&
                   part.numel() == counts[static_cast<std::size_t>(rank)],
               part.numel(), " elements for the part of rank ", rank);
}

// What a task needs of its nodes: they are kept alive, and their places are known.
struct Nodes {
  std::vector<at::Tensor> tensors;
  std::vector<const void*> places;

  explicit Nodes(std::vector<at::Tensor> nodes) : tensors(std::move(nodes)) {
    for (const auto& node : tensors) {
      check(node);
      TUTTI_ASSERT(node.numel() == tensors[0].numel() &&
                   node.scalar_type() == tensors[0].scalar_type());
      places.push_back(node.const_data_ptr());
    }
  }
};

}  // namespace

Group::Group(std::unique_ptr<comm::Communicator> communicator, Meet meet)
    : threads_(std::make_shared<CommThreads>(std::move(communicator))),
      backend_(c10::make_intrusive<CommBackend>(threads_)),
      meet_(std::move(meet)) {}

Group::~Group() { threads_->finish(); }

int Group::rank() const { return threads_->communicator().rank(); }
int Group::size() const { return threads_->communicator().size(); }
std::string Group::transport() const { return threads_->communicator().transport(); }
const std::string& Group::name() const { return threads_->communicator().group(); }
c10::intrusive_ptr<c10d::Backend> Group::backend() { return backend_; }

void Group::tell(const char* operation, std::size_t bytes) const {
  if (*observer_) (*observer_)({*this, operation, static_cast<std::int64_t>(bytes)});
}

std::shared_ptr<Work> Group::tree_all_reduce_async(std::vector<at::Tensor> nodes, at::Tensor out,
                                                   const comm::ReductionPlan& plan) {
  check(out);
  TUTTI_ASSERT(nodes.empty() ||
               (nodes[0].numel() == out.numel() && nodes[0].scalar_type() == out.scalar_type()));
  const DType type = to_dtype(out.scalar_type());
  tell("tree_all_reduce", out.nbytes());
  return start(*threads_, [nodes = Nodes(std::move(nodes)), out = std::move(out), type,
                           &plan](comm::Communicator& c) {
    c.tree_all_reduce(nodes.places, out.data_ptr(), count_of(out), type, plan);
  });
}

std::shared_ptr<Work> Group::tree_reduce_scatter_async(std::vector<at::Tensor> nodes,
                                                       at::Tensor out, Counts counts,
                                                       const comm::ReductionPlan& plan) {
  for (const auto& node : nodes) check_parts(node, counts);
  check_part(out, nodes.empty() ? out : nodes[0], counts, rank());
  const DType type = to_dtype(out.scalar_type());
  tell("tree_reduce_scatter", static_cast<std::size_t>(sum_of(counts)) * out.element_size());
  return start(*threads_, [nodes = Nodes(std::move(nodes)), out = std::move(out), type,
                           parts = checked(counts, size()), &plan](comm::Communicator& c) {
    c.tree_reduce_scatter(nodes.places, out.data_ptr(), parts, type, plan);
  });
}

std::shared_ptr<Work> Group::reduce_scatter_v_async(at::Tensor in, at::Tensor out, Counts counts,
                                                    comm::Reduce reduce) {
  check(in);
  check_parts(in, counts);
  check_part(out, in, counts, rank());
  const DType type = to_dtype(in.scalar_type());
  tell("reduce_scatter_v", in.nbytes());
  return start(*threads_, [=, parts = checked(counts, size())](comm::Communicator& c) {
    c.reduce_scatter_v(in.const_data_ptr(), out.data_ptr(), parts, type, reduce);
  });
}

std::shared_ptr<Work> Group::all_gather_v_async(at::Tensor in, at::Tensor out, Counts counts) {
  check(out);
  check_parts(out, counts);
  check_part(in, out, counts, rank());
  const DType type = to_dtype(in.scalar_type());
  tell("all_gather_v", out.nbytes());
  return start(*threads_, [=, parts = checked(counts, size())](comm::Communicator& c) {
    c.all_gather_v(in.const_data_ptr(), out.data_ptr(), parts, type);
  });
}

std::shared_ptr<Work> Group::all_to_all_v_async(at::Tensor in, at::Tensor out, Counts send,
                                                Counts recv) {
  check(in);
  check(out);
  TUTTI_ASSERT(in.scalar_type() == out.scalar_type());
  check_parts(in, send);
  check_parts(out, recv);
  const DType type = to_dtype(in.scalar_type());
  tell("all_to_all_v", std::max(in.nbytes(), out.nbytes()));
  return start(*threads_, [=, sent = checked(send, size()),
                           received = checked(recv, size())](comm::Communicator& c) {
    c.all_to_all_v(in.const_data_ptr(), sent, out.data_ptr(), received, type);
  });
}

std::shared_ptr<Work> Group::reduce_async(at::Tensor in, at::Tensor out, int root,
                                          comm::Reduce reduce) {
  check(in);
  if (rank() == root) {
    check(out);
    TUTTI_ASSERT(out.numel() == in.numel() && out.scalar_type() == in.scalar_type());
  }
  const DType type = to_dtype(in.scalar_type());
  tell("reduce", in.nbytes());
  return start(*threads_, [=](comm::Communicator& c) {
    c.reduce(in.const_data_ptr(), out.defined() ? out.data_ptr() : nullptr, count_of(in), type,
             reduce, root);
  });
}

std::shared_ptr<Work> Group::gather_v_async(at::Tensor in, at::Tensor out, Counts counts,
                                            int root) {
  if (rank() == root) check(out), check_parts(out, counts);
  check_part(in, rank() == root ? out : in, counts, rank());
  const DType type = to_dtype(in.scalar_type());
  tell("gather_v", static_cast<std::size_t>(sum_of(counts)) * in.element_size());
  return start(*threads_, [=, parts = checked(counts, size())](comm::Communicator& c) {
    c.gather_v(in.const_data_ptr(), out.defined() ? out.data_ptr() : nullptr, parts, type, root);
  });
}

std::shared_ptr<Work> Group::scatter_v_async(at::Tensor in, at::Tensor out, Counts counts,
                                             int root) {
  if (rank() == root) check(in), check_parts(in, counts);
  check_part(out, rank() == root ? in : out, counts, rank());
  const DType type = to_dtype(out.scalar_type());
  tell("scatter_v", static_cast<std::size_t>(sum_of(counts)) * out.element_size());
  return start(*threads_, [=, parts = checked(counts, size())](comm::Communicator& c) {
    c.scatter_v(in.defined() ? in.const_data_ptr() : nullptr, out.data_ptr(), parts, type, root);
  });
}

std::shared_ptr<Work> Group::send_async(at::Tensor data, int to) {
  check(data);
  tell("send", data.nbytes());
  auto [work, done] = new_work();
  const auto task = [=](comm::Communicator& c) {
    c.send(data.const_data_ptr(), data.nbytes(), to);
  };
  threads_->start_send(to, task, std::move(done));
  return work;
}

std::shared_ptr<Work> Group::recv_async(at::Tensor data, int from) {
  check(data);
  tell("recv", data.nbytes());
  auto [work, done] = new_work();
  const auto task = [=](comm::Communicator& c) { c.recv(data.data_ptr(), data.nbytes(), from); };
  threads_->start_recv(from, task, std::move(done));
  return work;
}

std::shared_ptr<Work> Group::all_reduce_async(at::Tensor data, comm::Reduce reduce) {
  check(data);
  const DType type = to_dtype(data.scalar_type());
  tell("all_reduce", data.nbytes());
  return start(*threads_, [=](comm::Communicator& c) {
    c.all_reduce(data.data_ptr(), count_of(data), type, reduce);
  });
}

std::shared_ptr<Work> Group::broadcast_async(at::Tensor data, int root) {
  check(data);
  const DType type = to_dtype(data.scalar_type());
  tell("broadcast", data.nbytes());
  return start(*threads_, [=](comm::Communicator& c) {
    c.broadcast(data.data_ptr(), count_of(data), type, root);
  });
}

void Group::tree_all_reduce(std::vector<at::Tensor> nodes, at::Tensor out,
                            const comm::ReductionPlan& plan) {
  tree_all_reduce_async(std::move(nodes), std::move(out), plan)->wait();
}

void Group::all_reduce(at::Tensor data, comm::Reduce reduce) {
  all_reduce_async(std::move(data), reduce)->wait();
}

void Group::tree_reduce_scatter(std::vector<at::Tensor> nodes, at::Tensor out, Counts counts,
                                const comm::ReductionPlan& plan) {
  tree_reduce_scatter_async(std::move(nodes), std::move(out), std::move(counts), plan)->wait();
}

void Group::reduce_scatter_v(at::Tensor in, at::Tensor out, Counts counts, comm::Reduce reduce) {
  reduce_scatter_v_async(std::move(in), std::move(out), std::move(counts), reduce)->wait();
}

void Group::all_gather_v(at::Tensor in, at::Tensor out, Counts counts) {
  all_gather_v_async(std::move(in), std::move(out), std::move(counts))->wait();
}

void Group::all_to_all_v(at::Tensor in, at::Tensor out, Counts send, Counts recv) {
  all_to_all_v_async(std::move(in), std::move(out), std::move(send), std::move(recv))->wait();
}

void Group::reduce(at::Tensor in, at::Tensor out, int root, comm::Reduce reduce) {
  reduce_async(std::move(in), std::move(out), root, reduce)->wait();
}

void Group::gather_v(at::Tensor in, at::Tensor out, Counts counts, int root) {
  gather_v_async(std::move(in), std::move(out), std::move(counts), root)->wait();
}

void Group::scatter_v(at::Tensor in, at::Tensor out, Counts counts, int root) {
  scatter_v_async(std::move(in), std::move(out), std::move(counts), root)->wait();
}

void Group::send(at::Tensor data, int to) { send_async(std::move(data), to)->wait(); }
void Group::recv(at::Tensor data, int from) { recv_async(std::move(data), from)->wait(); }

void Group::broadcast(at::Tensor data, int root) { broadcast_async(std::move(data), root)->wait(); }

at::Tensor Group::all_gather(at::Tensor data) {
  check(data);
  std::vector<std::int64_t> shape = data.sizes().vec();
  shape.insert(shape.begin(), size());
  at::Tensor all = at::empty(shape, data.options());
  const DType type = to_dtype(data.scalar_type());
  tell("all_gather", all.nbytes());
  start(*threads_, [=](comm::Communicator& c) {
    c.all_gather(data.const_data_ptr(), all.data_ptr(), count_of(data), type);
  })->wait();
  return all;
}

void Group::barrier() {
  tell("barrier", 0);
  start(*threads_, [](comm::Communicator& c) { c.barrier(); })->wait();
}

at::Tensor Group::empty_shared(std::int64_t count, at::ScalarType type) {
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(to_dtype(type));
  void* memory = threads_->communicator().allocate_shared(bytes);
  const auto options = at::TensorOptions().dtype(type);
  if (!memory) return at::zeros({count}, options);
  return at::from_blob(memory, {count}, [keep = threads_->owner()](void*) {}, options);
}

}  // namespace tutti::collective
