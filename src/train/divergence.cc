#include "train/divergence.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "collective/text.h"
#include "parallel/cut.h"

namespace tutti::train {
namespace {

using parallel::StateTensor;
using Sizes = std::vector<std::int64_t>;

struct Before {
  bool operator()(const Box& a, const Box& b) const {
    return std::tie(a.offset, a.size) < std::tie(b.offset, b.size);
  }
};

// The ranks that hold each box of one tensor.
struct Places {
  Sizes shape;
  std::map<Box, std::set<int>, Before> holders;

  // Whether boxes meet that are not equal; else each element lies in one of them.
  bool overlap() const {
    std::int64_t elements = 0;
    for (const auto& one : holders) elements += element_count(one.first);
    return elements > element_count(whole(shape));
  }
};

using Parts = std::map<Box, std::set<int>, Before>;

// The boxes, and what any two of them have in common, with the ranks that hold all of it.
Parts parts_of(const Places& places) {
  if (!places.overlap()) return places.holders;
  Parts parts = places.holders;
  for (const auto& a : places.holders)
    for (const auto& b : places.holders)
      if (const Box common = intersect(a.first, b.first); element_count(common) > 0) parts[common];
  for (auto& [part, ranks] : parts)
    for (const auto& [box, holders] : places.holders)
      if (contains(box, part)) ranks.insert(holders.begin(), holders.end());
  return parts;
}

// Names are "<kind>/<parameter>": by parameter, in the model's order; of one, the weight first.
class Order {
 public:
  explicit Order(const std::vector<std::string>& names) {
    for (std::size_t i = 0; i < names.size(); ++i) at_.try_emplace(names[i], i);
  }
  using Key = std::tuple<std::size_t, int, std::string>;
  Key operator()(const std::string& name) const {
    const auto slash = name.find('/');
    const auto found = at_.find(slash == std::string::npos ? name : name.substr(slash + 1));
    const int kind = name.starts_with("model/") ? 0 : name.starts_with("compute/") ? 1 : 2;
    return {found == at_.end() ? at_.size() : found->second, kind, name};
  }

 private:
  std::map<std::string, std::size_t> at_;
};

std::uint64_t hash_of(const StateTensor& tensor, const Box& part) {
  Box within = part;
  const Box held = tensor.place();
  for (std::size_t d = 0; d < within.offset.size(); ++d) within.offset[d] -= held.offset[d];
  const torch::Tensor value = parallel::box_view(tensor.value.detach(), within).contiguous();
  return hash64(std::span(static_cast<const std::byte*>(value.const_data_ptr()), value.nbytes()));
}

// Those of equal hashes, most ranks first.
std::vector<std::vector<int>> by_value(const std::vector<int>& ranks,
                                       const std::vector<std::uint64_t>& hashes) {
  std::map<std::uint64_t, std::vector<int>> values;
  for (std::size_t i = 0; i < ranks.size(); ++i) values[hashes[i]].push_back(ranks[i]);
  std::vector<std::vector<int>> groups;
  for (auto& value : values) groups.push_back(std::move(value.second));
  std::sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    return std::pair(b.size(), a[0]) < std::pair(a.size(), b[0]);
  });
  return groups;
}

}  // namespace

std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> names;
  for (const int rank : ranks) names.push_back(str(rank));
  return (ranks.size() == 1 ? "rank " : "ranks ") + join(names, ", ");
}

std::vector<int> suspects(const Divergence& found) {
  const bool most = found.ranks[0].size() > found.ranks[1].size();
  std::vector<int> ranks;
  for (std::size_t i = most ? 1 : 0; i < found.ranks.size(); ++i)
    ranks.insert(ranks.end(), found.ranks[i].begin(), found.ranks[i].end());
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::string to_text(const Divergence& found) {
  std::string text = found.tensor;
  if (found.box != whole(found.shape)) text += to_text(found.box);
  text += " is not the same on all ranks that hold it: ";
  if (found.ranks[0].size() > found.ranks[1].size()) {
    const std::vector<int> wrong = suspects(found);
    text += str(ranks_text(wrong), wrong.size() == 1 ? " differs from " : " differ from ",
                ranks_text(found.ranks[0]));
  } else {
    std::vector<std::string> groups;
    for (const auto& ranks : found.ranks) groups.push_back(ranks_text(ranks));
    text += join(groups, " | ");
  }
  if (found.tensors > 1) text += str("; ", found.tensors, " tensors differ in all");
  return text;
}

std::vector<StateTensor> held_by(parallel::Engine& engine) {
  std::vector<StateTensor> held = engine.state();
  for (StateTensor& copy : engine.copies()) held.push_back(std::move(copy));
  return held;
}

DivergenceWatch::DivergenceWatch(std::shared_ptr<collective::Group> world,
                                 std::vector<std::string> order)
    : world_(std::move(world)), order_(std::move(order)) {}

// Every rank tells what it holds; each finds the same parts.
void DivergenceWatch::agree_on_parts(const std::vector<StateTensor>& held) {
  Json told = Json::array();
  for (const StateTensor& tensor : held)
    if (tensor.value.numel() > 0)
      told.push_back(
          {tensor.name, tensor.global_shape(), tensor.place().offset, tensor.place().size});
  const Order order(order_);
  std::map<Order::Key, Places> tensors;
  const auto texts = collective::all_gather_text(*world_, told.dump());
  for (int rank = 0; rank < world_->size(); ++rank)
    for (const Json& one : parse_json(texts[static_cast<std::size_t>(rank)], "what a rank holds")) {
      Places& places = tensors[order(one[0].get<std::string>())];
      places.shape = one[1].get<Sizes>();
      places.holders[{one[2].get<Sizes>(), one[3].get<Sizes>()}].insert(rank);
    }
  std::multimap<std::string, std::size_t> mine;
  for (std::size_t i = 0; i < held.size(); ++i) mine.emplace(held[i].name, i);
  parts_.clear();
  for (const auto& [key, places] : tensors)
    for (const auto& [box, ranks] : parts_of(places)) {
      if (ranks.size() < 2) continue;
      Part part{std::get<2>(key), places.shape, box, {ranks.begin(), ranks.end()}, held.size()};
      const auto [first, end] = mine.equal_range(part.name);
      for (auto one = first; one != end; ++one)
        if (contains(held[one->second].place(), box)) part.mine = one->second;
      parts_.push_back(std::move(part));
    }
}

std::vector<std::uint64_t> DivergenceWatch::hash_mine(const std::vector<StateTensor>& held) {
  std::vector<const Part*> mine;
  bytes_ = 0;
  for (const Part& part : parts_)
    if (part.mine < held.size()) {
      mine.push_back(&part);
      bytes_ +=
          element_count(part.box) * static_cast<std::int64_t>(held[part.mine].value.element_size());
    }
  std::vector<std::uint64_t> hashes(mine.size());
  at::parallel_for(0, static_cast<std::int64_t>(mine.size()), 1, [&](auto begin, auto end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
      hashes[i] = hash_of(held[mine[i]->mine], mine[i]->box);
  });
  return hashes;
}

// [part], in the order of its holders.
std::vector<std::vector<std::uint64_t>> DivergenceWatch::gather(
    const std::vector<std::uint64_t>& mine) const {
  collective::Counts counts(static_cast<std::size_t>(world_->size()), 0);
  for (const Part& part : parts_)
    for (const int rank : part.holders) ++counts[static_cast<std::size_t>(rank)];
  torch::Tensor own = torch::empty({static_cast<std::int64_t>(mine.size())}, torch::kLong);
  std::copy(mine.begin(), mine.end(), own.data_ptr<std::int64_t>());
  std::vector<std::int64_t> at(counts.size(), 0);
  for (std::size_t r = 1; r < at.size(); ++r) at[r] = at[r - 1] + counts[r - 1];
  torch::Tensor all = torch::empty({at.back() + counts.back()}, torch::kLong);
  world_->all_gather_v(own, all, counts);
  std::vector<std::vector<std::uint64_t>> hashes;
  for (const Part& part : parts_) {
    hashes.emplace_back();
    for (const int rank : part.holders)
      hashes.back().push_back(static_cast<std::uint64_t>(
          all.data_ptr<std::int64_t>()[at[static_cast<std::size_t>(rank)]++]));
  }
  return hashes;
}

std::optional<Divergence> DivergenceWatch::compare(const std::vector<StateTensor>& held) {
  const torch::NoGradGuard no_grad;
  std::vector<Whereabouts> now;
  for (const StateTensor& tensor : held) now.push_back({tensor.name, tensor.place()});
  const torch::Tensor changed = torch::full({1}, now != held_ ? 1 : 0, torch::kLong);
  world_->all_reduce(changed, comm::Reduce::max);
  if (changed.item<std::int64_t>() > 0) agree_on_parts(held);
  held_ = std::move(now);
  const auto hashes = gather(hash_mine(held));
  std::optional<Divergence> found;
  std::set<std::string> names;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    auto groups = by_value(part.holders, hashes[i]);
    if (groups.size() < 2) continue;
    names.insert(part.name);
    if (!found) found = Divergence{part.name, part.shape, part.box, std::move(groups), 0};
  }
  if (found) found->tensors = static_cast<std::int64_t>(names.size());
  return found;
}

}  // namespace tutti::train
