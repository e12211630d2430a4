#include "collective/backend_communicator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <numeric>
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

std::size_t sum_of(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
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

void BackendCommunicator::check_broken(const Name& name) {
  const std::lock_guard lock(mutex_);
  if (broken_.empty()) return;
  // A reason of abort() lacks the names that a failure has.
  const bool failed = broken_.starts_with(transport_ + " group '");
  throw WorldError(failed ? broken_ : describe(name) + broken_);
}

template <class Start>
void BackendCommunicator::run(const Name& name, Start start) {
  check_broken(name);
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

template <class Start>
void BackendCommunicator::run_message(const Name& name, Start start) {
  check_broken(name);
  try {
    const WorkPtr work = start();
    {
      const std::lock_guard lock(mutex_);
      messages_.push_back(work);
      if (!broken_.empty()) work->abort();
    }
    const bool came =
        work->wait(std::chrono::milliseconds(static_cast<std::int64_t>(timeout() * 1e3)));
    {
      const std::lock_guard lock(mutex_);
      std::erase(messages_, work);
    }
    check_broken(name);
    if (!came) fail(name, "was aborted");
  } catch (const WorldError&) {
    throw;
  } catch (const std::exception& error) {
    check_broken(name);
    fail(name, error.what());
  }
}

// The first failure's text is the group's reason from then on.
void BackendCommunicator::fail(const Name& name, const std::string& cause) {
  std::string lost = lost_peers_ ? lost_peers_() : "";
  if (!lost.empty()) lost += ": ";
  const std::string text = describe(name) + lost + cause.substr(0, cause.find('\n'));
  abort(text);
  throw WorldError(text);
}

std::string BackendCommunicator::describe(const Name& name) const {
  const std::string which =
      name.peer < 0 ? str(name.operation, " #", name.sequence, " (", name_of(name.type), " x ",
                          name.count, ")")
                    : str(name.operation, " rank ", name.peer, " (", name.count, " bytes)");
  return str(transport_, " group '", group(), "', rank ", rank(), " of ", size(), ", ", which,
             ": ");
}

void BackendCommunicator::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (broken_.empty()) broken_ = reason;
  for (const WorkPtr& work : messages_) work->abort();
}

void BackendCommunicator::barrier() {
  run({"barrier", DType::u8, 0, ++sequence_}, [&] { return backend_->barrier({}); });
}

void BackendCommunicator::broadcast(void* data, std::size_t count, DType type, int root) {
  if (count == 0) return barrier();
  std::vector<at::Tensor> tensors{bytes_at(data, count * size_of(type))};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  run({"broadcast", type, count, ++sequence_},
      [&] { return backend_->broadcast(tensors, options); });
}

void BackendCommunicator::all_gather_v(const void* in, void* out,
                                       std::span<const std::size_t> counts, DType type) {
  TUTTI_ASSERT(counts.size() == n(size()), counts.size(), " counts");
  gather_to_all({"all_gather", type, sum_of(counts), ++sequence_}, in, out, counts);
}

void BackendCommunicator::gather_to_all(const Name& name, const void* in, void* out,
                                        std::span<const std::size_t> counts) {
  const std::size_t element = size_of(name.type), longest = std::ranges::max(counts);
  if (longest == 0) return run(name, [&] { return backend_->barrier({}); });
  const bool equal = std::ranges::min(counts) == longest;
  const std::size_t bytes = longest * element, own = counts[n(rank())] * element;
  at::Tensor from = equal ? bytes_at(in, bytes) : part_of(scratch_[0], bytes);
  at::Tensor to =
      equal ? bytes_at(out, bytes * n(size())) : part_of(scratch_[1], bytes * n(size()));
  if (!equal && own > 0) std::memcpy(data_of(from), in, own);
  run(name, [&] { return backend_->_allgather_base(to, from, {}); });
  auto* part = static_cast<std::byte*>(out);
  for (int r = 0; !equal && r < size(); part += counts[n(r)] * element, ++r)
    if (counts[n(r)] > 0) std::memcpy(part, data_of(to) + n(r) * bytes, counts[n(r)] * element);
}

void BackendCommunicator::exchange(const Name& name, const void* in, Sizes send, void* out,
                                   Sizes receive) {
  const auto total = [](const Sizes& sizes) {
    return static_cast<std::size_t>(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}));
  };
  at::Tensor from = bytes_at(in, total(send)), to = bytes_at(out, total(receive));
  run(name, [&] { return backend_->alltoall_base(to, from, receive, send, {}); });
}

void BackendCommunicator::all_to_all_v(const void* in, std::span<const std::size_t> send_counts,
                                       void* out, std::span<const std::size_t> receive_counts,
                                       DType type) {
  TUTTI_ASSERT(send_counts.size() == n(size()) && receive_counts.size() == n(size()),
               send_counts.size(), " and ", receive_counts.size(), " counts");
  const auto bytes_of = [&](std::span<const std::size_t> counts) {
    Sizes sizes;
    for (const std::size_t count : counts)
      sizes.push_back(static_cast<std::int64_t>(count * size_of(type)));
    return sizes;
  };
  exchange({"all_to_all", type, sum_of(send_counts), ++sequence_}, in, bytes_of(send_counts), out,
           bytes_of(receive_counts));
}

void BackendCommunicator::reduce_scatter_v(const void* in, void* out,
                                           std::span<const std::size_t> counts, DType type,
                                           comm::Reduce reduce) {
  comm::check_reduction(type, reduce);
  reduce_scatter({"reduce_scatter", type, sum_of(counts), ++sequence_}, {&in, 1}, out, counts,
                 reduce, ranks_plan_);
}

void BackendCommunicator::tree_reduce_scatter(std::span<const void* const> nodes, void* out,
                                              std::span<const std::size_t> counts, DType type,
                                              const comm::ReductionPlan& plan) {
  reduce_scatter({"tree_reduce_scatter", type, sum_of(counts), ++sequence_}, nodes, out, counts,
                 comm::Reduce::sum, plan);
}

// Every rank gets its part of all nodes of all ranks and sums them.
void BackendCommunicator::reduce_scatter(const Name& name, std::span<const void* const> nodes,
                                         void* out, std::span<const std::size_t> counts,
                                         comm::Reduce reduce, const comm::ReductionPlan& plan) {
  TUTTI_ASSERT(n(plan.nodes_of(rank())) == nodes.size() && plan.ranges.size() == n(size()) &&
                   counts.size() == n(size()),
               nodes.size(), " nodes, ", counts.size(), " counts");
  const std::size_t element = size_of(name.type), own = counts[n(rank())] * element;
  Sizes send, receive;
  for (int r = 0; r < size(); ++r) {
    send.push_back(static_cast<std::int64_t>(counts[n(r)] * element * nodes.size()));
    receive.push_back(static_cast<std::int64_t>(own * n(plan.nodes_of(r))));
  }
  at::Tensor& in = grown(scratch_[0], name.count * element * nodes.size());
  at::Tensor& got = grown(scratch_[1], own * n(plan.first.back()));
  std::byte* to = data_of(in);
  for (std::size_t r = 0, begin = 0; r < counts.size(); begin += counts[r] * element, ++r)
    for (std::size_t k = 0; k < nodes.size() && counts[r] > 0; ++k, to += counts[r] * element)
      std::memcpy(to, static_cast<const std::byte*>(nodes[k]) + begin, counts[r] * element);
  exchange(name, data_of(in), std::move(send), data_of(got), std::move(receive));
  std::vector<const std::byte*> sources;
  for (int k = 0; k < plan.first.back(); ++k) sources.push_back(data_of(got) + n(k) * own);
  auto* const target = static_cast<std::byte*>(out);
  comm::reduce_elements(plan.steps, sources, {&target, 1}, counts[n(rank())], name.type, reduce);
}

void BackendCommunicator::all_reduce(void* data, std::size_t count, DType type,
                                     comm::Reduce reduce) {
  comm::check_reduction(type, reduce);
  const void* const node = data;
  reduce_to_all({"all_reduce", type, count, ++sequence_}, {&node, 1}, data, reduce, ranks_plan_);
}

void BackendCommunicator::tree_all_reduce(std::span<const void* const> nodes, void* out,
                                          std::size_t count, DType type,
                                          const comm::ReductionPlan& plan) {
  reduce_to_all({"tree_all_reduce", type, count, ++sequence_}, nodes, out, comm::Reduce::sum, plan);
}

void BackendCommunicator::reduce_to_all(const Name& name, std::span<const void* const> nodes,
                                        void* out, comm::Reduce reduce,
                                        const comm::ReductionPlan& plan) {
  std::vector<std::size_t> counts(n(size()), name.count / n(size()));
  for (std::size_t r = 0; r < name.count % n(size()); ++r) ++counts[r];
  const std::size_t begin = sum_of(std::span(counts).first(n(rank())));
  std::byte* const own = static_cast<std::byte*>(out) + begin * size_of(name.type);
  reduce_scatter(name, nodes, own, counts, reduce, plan);
  gather_to_all(name, own, out, counts);
}

// The root's part of a reduction is all of it.
void BackendCommunicator::reduce(const void* in, void* out, std::size_t count, DType type,
                                 comm::Reduce reduce, int root) {
  comm::check_reduction(type, reduce);
  TUTTI_ASSERT(0 <= root && root < size(), "root ", root);
  std::vector<std::size_t> counts(n(size()));
  counts[n(root)] = count;
  reduce_scatter({"reduce", type, count, ++sequence_}, {&in, 1}, out, counts, reduce, ranks_plan_);
}

// Bytes from each rank to the root and none to others, as this rank exchanges them: what it sends
// and what it receives of a gather, the other way round of a scatter.
std::pair<BackendCommunicator::Sizes, BackendCommunicator::Sizes> BackendCommunicator::to_root(
    std::span<const std::size_t> counts, DType type, int root) const {
  TUTTI_ASSERT(counts.size() == n(size()), counts.size(), " counts");
  TUTTI_ASSERT(0 <= root && root < size(), "root ", root);
  const auto bytes = [&](int r) { return static_cast<std::int64_t>(counts[n(r)] * size_of(type)); };
  Sizes send(n(size())), receive(n(size()));
  send[n(root)] = bytes(rank());
  for (int r = 0; rank() == root && r < size(); ++r) receive[n(r)] = bytes(r);
  return {std::move(send), std::move(receive)};
}

void BackendCommunicator::gather_v(const void* in, void* out, std::span<const std::size_t> counts,
                                   DType type, int root) {
  auto [send, receive] = to_root(counts, type, root);
  exchange({"gather", type, sum_of(counts), ++sequence_}, in, std::move(send), out,
           std::move(receive));
}

void BackendCommunicator::scatter_v(const void* in, void* out, std::span<const std::size_t> counts,
                                    DType type, int root) {
  auto [receive, send] = to_root(counts, type, root);
  exchange({"scatter", type, sum_of(counts), ++sequence_}, in, std::move(send), out,
           std::move(receive));
}

void BackendCommunicator::send(const void* data, std::size_t bytes, int to) {
  std::vector<at::Tensor> tensors{bytes_at(data, bytes)};
  if (bytes == 0) return;
  run_message({"send to", DType::u8, bytes, 0, to}, [&] { return backend_->send(tensors, to, 0); });
}

void BackendCommunicator::recv(void* data, std::size_t bytes, int from) {
  std::vector<at::Tensor> tensors{bytes_at(data, bytes)};
  if (bytes == 0) return;
  run_message({"recv from", DType::u8, bytes, 0, from},
              [&] { return backend_->recv(tensors, from, 0); });
}

}  // namespace tutti::collective
