#include "parallel/mesh_experts.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/fault.h"
#include "mesh/placement.h"
#include "nn/moe.h"
#include "nn/record.h"

namespace tutti::parallel {
namespace {

using collective::Group;
using Counts = std::vector<std::int64_t>;

std::shared_ptr<Group> if_many(const std::shared_ptr<Group>& group) {
  return group && group->size() > 1 ? group : nullptr;
}

std::int64_t total(const Counts& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

Counts times(Counts counts, std::int64_t factor) {
  for (auto& count : counts) count *= factor;
  return counts;
}

Counts numbers(const torch::Tensor& x) {
  const torch::Tensor flat = x.contiguous();
  return {flat.data_ptr<std::int64_t>(), flat.data_ptr<std::int64_t>() + flat.numel()};
}

// Rows of width x.size(1), of which ranks send and get these many.
torch::Tensor exchanged(Group& group, const torch::Tensor& x, const Counts& send,
                        const Counts& receive) {
  const std::int64_t width = x.size(1);
  torch::Tensor out = torch::empty({total(receive), width}, x.options());
  group.all_to_all_v(x.contiguous(), out, times(send, width), times(receive, width));
  return out;
}

torch::Tensor gathered(Group& group, const torch::Tensor& x, const Counts& rows) {
  const std::int64_t width = x.size(1);
  torch::Tensor out = torch::empty({total(rows), width}, x.options());
  group.all_gather_v(x.contiguous(), out, times(rows, width));
  return out;
}

torch::Tensor scattered(Group& group, const torch::Tensor& x, const Counts& rows) {
  const std::int64_t width = x.size(1), mine = rows[static_cast<std::size_t>(group.rank())];
  torch::Tensor out = torch::empty({mine, width}, x.options());
  group.reduce_scatter_v(x.contiguous(), out, times(rows, width));
  return out;
}

Counts rows_of_ranks(Group& group, std::int64_t rows) {
  return numbers(group.all_gather(torch::tensor({rows}, torch::kLong)).flatten());
}

// Blocks of rows as they come, block i of expert i % experts -> the row that comes to each place
// when they are sorted by expert.
torch::Tensor sorted_by_expert(const Counts& blocks, std::size_t experts) {
  Counts begins, order;
  std::int64_t rows = 0;
  for (const std::int64_t count : blocks) begins.push_back(std::exchange(rows, rows + count));
  order.reserve(static_cast<std::size_t>(rows));
  for (std::size_t e = 0; e < experts; ++e)
    for (std::size_t block = e; block < blocks.size(); block += experts)
      for (std::int64_t i = 0; i < blocks[block]; ++i) order.push_back(begins[block] + i);
  return torch::tensor(order, torch::kLong);
}

}  // namespace

// How the rows of one layer and pass lie. Blocks come in the order (slice rank, sender, expert).
struct MeshExperts::Way {
  Counts send, receive;  // rows to and from each rank of `expert`
  Counts slices;         // rows of each rank of `expert_tensor`
  torch::Tensor sorted, unsorted;
};

MeshExperts::MeshExperts(std::int64_t experts, const ExpertGroups& groups)
    : groups_{if_many(groups.expert), if_many(groups.expert_tensor), if_many(groups.context),
              if_many(groups.tensor)} {
  const int ranks = groups_.expert ? groups_.expert->size() : 1;
  for (int rank = 0; rank < ranks; ++rank) {
    const Slice slice = slice_of(experts, ranks, rank);
    spans_.push_back({slice.begin, slice.size});
  }
}

torch::Tensor MeshExperts::counts_for_here(const Counts& counts) const {
  const torch::Tensor all = torch::tensor(counts, torch::kLong).unsqueeze(1);
  const std::int64_t here = experts_here().size;
  if (!groups_.expert) return all.view({1, here});
  Counts send;
  for (const nn::Span& span : spans_) send.push_back(span.size);
  return exchanged(*groups_.expert, all, send, Counts(spans_.size(), here))
      .view({static_cast<std::int64_t>(spans_.size()), here});
}

torch::Tensor MeshExperts::there(const torch::Tensor& rows, const Way& way) const {
  torch::Tensor x = rows;
  if (groups_.expert) x = exchanged(*groups_.expert, x, way.send, way.receive);
  if (groups_.expert_tensor) x = gathered(*groups_.expert_tensor, x, way.slices);
  return x.index_select(0, way.sorted);
}

torch::Tensor MeshExperts::home(const torch::Tensor& rows, const Way& way) const {
  torch::Tensor x = fault("expert-way-home") ? rows : rows.index_select(0, way.unsorted);
  if (groups_.expert_tensor) x = scattered(*groups_.expert_tensor, x, way.slices);
  if (groups_.expert) x = exchanged(*groups_.expert, x, way.receive, way.send);
  return x;
}

void MeshExperts::note(const char* at, const torch::Tensor& rows, bool away) const {
  if (!trace_ || !trace_->traces()) return;
  const char *out = "all-to-all", *back = "all-to-all";
  if (groups_.expert_tensor) {
    out = groups_.expert ? "all-to-all, all-gather" : "all-gather";
    back = groups_.expert ? "reduce-scatter, all-to-all" : "reduce-scatter";
  }
  trace_->note({at, "expert", nn::Type::shard(0), nn::Type::shard(0), away ? out : back,
                away ? back : out, rows.numel() * static_cast<std::int64_t>(rows.element_size())});
}

nn::ExpertSpread::Sent MeshExperts::send(const torch::Tensor& rows, const Counts& counts) {
  if (!spreads()) return ExpertSpread::send(rows, counts);
  TUTTI_ASSERT(static_cast<std::int64_t>(counts.size()) ==
               spans_.back().begin + spans_.back().size);
  note("rows to their experts", rows, true);
  const bool history = nn::wants_gradient({rows});
  const torch::NoGradGuard no_grad;
  auto way = std::make_shared<Way>();
  for (const nn::Span& span : spans_)
    way->send.push_back(std::accumulate(counts.begin() + span.begin,
                                        counts.begin() + span.begin + span.size, std::int64_t{0}));
  torch::Tensor blocks = counts_for_here(counts);
  way->receive = numbers(blocks.sum(1));
  if (groups_.expert_tensor) {
    way->slices = rows_of_ranks(*groups_.expert_tensor, total(way->receive));
    blocks = groups_.expert_tensor->all_gather(blocks.contiguous());
  }
  const std::int64_t here = experts_here().size;
  way->sorted = sorted_by_expert(numbers(blocks.flatten()), static_cast<std::size_t>(here));
  way->unsorted = way->sorted.argsort();
  Sent sent{there(rows.detach(), *way), {}, way};
  sent.counts = here == 0 ? Counts{} : numbers(blocks.view({-1, here}).sum(0));
  if (history)
    nn::record({sent.rows}, {rows}, "send",
               [this, way](nn::Tensors&& g) -> nn::Tensors { return {home(g[0], *way)}; });
  return sent;
}

torch::Tensor MeshExperts::bring_back(const torch::Tensor& rows, const Sent& sent) {
  if (!spreads()) return ExpertSpread::bring_back(rows, sent);
  const auto way = std::static_pointer_cast<const Way>(sent.way);
  const bool history = nn::wants_gradient({rows});
  const torch::NoGradGuard no_grad;
  torch::Tensor y = home(rows.detach(), *way);
  note("rows home from their experts", y, false);
  if (history)
    nn::record({y}, {rows}, "bring_back",
               [this, way](nn::Tensors&& g) -> nn::Tensors { return {there(g[0], *way)}; });
  return y;
}

std::vector<std::shared_ptr<Group>> MeshExperts::peers(const nn::Type& rows) const {
  std::vector<std::shared_ptr<Group>> groups;
  if (groups_.tensor && rows == nn::Type::shard(0)) groups.push_back(groups_.tensor);
  if (groups_.context) groups.push_back(groups_.context);
  return groups;
}

torch::Tensor MeshExperts::earlier(const torch::Tensor& ids, const torch::Tensor& places,
                                   std::int64_t experts, const nn::Type& rows) {
  const auto groups = peers(rows);
  if (groups.empty()) return {};
  // A token's place and experts side by side.
  torch::Tensor all = torch::cat({places.unsqueeze(1), ids}, 1);
  std::int64_t begin = 0;
  for (const auto& group : groups) {
    const Counts sizes = rows_of_ranks(*group, all.size(0));
    begin += total({sizes.begin(), sizes.begin() + group->rank()});
    all = gathered(*group, all, sizes);
  }
  return nn::earlier_slots(all.narrow(1, 1, ids.size(1)), all.select(1, 0), experts)
      .narrow(0, begin, ids.size(0))
      .contiguous();
}

torch::Tensor MeshExperts::sum_over_tokens(const torch::Tensor& x, const nn::Type& rows) {
  torch::Tensor sum = x.clone(at::MemoryFormat::Contiguous);
  if (fault("expert-load")) return sum;
  for (const auto& group : peers(rows)) group->all_reduce(sum);
  return sum;
}

}  // namespace tutti::parallel
