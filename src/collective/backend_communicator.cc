#include "collective/backend_communicator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "comm/reduce.h"

namespace tutti::collective {
namespace {

std::size_t n(int value) { return static_cast<std::size_t>(value); }

at::Tensor bytes_at(const void* data, std::size_t bytes) {
  return at::from_blob(const_cast<void*>(data), {static_cast<std::int64_t>(bytes)}, at::kByte);
}

at::Tensor& grown(at::Tensor& scratch, std::size_t bytes) {
  if (!scratch.defined() || scratch.nbytes() < bytes)
    scratch = at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);
  return scratch;
}

at::Tensor part_of(at::Tensor& scratch, std::size_t bytes) {
  return grown(scratch, bytes).narrow(0, 0, static_cast<std::int64_t>(bytes));
}

std::byte* data_of(at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

}  // namespace

BackendCommunicator::BackendCommunicator(c10::intrusive_ptr<c10d::Backend> backend,
                                         std::string transport, std::string group, double timeout,
                                         std::function<std::string()> lost_peers)
    : Communicator(backend->getRank(), backend->getSize(), std::move(group)),
      backend_(std::move(backend)),
      transport_(std::move(transport)),
      lost_peers_(std::move(lost_peers)),
      ranks_plan_(comm::plan_reduction(comm::even_ranges(size(), size()))),
      backend_timeout_(timeout) {
  set_timeout(timeout);
}

template <class Start>
void BackendCommunicator::run(const Name& name, Start start) {
  if (!broken_.empty()) throw WorldError(broken_);
  {
    const std::lock_guard lock(mutex_);
    if (!abort_reason_.empty()) fail(name, abort_reason_);
  }
  try {
    const std::chrono::milliseconds limit(static_cast<std::int64_t>(timeout() * 1e3));
    if (timeout() != backend_timeout_) backend_->setTimeout(limit);
    backend_timeout_ = timeout();
    const WorkPtr work = start();
    if (work && !work->wait(limit)) fail(name, "was aborted");
  } catch (const WorldError&) {
    throw;
  } catch (const std::exception& error) {
    fail(name, error.what());
  }
}

void BackendCommunicator::fail(const Name& name, const std::string& cause) {
  const std::string lost = lost_peers_ ? lost_peers_() : "";
  broken_ = str(transport_, " group '", group(), "', rank ", rank(), " of ", size(), ", ",
                name.operation, " #", sequence_, " (", name_of(name.type), " x ", name.count,
                "): ", lost, lost.empty() ? "" : ": ", cause.substr(0, cause.find('\n')));
  throw WorldError(broken_);
}

void BackendCommunicator::barrier() {
  ++sequence_;
  run({"barrier"}, [&] { return backend_->barrier({}); });
}

void BackendCommunicator::broadcast(void* data, std::size_t count, DType type, int root) {
  ++sequence_;
  std::vector<at::Tensor> tensors{bytes_at(data, count * size_of(type))};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  if (count == 0) return barrier();
  run({"broadcast", type, count}, [&] { return backend_->broadcast(tensors, options); });
}

void BackendCommunicator::all_gather(const void* in, void* out, std::size_t count, DType type) {
  ++sequence_;
  if (count == 0) return barrier();
  const std::size_t bytes = count * size_of(type);
  at::Tensor from = bytes_at(in, bytes), to = bytes_at(out, bytes * n(size()));
  run({"all_gather", type, count}, [&] { return backend_->_allgather_base(to, from, {}); });
}

void BackendCommunicator::exchange(const Name& name, at::Tensor& out, at::Tensor& in) {
  std::vector<std::int64_t> equal;
  run(name, [&] { return backend_->alltoall_base(out, in, equal, equal, {}); });
}

void BackendCommunicator::all_to_all(const void* in, void* out, std::size_t count, DType type) {
  ++sequence_;
  if (count == 0) return barrier();
  const std::size_t bytes = count * size_of(type) * n(size());
  at::Tensor from = bytes_at(in, bytes), to = bytes_at(out, bytes);
  exchange({"all_to_all", type, count}, to, from);
}

void BackendCommunicator::reduce_scatter(const void* in, void* out, std::size_t count, DType type,
                                         comm::Reduce reduce) {
  ++sequence_;
  if (count == 0) return barrier();
  const std::size_t part = count * size_of(type);
  at::Tensor from = bytes_at(in, part * n(size())), got = part_of(scratch_[1], part * n(size()));
  exchange({"reduce_scatter", type, count}, got, from);
  std::vector<const std::byte*> sources;
  for (int r = 0; r < size(); ++r) sources.push_back(data_of(got) + n(r) * part);
  auto* const target = static_cast<std::byte*>(out);
  comm::reduce_elements(ranks_plan_.steps, sources, {&target, 1}, count, type, reduce);
}

void BackendCommunicator::all_reduce(void* data, std::size_t count, DType type,
                                     comm::Reduce reduce) {
  ++sequence_;
  const void* const node = data;
  reduce_slices({"all_reduce", type, count}, {&node, 1}, data, reduce, ranks_plan_);
}

void BackendCommunicator::tree_all_reduce(std::span<const void* const> nodes, void* out,
                                          std::size_t count, DType type,
                                          const comm::ReductionPlan& plan) {
  TUTTI_ASSERT(n(plan.nodes_of(rank())) == nodes.size() && plan.ranges.size() == n(size()));
  ++sequence_;
  reduce_slices({"tree_all_reduce", type, count}, nodes, out, comm::Reduce::sum, plan);
}

// Every rank gets slice r of all nodes of all ranks, sums them and shares the sum.
void BackendCommunicator::reduce_slices(const Name& name, std::span<const void* const> nodes,
                                        void* out, comm::Reduce reduce,
                                        const comm::ReductionPlan& plan) {
  if (name.count == 0) return barrier();
  const std::size_t element = size_of(name.type), ranks = n(size());
  const std::size_t each = (name.count + ranks - 1) / ranks, slice = each * element;
  const std::size_t part = slice * n(plan.max_nodes);  // what one rank sends to another
  at::Tensor in = part_of(scratch_[0], part * ranks), got = part_of(scratch_[1], part * ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::size_t begin = std::min(name.count, r * each);
    const std::size_t bytes = (std::min(name.count, begin + each) - begin) * element;
    for (std::size_t k = 0; k < nodes.size(); ++k)
      std::memcpy(data_of(in) + r * part + k * slice,
                  static_cast<const std::byte*>(nodes[k]) + begin * element, bytes);
  }
  exchange(name, got, in);
  std::vector<const std::byte*> sources;
  for (int r = 0; r < size(); ++r)
    for (int k = 0; k < plan.nodes_of(r); ++k)
      sources.push_back(data_of(got) + n(r) * part + n(k) * slice);
  at::Tensor sum = part_of(scratch_[2], slice), all = part_of(scratch_[3], slice * ranks);
  std::byte* const target = data_of(sum);
  const std::size_t begin = std::min(name.count, n(rank()) * each);
  comm::reduce_elements(plan.steps, sources, {&target, 1},
                        std::min(name.count, begin + each) - begin, name.type, reduce);
  run(name, [&] { return backend_->_allgather_base(all, sum, {}); });
  std::memcpy(out, data_of(all), name.count * element);
}

void BackendCommunicator::send(const void* data, std::size_t bytes, int to) {
  std::vector<at::Tensor> tensors{bytes_at(data, bytes)};
  if (bytes == 0) return;
  run({"send", DType::u8, bytes}, [&] { return backend_->send(tensors, to, 0); });
}

void BackendCommunicator::recv(void* data, std::size_t bytes, int from) {
  std::vector<at::Tensor> tensors{bytes_at(data, bytes)};
  if (bytes == 0) return;
  run({"recv", DType::u8, bytes}, [&] { return backend_->recv(tensors, from, 0); });
}

void BackendCommunicator::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (abort_reason_.empty()) abort_reason_ = reason;
}

}  // namespace tutti::collective
