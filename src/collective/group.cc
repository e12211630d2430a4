#include "collective/group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "collective/comm_backend.h"
#include "collective/comm_thread.h"
#include "collective/dtypes.h"

namespace tutti::collective {
namespace {

class StartedWork : public Work {
 public:
  // Adds the seconds that are waited to `waited`.
  explicit StartedWork(std::shared_ptr<std::atomic<double>> waited) : waited_(std::move(waited)) {}
  bool done() const override {
    const std::lock_guard lock(mutex_);
    return done_;
  }
  void wait() override {
    std::unique_lock lock(mutex_);
    if (!done_) {
      const double start = real_clock().now();
      ended_.wait(lock, [this] { return done_; });
      *waited_ += real_clock().now() - start;
    }
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
  std::shared_ptr<std::atomic<double>> waited_;
};

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

Group::Group(std::unique_ptr<comm::Communicator> communicator, Meet meet, std::int64_t host)
    : threads_(std::make_shared<CommThreads>(std::move(communicator))),
      backend_(c10::make_intrusive<CommBackend>(threads_)),
      meet_(std::move(meet)),
      host_(host) {}

Group::~Group() { threads_->finish(); }

int Group::rank() const { return threads_->communicator().rank(); }
int Group::size() const { return threads_->communicator().size(); }
std::string Group::transport() const { return threads_->communicator().transport(); }
const std::string& Group::name() const { return threads_->communicator().group(); }
c10::intrusive_ptr<c10d::Backend> Group::backend() { return backend_; }

void Group::record(std::shared_ptr<comm::FlightRecorder> recorder) {
  taps_->recorder = std::move(recorder);
  enter_record();
}

void Group::enter_record() {
  recorded_ =
      taps_->recorder && size() > 1 ? taps_->recorder->add_group(name(), key_, rank(), size()) : -1;
}

// The task with its times written down, and its site in its error.
CommThreads::Task Group::noted(const Asked& asked, CommThreads::Task task) {
  auto recorder = recorded_ >= 0 ? taps_->recorder : nullptr;
  const bool message = asked.lane != Lane::collective;
  const std::uint64_t number = recorder ? ++asked_[{asked.lane, message ? asked.peer : -1}] : 0;
  const std::uint64_t order = recorder ? recorder->ask({recorded_, asked.operation, asked.type,
                                                        static_cast<std::int64_t>(asked.bytes),
                                                        number, asked.peer, message, asked.site})
                                       : 0;
  return [recorder, order, number, site = asked.site,
          task = std::move(task)](comm::Communicator& c) {
    if (recorder) recorder->start(order);
    try {
      task(c);
    } catch (const WorldError& error) {
      if (recorder) recorder->end(order, true);
      throw WorldError(str(error.what(), " (", recorder ? str("recorded as #", number, ", ") : "",
                           "asked for at ", comm::site_text(site), ")"));
    } catch (...) {
      if (recorder) recorder->end(order, true);
      throw;
    }
    if (recorder) recorder->end(order, false);
  };
}

std::shared_ptr<Work> Group::start(const Asked& asked, CommThreads::Task task) {
  if (taps_->observer)
    taps_->observer({*this, asked.operation, static_cast<std::int64_t>(asked.bytes)});
  auto work =
      std::make_shared<StartedWork>(std::shared_ptr<std::atomic<double>>(taps_, &taps_->waited));
  const auto done = [work](std::exception_ptr error) { work->end(std::move(error)); };
  const std::lock_guard lock(asked_mutex_);
  task = noted(asked, std::move(task));
  if (asked.lane == Lane::to)
    threads_->start_send(asked.peer, std::move(task), done);
  else if (asked.lane == Lane::from)
    threads_->start_recv(asked.peer, std::move(task), done);
  else
    threads_->start(std::move(task), done);
  return work;
}

std::shared_ptr<Work> Group::tree_all_reduce_async(std::vector<at::Tensor> nodes, at::Tensor out,
                                                   const comm::ReductionPlan& plan, Site site) {
  check(out);
  TUTTI_ASSERT(nodes.empty() ||
               (nodes[0].numel() == out.numel() && nodes[0].scalar_type() == out.scalar_type()));
  const DType type = to_dtype(out.scalar_type());
  return start(
      {"tree_all_reduce", out.nbytes(), type, site},
      [nodes = Nodes(std::move(nodes)), out = std::move(out), type, &plan](comm::Communicator& c) {
        c.tree_all_reduce(nodes.places, out.data_ptr(), count_of(out), type, plan);
      });
}

std::shared_ptr<Work> Group::tree_reduce_scatter_async(std::vector<at::Tensor> nodes,
                                                       at::Tensor out, Counts counts,
                                                       const comm::ReductionPlan& plan, Site site) {
  for (const auto& node : nodes) check_parts(node, counts);
  check_part(out, nodes.empty() ? out : nodes[0], counts, rank());
  const DType type = to_dtype(out.scalar_type());
  const std::size_t bytes = static_cast<std::size_t>(sum_of(counts)) * out.element_size();
  return start({"tree_reduce_scatter", bytes, type, site},
               [nodes = Nodes(std::move(nodes)), out = std::move(out), type,
                parts = checked(counts, size()), &plan](comm::Communicator& c) {
                 c.tree_reduce_scatter(nodes.places, out.data_ptr(), parts, type, plan);
               });
}

std::shared_ptr<Work> Group::reduce_scatter_v_async(at::Tensor in, at::Tensor out, Counts counts,
                                                    comm::Reduce reduce, Site site) {
  check(in);
  check_parts(in, counts);
  check_part(out, in, counts, rank());
  const DType type = to_dtype(in.scalar_type());
  return start({"reduce_scatter_v", in.nbytes(), type, site},
               [=, parts = checked(counts, size())](comm::Communicator& c) {
                 c.reduce_scatter_v(in.const_data_ptr(), out.data_ptr(), parts, type, reduce);
               });
}

std::shared_ptr<Work> Group::all_gather_v_async(at::Tensor in, at::Tensor out, Counts counts,
                                                Site site) {
  check(out);
  check_parts(out, counts);
  check_part(in, out, counts, rank());
  const DType type = to_dtype(in.scalar_type());
  return start({"all_gather_v", out.nbytes(), type, site},
               [=, parts = checked(counts, size())](comm::Communicator& c) {
                 c.all_gather_v(in.const_data_ptr(), out.data_ptr(), parts, type);
               });
}

std::shared_ptr<Work> Group::all_to_all_v_async(at::Tensor in, at::Tensor out, Counts send,
                                                Counts recv, Site site) {
  check(in);
  check(out);
  TUTTI_ASSERT(in.scalar_type() == out.scalar_type());
  check_parts(in, send);
  check_parts(out, recv);
  const DType type = to_dtype(in.scalar_type());
  return start(
      {"all_to_all_v", std::max(in.nbytes(), out.nbytes()), type, site},
      [=, sent = checked(send, size()), received = checked(recv, size())](comm::Communicator& c) {
        c.all_to_all_v(in.const_data_ptr(), sent, out.data_ptr(), received, type);
      });
}

std::shared_ptr<Work> Group::reduce_async(at::Tensor in, at::Tensor out, int root,
                                          comm::Reduce reduce, Site site) {
  check(in);
  if (rank() == root) {
    check(out);
    TUTTI_ASSERT(out.numel() == in.numel() && out.scalar_type() == in.scalar_type());
  }
  const DType type = to_dtype(in.scalar_type());
  return start({"reduce", in.nbytes(), type, site, Lane::collective, root},
               [=](comm::Communicator& c) {
                 c.reduce(in.const_data_ptr(), out.defined() ? out.data_ptr() : nullptr,
                          count_of(in), type, reduce, root);
               });
}

std::shared_ptr<Work> Group::gather_v_async(at::Tensor in, at::Tensor out, Counts counts, int root,
                                            Site site) {
  if (rank() == root) check(out), check_parts(out, counts);
  check_part(in, rank() == root ? out : in, counts, rank());
  const DType type = to_dtype(in.scalar_type());
  const std::size_t bytes = static_cast<std::size_t>(sum_of(counts)) * in.element_size();
  return start({"gather_v", bytes, type, site, Lane::collective, root},
               [=, parts = checked(counts, size())](comm::Communicator& c) {
                 c.gather_v(in.const_data_ptr(), out.defined() ? out.data_ptr() : nullptr, parts,
                            type, root);
               });
}

std::shared_ptr<Work> Group::scatter_v_async(at::Tensor in, at::Tensor out, Counts counts, int root,
                                             Site site) {
  if (rank() == root) check(in), check_parts(in, counts);
  check_part(out, rank() == root ? in : out, counts, rank());
  const DType type = to_dtype(out.scalar_type());
  const std::size_t bytes = static_cast<std::size_t>(sum_of(counts)) * out.element_size();
  return start({"scatter_v", bytes, type, site, Lane::collective, root},
               [=, parts = checked(counts, size())](comm::Communicator& c) {
                 c.scatter_v(in.defined() ? in.const_data_ptr() : nullptr, out.data_ptr(), parts,
                             type, root);
               });
}

std::shared_ptr<Work> Group::send_async(at::Tensor data, int to, Site site) {
  check(data);
  return start({"send", data.nbytes(), DType::u8, site, Lane::to, to},
               [=](comm::Communicator& c) { c.send(data.const_data_ptr(), data.nbytes(), to); });
}

std::shared_ptr<Work> Group::recv_async(at::Tensor data, int from, Site site) {
  check(data);
  return start({"recv", data.nbytes(), DType::u8, site, Lane::from, from},
               [=](comm::Communicator& c) { c.recv(data.data_ptr(), data.nbytes(), from); });
}

std::shared_ptr<Work> Group::all_reduce_async(at::Tensor data, comm::Reduce reduce, Site site) {
  check(data);
  const DType type = to_dtype(data.scalar_type());
  return start({"all_reduce", data.nbytes(), type, site}, [=](comm::Communicator& c) {
    c.all_reduce(data.data_ptr(), count_of(data), type, reduce);
  });
}

std::shared_ptr<Work> Group::broadcast_async(at::Tensor data, int root, Site site) {
  check(data);
  const DType type = to_dtype(data.scalar_type());
  return start(
      {"broadcast", data.nbytes(), type, site, Lane::collective, root},
      [=](comm::Communicator& c) { c.broadcast(data.data_ptr(), count_of(data), type, root); });
}

void Group::tree_all_reduce(std::vector<at::Tensor> nodes, at::Tensor out,
                            const comm::ReductionPlan& plan, Site site) {
  tree_all_reduce_async(std::move(nodes), std::move(out), plan, site)->wait();
}

void Group::all_reduce(at::Tensor data, comm::Reduce reduce, Site site) {
  all_reduce_async(std::move(data), reduce, site)->wait();
}

void Group::tree_reduce_scatter(std::vector<at::Tensor> nodes, at::Tensor out, Counts counts,
                                const comm::ReductionPlan& plan, Site site) {
  tree_reduce_scatter_async(std::move(nodes), std::move(out), std::move(counts), plan, site)
      ->wait();
}

void Group::reduce_scatter_v(at::Tensor in, at::Tensor out, Counts counts, comm::Reduce reduce,
                             Site site) {
  reduce_scatter_v_async(std::move(in), std::move(out), std::move(counts), reduce, site)->wait();
}

void Group::all_gather_v(at::Tensor in, at::Tensor out, Counts counts, Site site) {
  all_gather_v_async(std::move(in), std::move(out), std::move(counts), site)->wait();
}

void Group::all_to_all_v(at::Tensor in, at::Tensor out, Counts send, Counts recv, Site site) {
  all_to_all_v_async(std::move(in), std::move(out), std::move(send), std::move(recv), site)->wait();
}

void Group::reduce(at::Tensor in, at::Tensor out, int root, comm::Reduce reduce, Site site) {
  reduce_async(std::move(in), std::move(out), root, reduce, site)->wait();
}

void Group::gather_v(at::Tensor in, at::Tensor out, Counts counts, int root, Site site) {
  gather_v_async(std::move(in), std::move(out), std::move(counts), root, site)->wait();
}

void Group::scatter_v(at::Tensor in, at::Tensor out, Counts counts, int root, Site site) {
  scatter_v_async(std::move(in), std::move(out), std::move(counts), root, site)->wait();
}

void Group::send(at::Tensor data, int to, Site site) {
  send_async(std::move(data), to, site)->wait();
}
void Group::recv(at::Tensor data, int from, Site site) {
  recv_async(std::move(data), from, site)->wait();
}

void Group::broadcast(at::Tensor data, int root, Site site) {
  broadcast_async(std::move(data), root, site)->wait();
}

at::Tensor Group::all_gather(at::Tensor data, Site site) {
  check(data);
  std::vector<std::int64_t> shape = data.sizes().vec();
  shape.insert(shape.begin(), size());
  at::Tensor all = at::empty(shape, data.options());
  const DType type = to_dtype(data.scalar_type());
  start({"all_gather", all.nbytes(), type, site}, [=](comm::Communicator& c) {
    c.all_gather(data.const_data_ptr(), all.data_ptr(), count_of(data), type);
  })->wait();
  return all;
}

void Group::barrier(Site site) {
  start({"barrier", 0, DType::u8, site}, [](comm::Communicator& c) { c.barrier(); })->wait();
}

at::Tensor Group::empty_shared(std::int64_t count, at::ScalarType type) {
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(to_dtype(type));
  void* memory = threads_->communicator().allocate_shared(bytes);
  const auto options = at::TensorOptions().dtype(type);
  if (!memory) return at::zeros({count}, options);
  return at::from_blob(memory, {count}, [keep = threads_->owner()](void*) {}, options);
}

}  // namespace tutti::collective
