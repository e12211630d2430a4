#include "plan/pipeline_schedule.h"

#include <algorithm>
#include <deque>
#include <functional>

#include "base/error.h"
#include "base/text.h"

namespace tutti::plan {
namespace {

// One rank's list in the making. The micro-batches of a chunk go forward in ascending order, and
// backward too, so that a count of each is all there is to keep.
class Order {
 public:
  Order(const PipelineSchedule& schedule, int rank)
      : micro_batches_(schedule.micro_batches),
        forwards_(static_cast<std::size_t>(schedule.chunks)),
        backwards_(forwards_) {
    for (int stage = 0; stage < schedule.stages(); ++stage)
      if (schedule.rank_of[static_cast<std::size_t>(stage)] == rank) stages_.push_back(stage);
  }

  int backwards(int chunk = 0) const { return backwards_[static_cast<std::size_t>(chunk)]; }
  bool left_forward(int chunk = 0) const {
    return forwards_[static_cast<std::size_t>(chunk)] < micro_batches_;
  }
  bool left_backward(int chunk = 0) const { return backwards(chunk) < micro_batches_; }

  // The next `times` micro-batches, or those that are left.
  void forward(int chunk = 0, int times = 1) {
    for (; times > 0 && left_forward(chunk); --times)
      add(Pass::forward, chunk, forwards_[static_cast<std::size_t>(chunk)]++);
  }
  void backward(int chunk = 0, int times = 1) {
    for (; times > 0 && left_backward(chunk); --times)
      add(Pass::backward, chunk, backwards_[static_cast<std::size_t>(chunk)]++);
  }
  // The weight gradient is owed then.
  void input_gradient(int chunk = 0) {
    if (!left_backward(chunk)) return;
    owed_.push_back({chunk, backwards(chunk)});
    add(Pass::input_gradient, chunk, backwards_[static_cast<std::size_t>(chunk)]++);
  }
  // Input gradient and weight gradient, one after the other.
  void both(int chunk) {
    if (!left_backward(chunk)) return;
    const int micro_batch = backwards(chunk);
    input_gradient(chunk);
    owed_.pop_back();
    add(Pass::weight_gradient, chunk, micro_batch);
  }
  // Weight gradients that are owed, the oldest first.
  void settle(int times) {
    for (; times > 0 && !owed_.empty(); --times) {
      add(Pass::weight_gradient, owed_.front().chunk, owed_.front().micro_batch);
      owed_.pop_front();
    }
  }
  void settle_all() { settle(static_cast<int>(owed_.size())); }

  std::vector<Action> take() { return std::move(actions_); }

 private:
  struct Owed {
    int chunk, micro_batch;
  };
  void add(Pass pass, int chunk, int micro_batch) {
    actions_.push_back({pass, stages_[static_cast<std::size_t>(chunk)], micro_batch});
  }

  int micro_batches_;
  std::vector<int> stages_;  // of each chunk
  std::vector<int> forwards_, backwards_;
  std::deque<Owed> owed_;
  std::vector<Action> actions_;
};

void gpipe(Order& order, const PipelineSchedule& s, int) {
  order.forward(0, s.micro_batches);
  order.backward(0, s.micro_batches);
}

void one_f_one_b(Order& order, const PipelineSchedule& s, int rank) {
  order.forward(0, s.ranks - rank - 1);
  while (order.left_backward()) {
    order.forward();
    order.backward();
  }
}

// Rank r owes r weight gradients while the pipe is full: with its ranks - r activations it then
// holds as many as rank 0.
void zb_h1(Order& order, const PipelineSchedule& s, int rank) {
  order.forward(0, s.ranks - rank - 1);
  while (order.left_backward()) {
    order.forward();
    order.input_gradient();
    if (order.backwards() > rank) order.settle(1);
  }
  order.settle_all();
}

// The k-th forward of a rank is of chunk (k / ranks) mod chunks: rounds of `ranks` micro-batches
// through one chunk after another, backwards in the opposite order of chunks.
void interleaved(Order& order, const PipelineSchedule& s, int rank) {
  const int passes = s.chunks * s.micro_batches;
  const auto chunk_of = [&](int k) { return k / s.ranks % s.chunks; };
  const int warm = std::min(passes, 2 * (s.ranks - rank - 1) + (s.chunks - 1) * s.ranks);
  int forward = 0;
  for (; forward < warm; ++forward) order.forward(chunk_of(forward));
  for (int backward = 0; backward < passes; ++backward) {
    if (forward < passes) order.forward(chunk_of(forward++));
    order.backward(s.chunks - 1 - chunk_of(backward));
  }
}

// Chunk 0 goes down the V, chunk 1 comes up. The counts fill rank r's time until its first
// gradient arrives, which takes 2 (ranks - r) passes down and up again.
void zb_v(Order& order, const PipelineSchedule& s, int rank) {
  order.forward(0, 2 * (s.ranks - rank) - 1);
  for (int i = 0; i < rank; ++i) {
    order.forward(1);
    order.forward(0);
  }
  for (int i = rank; i < s.ranks; ++i) {
    order.forward(1);
    order.both(1);
  }
  while (order.left_forward(0) || order.left_forward(1)) {
    order.forward(0);
    order.both(0);
    order.forward(1);
    order.both(1);
  }
  // The pipe empties: what others wait for goes first.
  for (int i = 0; i < rank; ++i) {
    order.input_gradient(0);
    order.input_gradient(1);
  }
  while (order.left_backward(0)) {
    order.input_gradient(0);
    order.settle(1);
  }
  order.settle_all();
}

void dualpipe_v(Order& order, const PipelineSchedule& s, int rank) {
  const int behind = s.ranks - rank - 1;
  order.forward(0, 2 * behind);
  for (int i = 0; i <= rank; ++i) {
    order.forward(0);
    order.forward(1);
  }
  for (int i = 0; i < behind; ++i) {
    order.both(1);
    order.forward(1);
  }
  // A forward beside a backward, down and up.
  for (int i = s.micro_batches - 2 * s.ranks + rank + 1; i > 0; --i) {
    order.forward(0);
    order.backward(1);
    order.forward(1);
    order.backward(0);
  }
  for (int i = 0; i < behind; ++i) {
    order.backward(1);
    order.forward(1);
    order.backward(0);
  }
  // From the middle on weight gradients are put off, to fill the holes that come.
  const int passes = 2 * (rank + 1);
  for (int i = 0; i < passes; ++i) {
    const int chunk = i % 2 ? 0 : 1;
    if (i < (passes + 1) / 2)
      order.backward(chunk);
    else
      order.input_gradient(chunk);
  }
  for (int i = 0; i < behind; ++i) {
    order.settle(1);
    order.input_gradient(0);
  }
  order.settle_all();
}

void deal(PipelineSchedule& s) {
  const bool folded = s.kind == "zb-v" || s.kind == "dualpipe-v";
  for (int stage = 0; stage < s.stages(); ++stage)
    s.rank_of.push_back(folded && stage >= s.ranks ? 2 * s.ranks - 1 - stage : stage % s.ranks);
}

struct Kind {
  const char* name;
  int least_chunks, most_chunks;  // most 0: any
  std::function<void(Order&, const PipelineSchedule&, int rank)> fill;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"gpipe", 1, 1, gpipe}, {"1f1b", 1, 1, one_f_one_b}, {"interleaved", 2, 0, interleaved},
      {"zb-h1", 1, 1, zb_h1}, {"zb-v", 2, 2, zb_v},        {"dualpipe-v", 2, 2, dualpipe_v},
  };
  return all;
}

const Kind* find_kind(const std::string& name) {
  const auto kind = std::find_if(kinds().begin(), kinds().end(),
                                 [&](const Kind& other) { return name == other.name; });
  return kind == kinds().end() ? nullptr : &*kind;
}

}  // namespace

std::vector<Violation> pipeline_violations(const std::string& name, int ranks, int chunks,
                                           int micro_batches) {
  const Kind* kind = find_kind(name);
  std::vector<Violation> wrong;
  const auto refuse = [&](const char* field, const auto& value, const std::string& rule,
                          const std::string& remedy) {
    wrong.push_back({field, "", str(value), rule, remedy});
  };
  if (!kind)
    refuse("pipeline.schedule", name, "must be one of " + join(pipeline_kinds(), ", "), "");
  if (ranks < 1) refuse("pipeline.ranks", ranks, "must be at least 1", "the nearest is 1");
  if (micro_batches < 1)
    refuse("pipeline.micro_batches", micro_batches, "must be at least 1", "the nearest is 1");
  if (!kind) return wrong;
  if (chunks < kind->least_chunks || (kind->most_chunks > 0 && chunks > kind->most_chunks)) {
    const int nearest = chunks < kind->least_chunks ? kind->least_chunks : kind->most_chunks;
    refuse("pipeline.chunks", chunks,
           kind->most_chunks > 0 ? str("must be ", nearest, " for ", name)
                                 : str("must be at least ", nearest, " for ", name),
           str("the nearest is ", nearest));
  }
  if (ranks < 1 || micro_batches < 1) return wrong;
  if (name == "interleaved" && micro_batches % ranks != 0) {
    const int below = micro_batches / ranks * ranks;
    refuse("pipeline.micro_batches", micro_batches,
           str("must be a multiple of the ", ranks, " ranks"),
           below > 0 ? str("the nearest are ", below, " and ", below + ranks)
                     : str("the nearest is ", ranks));
  }
  if (name == "dualpipe-v" && micro_batches < 2 * ranks)
    refuse("pipeline.micro_batches", micro_batches,
           str("must be at least two for each of the ", ranks, " ranks"),
           str("the nearest is ", 2 * ranks));
  return wrong;
}

const char* name_of(Pass pass) {
  constexpr const char* names[] = {"forward", "backward", "input gradient", "weight gradient"};
  return names[static_cast<std::size_t>(pass)];
}

const std::vector<std::string>& pipeline_kinds() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Kind& kind : kinds()) list.push_back(kind.name);
    return list;
  }();
  return names;
}

PipelineSchedule make_pipeline_schedule(const std::string& name, int ranks, int chunks,
                                        int micro_batches) {
  const auto wrong = pipeline_violations(name, ranks, chunks, micro_batches);
  if (!wrong.empty()) throw ConfigError(wrong);
  PipelineSchedule schedule{name, ranks, chunks, micro_batches, {}, {}};
  deal(schedule);
  for (int rank = 0; rank < ranks; ++rank) {
    Order order(schedule, rank);
    find_kind(name)->fill(order, schedule, rank);
    schedule.orders.push_back(order.take());
  }
  return schedule;
}

}  // namespace tutti::plan
