#include "collective/group.h"

#include <ATen/ATen.h>

#include <condition_variable>
#include <mutex>
#include <utility>

#include "collective/comm_backend.h"
#include "collective/comm_thread.h"
#include "collective/dtypes.h"
#include "collective/gloo.h"
#include "comm/memory_group.h"

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

std::shared_ptr<Work> start(CommThread& thread, CommThread::Task task) {
  auto work = std::make_shared<StartedWork>();
  thread.start(std::move(task), [work](std::exception_ptr error) { work->end(std::move(error)); });
  return work;
}

void check(const at::Tensor& tensor) {
  TUTTI_ASSERT(tensor.device().is_cpu() && tensor.is_contiguous(),
               "collectives take contiguous tensors on the CPU");
}

std::size_t count_of(const at::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }

}  // namespace

Group::Group(std::unique_ptr<comm::Communicator> communicator)
    : thread_(std::make_shared<CommThread>(std::move(communicator))),
      backend_(c10::make_intrusive<CommBackend>(thread_)) {}

Group::~Group() { thread_->finish(); }

int Group::rank() const { return thread_->communicator().rank(); }
int Group::size() const { return thread_->communicator().size(); }
std::string Group::transport() const { return thread_->communicator().transport(); }
c10::intrusive_ptr<c10d::Backend> Group::backend() { return backend_; }
void Group::abort(const std::string& reason) { thread_->communicator().abort(reason); }

std::shared_ptr<Work> Group::tree_all_reduce_async(std::vector<at::Tensor> nodes, at::Tensor out,
                                                   const comm::ReductionPlan& plan) {
  check(out);
  const DType type = to_dtype(out.scalar_type());
  for (const auto& node : nodes) {
    check(node);
    TUTTI_ASSERT(node.numel() == out.numel() && node.scalar_type() == out.scalar_type());
  }
  return start(*thread_, [nodes = std::move(nodes), out = std::move(out), type,
                          &plan](comm::Communicator& c) {
    const void* places[comm::max_memory_ranks];
    TUTTI_ASSERT(nodes.size() <= comm::max_memory_ranks);
    for (std::size_t k = 0; k < nodes.size(); ++k) places[k] = nodes[k].const_data_ptr();
    c.tree_all_reduce({places, nodes.size()}, out.data_ptr(), count_of(out), type, plan);
  });
}

std::shared_ptr<Work> Group::all_reduce_async(at::Tensor data, comm::Reduce reduce) {
  check(data);
  const DType type = to_dtype(data.scalar_type());
  return start(*thread_, [=](comm::Communicator& c) {
    c.all_reduce(data.data_ptr(), count_of(data), type, reduce);
  });
}

std::shared_ptr<Work> Group::broadcast_async(at::Tensor data, int root) {
  check(data);
  const DType type = to_dtype(data.scalar_type());
  return start(*thread_, [=](comm::Communicator& c) {
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

void Group::broadcast(at::Tensor data, int root) { broadcast_async(std::move(data), root)->wait(); }

at::Tensor Group::all_gather(at::Tensor data) {
  check(data);
  std::vector<std::int64_t> shape = data.sizes().vec();
  shape.insert(shape.begin(), size());
  at::Tensor all = at::empty(shape, data.options());
  const DType type = to_dtype(data.scalar_type());
  start(*thread_, [=](comm::Communicator& c) {
    c.all_gather(data.const_data_ptr(), all.data_ptr(), count_of(data), type);
  })->wait();
  return all;
}

void Group::barrier() {
  start(*thread_, [](comm::Communicator& c) { c.barrier(); })->wait();
}

at::Tensor Group::empty_shared(std::int64_t count, at::ScalarType type) {
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(to_dtype(type));
  void* memory = thread_->communicator().allocate_shared(bytes);
  const auto options = at::TensorOptions().dtype(type);
  if (!memory) return at::zeros({count}, options);
  return at::from_blob(memory, {count}, [keep = thread_->owner()](void*) {}, options);
}

std::shared_ptr<Group> make_group(const GroupOptions& options) {
  std::string transport = options.transport;
  if (transport == "auto") transport = options.local_size == options.size ? "shm" : "gloo";
  if (transport == "gloo") return std::make_shared<Group>(join_gloo(options));
  if (transport != "shm")
    throw ConfigError(
        std::vector<Violation>{{"transport", "", transport, "must be one of auto, shm, gloo", ""}});
  comm::MemoryOptions memory;
  memory.group = options.group;
  memory.timeout = options.timeout;
  return std::make_shared<Group>(
      comm::join_shm(str(options.name, "/", options.group), options.rank, options.size, memory));
}

std::vector<std::shared_ptr<Group>> make_thread_groups(int size) {
  std::vector<std::shared_ptr<Group>> groups;
  for (auto& communicator : comm::make_thread_group(size))
    groups.push_back(std::make_shared<Group>(std::move(communicator)));
  return groups;
}

}  // namespace tutti::collective
