#include "comm/hierarchy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include "base/error.h"
#include "comm/reduce.h"

namespace tutti::comm {
namespace {

using Counts = std::vector<std::size_t>;

std::size_t n(int value) { return static_cast<std::size_t>(value); }

std::size_t sum_of(std::span<const std::size_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

// Whether every order of combining gives the same bits.
bool any_order(DType type, Reduce reduce) {
  const bool floats =
      type == DType::f64 || type == DType::f32 || type == DType::f16 || type == DType::bf16;
  return reduce == Reduce::min || reduce == Reduce::max || !floats;
}

bool sums_by_nodes(DType type) { return type != DType::f16 && type != DType::bf16; }

// A sum by the tree as hosts make it: each first whole nodes of its own ranks', then all together.
struct TwoLevels {
  struct Node {
    ReductionPlan plan;  // of the host's ranks
    int first = 0;       // of this rank's nodes
    int size = 0;        // how many of them are in it
  };
  std::vector<Range> ranges;  // of the ranks: what it was made for
  std::vector<Node> own;      // of this host
  ReductionPlan hosts;
};

class Hierarchy : public Communicator {
 public:
  Hierarchy(Levels levels, HostSizes hosts)
      : Communicator(levels.all->rank(), levels.all->size(), levels.all->group()),
        levels_(std::move(levels)),
        hosts_(std::move(hosts)),
        lanes_(lanes_of(hosts_)),
        transport_(str(levels_.local->transport(), "+", levels_.all->transport())),
        ranks_plan_(plan_reduction(even_ranges(size(), size()))) {
    TUTTI_ASSERT(std::accumulate(hosts_.begin(), hosts_.end(), 0) == size());
    for (const int ranks : hosts_) first_.push_back(first_.back() + ranks);
    while (first_[n(host_) + 1] <= rank()) ++host_;
    TUTTI_ASSERT(levels_.local->size() == hosts_[n(host_)] &&
                 levels_.local->rank() == rank() - first_[n(host_)]);
    TUTTI_ASSERT((levels_.across != nullptr) == (levels_.local->rank() < lanes_));
    set_timeout(levels_.all->timeout());
  }

  const char* transport() const override { return transport_.c_str(); }
  void* allocate_shared(std::size_t bytes) override { return local().allocate_shared(bytes); }

  void abort(const std::string& reason) override {
    for (Communicator* level : {levels_.all.get(), levels_.local.get(), levels_.across.get()})
      if (level) level->abort(reason);
  }

  void barrier() override {
    run([&] {
      local().barrier();
      if (in_lane()) across().barrier();
      local().barrier();
    });
  }

  void broadcast(void* data, std::size_t count, DType type, int root) override {
    TUTTI_ASSERT(0 <= root && root < size(), "root ", root);
    run([&] {
      const int from = host_of(root);
      if (host_ == from) local().broadcast(data, count, type, root - first_[n(from)]);
      const Counts slices = cut(count);
      auto* const own = at(data, offset_of(slices), type);
      if (in_lane()) across().broadcast(own, slices[n(lane())], type, from);
      if (host_ != from) local().all_gather_v(own, data, slices, type);
    });
  }

  void all_reduce(void* data, std::size_t count, DType type, Reduce reduce) override {
    check_reduction(type, reduce);
    const void* const node = data;
    run([&] {
      if (any_order(type, reduce))
        reduce_all_any({&node, 1}, data, count, type, reduce);
      else if (reduce == Reduce::sum && sums_by_nodes(type))
        reduce_all({&node, 1}, data, count, type, ranks_plan_);
      else
        all().all_reduce(data, count, type, reduce);
    });
  }

  void tree_all_reduce(std::span<const void* const> nodes, void* out, std::size_t count, DType type,
                       const ReductionPlan& plan) override {
    run([&] {
      if (sums_by_nodes(type))
        reduce_all(nodes, out, count, type, plan);
      else
        all().tree_all_reduce(nodes, out, count, type, plan);
    });
  }

  void reduce_scatter_v(const void* in, void* out, std::span<const std::size_t> counts, DType type,
                        Reduce reduce) override {
    check_reduction(type, reduce);
    run([&] {
      if (reduce == Reduce::sum && sums_by_nodes(type))
        scatter_sum({&in, 1}, out, counts, type, ranks_plan_);
      else
        all().reduce_scatter_v(in, out, counts, type, reduce);
    });
  }

  void tree_reduce_scatter(std::span<const void* const> nodes, void* out,
                           std::span<const std::size_t> counts, DType type,
                           const ReductionPlan& plan) override {
    run([&] {
      if (sums_by_nodes(type))
        scatter_sum(nodes, out, counts, type, plan);
      else
        all().tree_reduce_scatter(nodes, out, counts, type, plan);
    });
  }

  void reduce(const void* in, void* out, std::size_t count, DType type, Reduce reduce,
              int root) override {
    check_reduction(type, reduce);
    TUTTI_ASSERT(0 <= root && root < size(), "root ", root);
    run([&] {
      if (reduce == Reduce::sum && sums_by_nodes(type)) {
        Counts counts(n(size()));
        counts[n(root)] = count;
        scatter_sum({&in, 1}, out, counts, type, ranks_plan_);
      } else {
        all().reduce(in, out, count, type, reduce, root);
      }
    });
  }

  // Each host's parts lie side by side: first they come together in the host, then each lane
  // carries a slice of them to the other hosts, then each host puts the slices together.
  void all_gather_v(const void* in, void* out, std::span<const std::size_t> counts,
                    DType type) override {
    TUTTI_ASSERT(counts.size() == n(size()), counts.size(), " counts");
    run([&] {
      const Counts blocks = blocks_of(counts);
      const std::size_t before = sum_of(std::span(blocks).first(n(host_)));
      local().all_gather_v(in, at(out, before, type), own_host(counts), type);
      Counts slices;  // of this lane
      for (const std::size_t block : blocks)
        slices.push_back(in_lane() ? cut(block)[n(lane())] : 0);
      gather_lane(out, blocks, slices, type);
      std::size_t begin = 0;
      for (std::size_t h = 0; h < blocks.size(); begin += blocks[h], ++h) {
        if (n(host_) == h || blocks[h] == 0) continue;
        const Counts parts = cut(blocks[h]);
        auto* const block = at(out, begin, type);
        local().all_gather_v(at(block, offset_of(parts), type), block, parts, type);
      }
    });
  }

  // What stays in the host goes through its memory; the rest from rank to rank.
  void all_to_all_v(const void* in, std::span<const std::size_t> send_counts, void* out,
                    std::span<const std::size_t> receive_counts, DType type) override {
    TUTTI_ASSERT(send_counts.size() == n(size()) && receive_counts.size() == n(size()),
                 send_counts.size(), " and ", receive_counts.size(), " counts");
    run([&] {
      const Outside from = outside(send_counts, type), to = outside(receive_counts, type);
      local().all_to_all_v(at(in, from.begin, type), own_host(send_counts), at(out, to.begin, type),
                           own_host(receive_counts), type);
      std::byte* const sent = room(0, from.bytes);
      std::byte* const got = room(1, to.bytes);
      copy(sent, in, from.bytes_before);
      copy(sent + from.bytes_before, at(in, from.end, type), from.bytes - from.bytes_before);
      all().all_to_all_v(sent, from.counts, got, to.counts, type);
      copy(out, got, to.bytes_before);
      copy(at(out, to.end, type), got + to.bytes_before, to.bytes - to.bytes_before);
    });
  }

  void gather_v(const void* in, void* out, std::span<const std::size_t> counts, DType type,
                int root) override {
    run([&] { all().gather_v(in, out, counts, type, root); });
  }

  void scatter_v(const void* in, void* out, std::span<const std::size_t> counts, DType type,
                 int root) override {
    run([&] { all().scatter_v(in, out, counts, type, root); });
  }

  void send(const void* data, std::size_t bytes, int to) override {
    TUTTI_ASSERT(0 <= to && to < size() && to != rank(), "send to ", to);
    run([&] {
      if (host_of(to) == host_)
        local().send(data, bytes, to - first_[n(host_)]);
      else
        all().send(data, bytes, to);
    });
  }

  void recv(void* data, std::size_t bytes, int from) override {
    TUTTI_ASSERT(0 <= from && from < size() && from != rank(), "recv from ", from);
    run([&] {
      if (host_of(from) == host_)
        local().recv(data, bytes, from - first_[n(host_)]);
      else
        all().recv(data, bytes, from);
    });
  }

 private:
  // Counts of a rank's parts with none for its own host, and where that host's are.
  struct Outside {
    Counts counts;
    std::size_t begin = 0, end = 0;           // elements: the own host's
    std::size_t bytes = 0, bytes_before = 0;  // of the others', and of those before it
  };

  Communicator& all() { return *levels_.all; }
  Communicator& local() { return *levels_.local; }
  Communicator& across() { return *levels_.across; }
  bool in_lane() const { return levels_.across != nullptr; }
  int lane() const { return levels_.local->rank(); }

  // A level that fails takes the others with it, so that no rank waits in one of them.
  template <class Body>
  void run(Body body) {
    for (Communicator* level : {levels_.all.get(), levels_.local.get(), levels_.across.get()})
      if (level && level->timeout() != timeout()) level->set_timeout(timeout());
    try {
      body();
    } catch (const WorldError& error) {
      abort(error.what());
      throw;
    }
  }

  int host_of(int rank) const {
    return static_cast<int>(std::ranges::upper_bound(first_, rank) - first_.begin()) - 1;
  }

  static std::byte* at(void* data, std::size_t element, DType type) {
    return static_cast<std::byte*>(data) + element * size_of(type);
  }
  static const std::byte* at(const void* data, std::size_t element, DType type) {
    return static_cast<const std::byte*>(data) + element * size_of(type);
  }

  static void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

  std::span<const std::size_t> own_host(std::span<const std::size_t> counts) const {
    return counts.subspan(n(first_[n(host_)]), n(hosts_[n(host_)]));
  }

  Counts blocks_of(std::span<const std::size_t> counts) const {
    Counts blocks;
    for (std::size_t h = 0; h < hosts_.size(); ++h)
      blocks.push_back(sum_of(counts.subspan(n(first_[h]), n(hosts_[h]))));
    return blocks;
  }

  // The slices of `count` elements, for the ranks of this host: those in no lane have none.
  Counts cut(std::size_t count) const {
    Counts slices(n(levels_.local->size()));
    for (int i = 0; i < lanes_; ++i)
      slices[n(i)] = count * n(i + 1) / n(lanes_) - count * n(i) / n(lanes_);
    return slices;
  }
  std::size_t offset_of(const Counts& slices) const {
    return sum_of(std::span(slices).first(n(levels_.local->rank())));
  }

  Outside outside(std::span<const std::size_t> counts, DType type) const {
    Outside result;
    result.counts.assign(counts.begin(), counts.end());
    result.begin = sum_of(counts.first(n(first_[n(host_)])));
    result.end = result.begin + sum_of(own_host(counts));
    std::fill_n(result.counts.begin() + first_[n(host_)], hosts_[n(host_)], 0);
    result.bytes = sum_of(result.counts) * size_of(type);
    result.bytes_before = result.begin * size_of(type);
    return result;
  }

  // Room `index` of at least so many bytes; what was there may be gone.
  std::byte* room(std::size_t index, std::size_t bytes) {
    std::vector<std::max_align_t>& room = room_[index];
    if (room.size() * sizeof(std::max_align_t) < bytes + 1)
      room.resize(bytes / sizeof(std::max_align_t) + 1);
    return reinterpret_cast<std::byte*>(room.data());
  }

  // Slice `lane` of each host's block of `out` to all hosts. No host has them side by side.
  void gather_lane(void* out, const Counts& blocks, const Counts& slices, DType type) {
    if (!in_lane()) return;
    const std::size_t element = size_of(type);
    std::byte* const got = room(0, sum_of(slices) * element);
    const auto each = [&](auto do_slice) {
      std::size_t begin = 0, place = 0;
      for (std::size_t h = 0; h < blocks.size(); begin += blocks[h], place += slices[h], ++h)
        do_slice(h, at(out, begin + offset_of(cut(blocks[h])), type), got + place * element,
                 slices[h] * element);
    };
    std::byte* mine = nullptr;
    each([&](std::size_t h, std::byte*, std::byte* there, std::size_t) {
      if (n(host_) == h) mine = there;
    });
    each([&](std::size_t h, std::byte* here, std::byte* there, std::size_t bytes) {
      if (n(host_) == h) copy(there, here, bytes);
    });
    across().all_gather_v(mine, got, slices, type);
    each([&](std::size_t h, std::byte* here, std::byte* there, std::size_t bytes) {
      if (n(host_) != h) copy(here, there, bytes);
    });
  }

  const TwoLevels& two_levels(const ReductionPlan& plan) {
    for (const TwoLevels& known : known_)
      if (known.ranges == plan.ranges) return known;
    TwoLevels made;
    made.ranges = plan.ranges;
    std::vector<Range> of_hosts;
    for (std::size_t h = 0; h < hosts_.size(); ++h)
      of_hosts.push_back({plan.ranges[n(first_[h])].begin, plan.ranges[n(first_[h + 1] - 1)].end});
    made.hosts = plan_reduction(of_hosts);
    int next = 0;
    for (const Range node : forest_of(of_hosts[n(host_)], plan.leaves)) {
      std::vector<Range> ranges;
      for (int r = first_[n(host_)]; r < first_[n(host_) + 1]; ++r) {
        const Range range = plan.ranges[n(r)];
        const int begin = std::clamp(range.begin, node.begin, node.end);
        ranges.push_back(
            {begin - node.begin,
             std::max(begin, std::clamp(range.end, node.begin, node.end)) - node.begin});
      }
      TwoLevels::Node& own = made.own.emplace_back();
      own.plan = plan_reduction(ranges);
      own.first = next;
      own.size = own.plan.nodes_of(levels_.local->rank());
      next += own.size;
    }
    TUTTI_ASSERT(next == plan.nodes_of(rank()));
    if (known_.size() == 8) known_.erase(known_.begin());
    return known_.emplace_back(std::move(made));
  }

  // This lane's slices of the host's nodes of elements [begin, begin + count), each after the last
  // in room 0.
  std::vector<const void*> host_nodes(std::span<const void* const> nodes, std::size_t begin,
                                      std::size_t count, DType type, const TwoLevels& plan,
                                      std::byte* to, std::size_t stride) {
    const Counts slices = cut(count);
    std::vector<const void*> result;
    for (const TwoLevels::Node& own : plan.own) {
      std::vector<const void*> mine;
      for (const void* node : nodes.subspan(n(own.first), n(own.size)))
        mine.push_back(at(node, begin, type));
      local().tree_reduce_scatter(mine, to, slices, type, own.plan);
      result.push_back(to);
      to += stride;
    }
    return result;
  }

  void reduce_all(std::span<const void* const> nodes, void* out, std::size_t count, DType type,
                  const ReductionPlan& plan) {
    const TwoLevels& levels = two_levels(plan);
    const Counts slices = cut(count);
    const std::size_t bytes = slices[n(levels_.local->rank())] * size_of(type);
    const auto sums =
        host_nodes(nodes, 0, count, type, levels, room(0, bytes * levels.own.size()), bytes);
    auto* const own = at(out, offset_of(slices), type);
    if (in_lane()) across().tree_all_reduce(sums, own, slices[n(lane())], type, levels.hosts);
    local().all_gather_v(own, out, slices, type);
  }

  void reduce_all_any(std::span<const void* const> nodes, void* out, std::size_t count, DType type,
                      Reduce reduce) {
    const Counts slices = cut(count);
    const std::size_t mine = slices[n(levels_.local->rank())];
    std::byte* const slice = room(0, mine * size_of(type));
    local().reduce_scatter_v(nodes[0], slice, slices, type, reduce);
    if (in_lane()) across().all_reduce(slice, mine, type, reduce);
    local().all_gather_v(slice, out, slices, type);
  }

  // The slices of each host's block, summed in this host, go to that host, which puts its own
  // together.
  void scatter_sum(std::span<const void* const> nodes, void* out,
                   std::span<const std::size_t> counts, DType type, const ReductionPlan& plan) {
    TUTTI_ASSERT(counts.size() == n(size()), counts.size(), " counts");
    const TwoLevels& levels = two_levels(plan);
    const Counts blocks = blocks_of(counts);
    const std::size_t element = size_of(type);
    Counts slices;
    for (const std::size_t block : blocks) slices.push_back(cut(block)[n(levels_.local->rank())]);
    const std::size_t stride = sum_of(slices) * element;
    std::byte* const sums = room(0, stride * std::max<std::size_t>(1, levels.own.size()));
    std::vector<const void*> whole;
    for (std::size_t i = 0; i < levels.own.size(); ++i) whole.push_back(sums + i * stride);
    std::size_t begin = 0, place = 0;
    for (std::size_t h = 0; h < blocks.size(); begin += blocks[h], place += slices[h], ++h)
      host_nodes(nodes, begin, blocks[h], type, levels, sums + place * element, stride);
    std::byte* const slice = room(1, slices[n(host_)] * element);
    if (in_lane()) across().tree_reduce_scatter(whole, slice, slices, type, levels.hosts);
    const Counts own_slices = cut(blocks[n(host_)]);
    std::byte* const block = room(2, blocks[n(host_)] * element);
    local().all_gather_v(slice, block, own_slices, type);
    const auto here = own_host(counts);
    const std::size_t before = sum_of(here.first(n(levels_.local->rank())));
    copy(out, block + before * element, counts[n(rank())] * element);
  }

  Levels levels_;
  HostSizes hosts_;
  std::vector<int> first_ = {0};  // rank of each host, and one past the last
  int host_ = 0;                  // this rank's
  int lanes_;
  std::string transport_;
  ReductionPlan ranks_plan_;  // one id a rank
  std::vector<TwoLevels> known_;
  std::array<std::vector<std::max_align_t>, 3> room_;
};

}  // namespace

HostSizes hosts_of(const std::vector<std::int64_t>& host_of_rank) {
  HostSizes sizes;
  std::vector<std::int64_t> seen;
  for (const std::int64_t host : host_of_rank) {
    if (!seen.empty() && seen.back() == host) {
      ++sizes.back();
      continue;
    }
    if (std::ranges::count(seen, host) > 0) return {};
    seen.push_back(host);
    sizes.push_back(1);
  }
  return sizes;
}

int lanes_of(const HostSizes& hosts) { return std::ranges::min(hosts); }

std::unique_ptr<Communicator> make_hierarchy(Levels levels, const HostSizes& hosts) {
  return std::make_unique<Hierarchy>(std::move(levels), hosts);
}

}  // namespace tutti::comm
