#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/rng.h"
#include "optim/kernels.h"

namespace tutti::optim {
namespace {

torch::Tensor part(const torch::Tensor& flat, const Segment& segment) {
  return flat.narrow(0, segment.offset, segment.size);
}

bool decays(const Segment& segment) { return segment.shape.size() >= 2; }

// Calls run(pointers..., count) for every segment in equal chunks, over the intra-op threads; the
// buffers share the segments' offsets.
template <class T, class Run>
void for_chunks(const Segment& segment, const Run& run) {
  at::parallel_for(0, segment.size, 1 << 14, [&](std::int64_t first, std::int64_t end) {
    run(segment.offset + first, end - first);
  });
}

// run(at, place, count) for elements [at, at + count) of the segment that lie side by side, from
// `place` on, in the whole parameter.
template <class Visit>
void for_places(const Segment& segment, std::int64_t at, std::int64_t count, const Visit& visit) {
  const std::int64_t end = at + count;
  const auto& runs = segment.runs;
  if (runs.empty()) return visit(at, segment.first + at, count);
  auto run = std::upper_bound(runs.begin(), runs.end(), segment.first + at,
                              [](std::int64_t first, const Run& r) { return first < r.first; });
  for (; at < end; ++run) {
    const std::int64_t next = run == runs.end() ? end : std::min(end, run->first - segment.first);
    const Run& within = *std::prev(run);
    visit(at, within.place + segment.first + at - within.first, next - at);
    at = next;
  }
}

std::uint16_t* bits_of(torch::Tensor& moments) {
  return reinterpret_cast<std::uint16_t*>(moments.data_ptr<at::BFloat16>());
}

// How bf16 moments are rounded: optimizer.h.
class Rounding {
 public:
  Rounding(const recipe::Optimizer& recipe, std::uint64_t seed)
      : active_(recipe.state == "bf16"), seed_(seed) {}
  bool active() const { return active_; }
  torch::ScalarType type(const torch::Tensor& like) const {
    return active_ ? torch::kBFloat16 : like.scalar_type();
  }
  Draws draws(const Segment& segment, std::int64_t step) const {
    return {RandomStream(seed_, "moments/" + segment.name).key(), static_cast<std::uint64_t>(step)};
  }
  // Of the segment's elements, flat, to where they are kept.
  void store(const torch::Tensor& values, torch::Tensor kept, const Segment& segment,
             std::int64_t step) const {
    if (!active_) return void(kept.copy_(values));
    const torch::Tensor from = values.cpu().contiguous();
    torch::Tensor to = kept.is_cpu() ? kept : torch::empty_like(from, torch::kBFloat16);
    const Draws draw = draws(segment, step);
    for_places(
        segment, 0, segment.size, [&](std::int64_t at, std::int64_t place, std::int64_t count) {
          if (from.scalar_type() == torch::kFloat)
            round_bf16(from.const_data_ptr<float>() + at, bits_of(to) + at, count, draw, place);
          else
            round_bf16(from.const_data_ptr<double>() + at, bits_of(to) + at, count, draw, place);
        });
    if (!kept.is_cpu()) kept.copy_(to);
  }

 private:
  bool active_;
  std::uint64_t seed_;
};

class Moments {
 public:
  // `indices`: which of the optimizer's segments these are; empty: all of them.
  Moments(std::vector<Segment> segments, const torch::Tensor& like, torch::ScalarType type,
          std::vector<std::string> names, std::vector<std::size_t> indices = {})
      : segments_(std::move(segments)), names_(std::move(names)), indices_(std::move(indices)) {
    for (std::size_t i = 0; i < names_.size(); ++i)
      buffers_.push_back(torch::zeros_like(like, type));
  }
  const std::vector<Segment>& segments() const { return segments_; }
  torch::Tensor& operator[](std::size_t i) { return buffers_[i]; }
  std::vector<NamedTensor> state() {
    std::vector<NamedTensor> all;
    for (std::size_t i = 0; i < names_.size(); ++i)
      for (std::size_t s = 0; s < segments_.size(); ++s)
        all.push_back({"optimizer." + names_[i] + "/" + segments_[s].name,
                       part(buffers_[i], segments_[s]), indices_.empty() ? s : indices_[s]});
    return all;
  }

 private:
  std::vector<Segment> segments_;
  std::vector<std::string> names_;
  std::vector<std::size_t> indices_;
  std::vector<torch::Tensor> buffers_;
};

class AdamWOptimizer : public Optimizer {
 public:
  AdamWOptimizer(const recipe::Optimizer& recipe, std::vector<Segment> segments,
                 const torch::Tensor& like, std::uint64_t seed,
                 std::vector<std::size_t> indices = {})
      : recipe_(recipe),
        rounding_(recipe, seed),
        moments_(std::move(segments), like, rounding_.type(like), {"exp_avg", "exp_avg_sq"},
                 std::move(indices)) {}

  void step(torch::Tensor& master, const torch::Tensor& gradient, std::int64_t step, double lr,
            double scale) override {
    const double beta2 = step > last_moving_ ? 1 : recipe_.beta2;
    const auto t = static_cast<double>(step),
               t2 = static_cast<double>(std::min(step, last_moving_));
    AdamW options{recipe_.beta1,
                  beta2,
                  recipe_.eps,
                  1,
                  lr / (1 - std::pow(recipe_.beta1, t)),
                  1 / std::sqrt(1 - std::pow(recipe_.beta2, t2)),
                  scale};
    for (const Segment& segment : moments_.segments()) {
      options.decay = decays(segment) ? 1 - lr * recipe_.weight_decay : 1;
      if (!master.device().is_cpu())
        elsewhere(master, gradient, segment, options, step);
      else if (master.scalar_type() == torch::kFloat)
        here<float>(master, gradient, segment, options, step);
      else
        here<double>(master, gradient, segment, options, step);
    }
  }
  std::vector<NamedTensor> state() override { return moments_.state(); }
  void freeze_after(std::int64_t step) override { last_moving_ = step; }

 private:
  template <class T>
  void here(torch::Tensor& master, const torch::Tensor& gradient, const Segment& segment,
            const AdamW& options, std::int64_t step) {
    T* w = master.data_ptr<T>();
    const T* g = gradient.const_data_ptr<T>();
    if (rounding_.active()) {
      const Draws draws = rounding_.draws(segment, step);
      std::uint16_t *m = bits_of(moments_[0]), *v = bits_of(moments_[1]);
      return for_chunks<T>(segment, [&](std::int64_t at, std::int64_t count) {
        for_places(segment, at - segment.offset, count,
                   [&](std::int64_t i, std::int64_t place, std::int64_t n) {
                     i += segment.offset;
                     adamw_bf16(w + i, g + i, m + i, v + i, n, options, draws, place);
                   });
      });
    }
    T *m = moments_[0].data_ptr<T>(), *v = moments_[1].data_ptr<T>();
    for_chunks<T>(segment, [&](std::int64_t at, std::int64_t count) {
      adamw(w + at, g + at, m + at, v + at, count, options);
    });
  }
  // The same update as torch operations, for other devices.
  void elsewhere(torch::Tensor& master, const torch::Tensor& gradient, const Segment& segment,
                 const AdamW& o, std::int64_t step) {
    auto w = part(master, segment), kept_m = part(moments_[0], segment),
         kept_v = part(moments_[1], segment);
    const auto g = part(gradient, segment) * o.scale;
    const auto m = (kept_m.to(g.scalar_type()) * o.beta1).add_(g, 1 - o.beta1);
    const auto v = (kept_v.to(g.scalar_type()) * o.beta2).addcmul_(g, g, 1 - o.beta2);
    rounding_.store(m, kept_m, segment, step);
    rounding_.store(v, kept_v, segment, -step);  // draws of its own
    w.mul_(o.decay).addcdiv_(m, (v.sqrt() * o.v_factor).add_(o.eps), -o.rate);
  }

  recipe::Optimizer recipe_;
  Rounding rounding_;
  Moments moments_;
  std::int64_t last_moving_ = std::numeric_limits<std::int64_t>::max();  // update of the second
};

class SgdOptimizer : public Optimizer {
 public:
  SgdOptimizer(const recipe::Optimizer& recipe, std::vector<Segment> segments,
               const torch::Tensor& like, std::uint64_t seed)
      : recipe_(recipe),
        rounding_(recipe, seed),
        moments_(std::move(segments), like, rounding_.type(like), {"momentum"}) {}

  void step(torch::Tensor& master, const torch::Tensor& gradient, std::int64_t step, double lr,
            double scale) override {
    for (const Segment& segment : moments_.segments()) {
      const Sgd options{recipe_.momentum, decays(segment) ? 1 - lr * recipe_.weight_decay : 1, lr,
                        scale, recipe_.nesterov};
      if (!master.device().is_cpu())
        elsewhere(master, gradient, segment, options, step);
      else if (master.scalar_type() == torch::kFloat)
        here<float>(master, gradient, segment, options, step);
      else
        here<double>(master, gradient, segment, options, step);
    }
  }
  std::vector<NamedTensor> state() override { return moments_.state(); }

 private:
  template <class T>
  void here(torch::Tensor& master, const torch::Tensor& gradient, const Segment& segment,
            const Sgd& options, std::int64_t step) {
    T* w = master.data_ptr<T>();
    const T* g = gradient.const_data_ptr<T>();
    if (rounding_.active()) {
      const Draws draws = rounding_.draws(segment, step);
      std::uint16_t* b = bits_of(moments_[0]);
      return for_chunks<T>(segment, [&](std::int64_t at, std::int64_t count) {
        for_places(segment, at - segment.offset, count,
                   [&](std::int64_t i, std::int64_t place, std::int64_t n) {
                     i += segment.offset;
                     sgd_bf16(w + i, g + i, b + i, n, options, draws, place);
                   });
      });
    }
    T* b = moments_[0].data_ptr<T>();
    for_chunks<T>(segment, [&](std::int64_t at, std::int64_t count) {
      sgd(w + at, g + at, b + at, count, options);
    });
  }
  void elsewhere(torch::Tensor& master, const torch::Tensor& gradient, const Segment& segment,
                 const Sgd& o, std::int64_t step) {
    auto w = part(master, segment), kept = part(moments_[0], segment);
    const auto g = part(gradient, segment) * o.scale;
    const auto b = (kept.to(g.scalar_type()) * o.momentum).add_(g);
    rounding_.store(b, kept, segment, step);
    w.mul_(o.decay).add_(o.nesterov ? g + o.momentum * b : b, -o.lr);
  }

  recipe::Optimizer recipe_;
  Rounding rounding_;
  Moments moments_;
};

// Multiplications of orthogonalise().
double orthogonalise_cost(std::int64_t rows, std::int64_t columns) {
  const auto small = static_cast<double>(std::min(rows, columns));
  const auto large = static_cast<double>(std::max(rows, columns));
  return small * small * (2 * large + small);
}

// Cuts a list into `parts` runs of about equal cost: the first of each, and the end.
std::vector<std::size_t> cut(const std::vector<double>& costs, int parts) {
  const double total = std::accumulate(costs.begin(), costs.end(), 0.0);
  std::vector<std::size_t> firsts = {0};
  double sum = 0;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    while (static_cast<int>(firsts.size()) < parts &&
           sum + costs[i] / 2 >= total * static_cast<double>(firsts.size()) / parts)
      firsts.push_back(i);
    sum += costs[i];
  }
  firsts.resize(static_cast<std::size_t>(parts) + 1, costs.size());
  return firsts;
}

class MuonOptimizer : public Optimizer {
 public:
  MuonOptimizer(const recipe::Optimizer& recipe, const std::vector<Segment>& segments,
                const torch::Tensor& like, Peers peers, std::uint64_t seed)
      : recipe_(recipe),
        rounding_(recipe, seed),
        hidden_(indices_of(segments, true)),
        matrices_(chosen(segments, hidden_), like, rounding_.type(like), {"muon_momentum"},
                  hidden_),
        rest_(recipe, chosen(segments, indices_of(segments, false)), like, seed,
              indices_of(segments, false)),
        peers_(std::move(peers)),
        directions_(torch::zeros_like(like)) {
    std::vector<double> costs;
    for (const Segment& segment : matrices_.segments())
      costs.push_back(orthogonalise_cost(segment.shape[0], segment.shape[1]));
    firsts_ = cut(costs, peers_.size);
  }

  // Nothing of the state changes before the peers, which may be lost, have handed on their part.
  void step(torch::Tensor& master, const torch::Tensor& gradient, std::int64_t step, double lr,
            double scale) override {
    const std::vector<Segment>& segments = matrices_.segments();
    std::vector<torch::Tensor> momenta;
    for (const Segment& segment : segments) {
      const auto g = part(gradient, segment) * scale;
      momenta.push_back(
          torch::add(g, part(matrices_[0], segment).to(g.scalar_type()), recipe_.momentum));
      auto direction = part(directions_, segment);
      direction.copy_(momenta.back());
      if (recipe_.nesterov) direction.mul_(recipe_.momentum).add_(g);
    }
    if (peers_.exchange)
      orthogonalise_cut();
    else
      orthogonalise_all();
    rest_.step(master, gradient, step, lr, scale);
    const double matrix_lr = recipe_.lr == 0 ? 0 : lr * recipe_.matrix_lr / recipe_.lr;
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const Segment& segment = segments[i];
      const double outputs = static_cast<double>(segment.shape[segment.input_first ? 1 : 0]),
                   inputs = static_cast<double>(segment.shape[segment.input_first ? 0 : 1]);
      rounding_.store(momenta[i], part(matrices_[0], segment), segment, step);
      part(master, segment)
          .mul_(1 - matrix_lr * recipe_.weight_decay)
          .add_(part(directions_, segment),
                -matrix_lr * std::sqrt(std::max(1.0, outputs / inputs)));
    }
  }
  std::vector<NamedTensor> state() override {
    auto all = matrices_.state();
    for (NamedTensor& tensor : rest_.state()) all.push_back(std::move(tensor));
    return all;
  }
  void freeze_after(std::int64_t step) override { rest_.freeze_after(step); }

 private:
  // The matrices that a rank orthogonalises: a run of neighbours.
  std::pair<std::size_t, std::size_t> range(int rank) const {
    return {firsts_[static_cast<std::size_t>(rank)], firsts_[static_cast<std::size_t>(rank) + 1]};
  }

  void orthogonalise_all() {
    const std::vector<Segment>& all = matrices_.segments();
    const auto [mine, mine_end] = range(peers_.rank);
    for (std::size_t i = mine; i < mine_end; ++i) {
      auto direction = part(directions_, all[i]);
      direction.copy_(orthogonalise(direction.view(all[i].shape)).view({-1}));
    }
    if (peers_.size == 1) return;
    for (int rank = 0; rank < peers_.size; ++rank) {
      const auto [first, end] = range(rank);
      if (first == end) continue;
      const std::int64_t begin = all[first].offset;
      peers_.broadcast(
          directions_.narrow(0, begin, all[end - 1].offset + all[end - 1].size - begin), rank);
    }
  }

  // Each rank holds some elements of every matrix: they go to the matrix's rank and come back.
  void orthogonalise_cut() {
    const std::vector<Segment>& all = matrices_.segments();
    if (all.empty()) return;                // on all ranks: they know the same parameters
    std::vector<std::int64_t> there, here;  // elements to and from each rank
    std::vector<torch::Tensor> parts;
    const auto [mine, mine_end] = range(peers_.rank);
    for (int rank = 0; rank < peers_.size; ++rank) {
      const auto [first, end] = range(rank);
      std::int64_t to = 0, from = 0;
      for (std::size_t i = first; i < end; ++i) {
        parts.push_back(part(directions_, all[i]));
        to += all[i].size;
      }
      for (std::size_t i = mine; i < mine_end; ++i) from += held(i, rank);
      there.push_back(to);
      here.push_back(from);
    }
    torch::Tensor out = torch::cat(parts);
    torch::Tensor in =
        torch::empty({std::accumulate(here.begin(), here.end(), std::int64_t{0})}, out.options());
    peers_.exchange(out, in, there, here);
    orthogonalise_received(in, here);
    peers_.exchange(in, out, here, there);
    std::int64_t at = 0;
    for (int rank = 0; rank < peers_.size; ++rank)
      for (auto [i, end] = range(rank); i < end; at += all[i++].size)
        part(directions_, all[i]).copy_(out.narrow(0, at, all[i].size));
  }

  // `in` holds, rank by rank, that rank's elements of each of this rank's matrices.
  void orthogonalise_received(torch::Tensor& in, const std::vector<std::int64_t>& here) {
    const auto [mine, mine_end] = range(peers_.rank);
    std::vector<std::int64_t> at(1, 0);
    std::partial_sum(here.begin(), here.end(), std::back_inserter(at));
    for (std::size_t i = mine; i < mine_end; ++i) {
      std::vector<torch::Tensor> parts;
      for (int rank = 0; rank < peers_.size; ++rank)
        parts.push_back(in.narrow(0, at[static_cast<std::size_t>(rank)], held(i, rank)));
      const torch::Tensor direction =
          orthogonalise(torch::cat(parts).view(matrices_.segments()[i].shape)).view({-1});
      std::int64_t done = 0;
      for (int rank = 0; rank < peers_.size; ++rank) {
        auto& place = at[static_cast<std::size_t>(rank)];
        in.narrow(0, place, held(i, rank)).copy_(direction.narrow(0, done, held(i, rank)));
        done += held(i, rank);
        place += held(i, rank);
      }
    }
  }

  std::int64_t held(std::size_t matrix, int rank) const {
    return peers_.sizes[hidden_[matrix]][static_cast<std::size_t>(rank)];
  }
  static std::vector<std::size_t> indices_of(const std::vector<Segment>& segments, bool hidden) {
    std::vector<std::size_t> some;
    for (std::size_t i = 0; i < segments.size(); ++i)
      if (is_hidden_matrix(segments[i]) == hidden) some.push_back(i);
    return some;
  }
  static std::vector<Segment> chosen(const std::vector<Segment>& segments,
                                     const std::vector<std::size_t>& indices) {
    std::vector<Segment> some;
    for (const std::size_t i : indices) some.push_back(segments[i]);
    return some;
  }

  recipe::Optimizer recipe_;
  Rounding rounding_;
  std::vector<std::size_t> hidden_;
  Moments matrices_;
  AdamWOptimizer rest_;
  Peers peers_;
  torch::Tensor directions_;         // flat, what the matrices move along
  std::vector<std::size_t> firsts_;  // matrices [firsts_[r], firsts_[r + 1]) are rank r's
};

}  // namespace

bool is_hidden_matrix(const Segment& segment) {
  if (segment.shape.size() != 2) return false;
  for (const char* word : {"embed", "wte", "wpe", "lm_head"})
    if (segment.name.find(word) != std::string::npos) return false;
  return true;
}

torch::Tensor orthogonalise(const torch::Tensor& matrix) {
  const bool tall = matrix.size(0) > matrix.size(1);
  auto x = tall ? matrix.t().contiguous() : matrix;
  x = x / (x.norm() + 1e-7);
  const bool rounded =
      x.scalar_type() == torch::kFloat &&
      at::globalContext().float32MatmulPrecision() == at::Float32MatmulPrecision::MEDIUM;
  if (rounded) x = x.to(torch::kBFloat16);
  for (int i = 0; i < 5; ++i) {
    const auto a = x.mm(x.t());
    x = torch::addmm(x, torch::addmm(a, a, a, -4.7750, 2.0315), x, 3.4445, 1);
  }
  if (rounded) x = x.to(torch::kFloat);
  return tall ? x.t().contiguous() : x;
}

std::unique_ptr<Optimizer> make_optimizer(const recipe::Optimizer& recipe,
                                          std::vector<Segment> segments,
                                          const torch::Tensor& master_like, Peers peers,
                                          std::uint64_t seed) {
  if (recipe.name == "adamw")
    return std::make_unique<AdamWOptimizer>(recipe, std::move(segments), master_like, seed);
  if (recipe.name == "sgd")
    return std::make_unique<SgdOptimizer>(recipe, std::move(segments), master_like, seed);
  if (recipe.name == "muon")
    return std::make_unique<MuonOptimizer>(recipe, segments, master_like, std::move(peers), seed);
  throw ConfigError({{"optimizer.name", "", recipe.name, "must be one of adamw, muon, sgd", ""}});
}

}  // namespace tutti::optim
