#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "plan/pipeline_schedule.h"

namespace tutti::plan {
namespace {

class Simulation {
 public:
  Simulation(const PipelineSchedule& schedule, const PassCosts& costs)
      : schedule_(schedule), costs_(costs), next_(schedule.orders.size()), free_(next_.size()) {
    timing_.ranks.resize(next_.size());
  }

  PipelineTiming run() {
    while (advance()) {
    }
    check_finished();
    measure();
    return std::move(timing_);
  }

 private:
  using Key = std::tuple<Pass, int, int>;

  static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  // Every rank as far as it comes; false if none came further.
  bool advance() {
    bool moved = false;
    for (std::size_t rank = 0; rank < next_.size(); ++rank)
      while (next_[rank] < schedule_.orders[rank].size() && start(rank)) moved = true;
    return moved;
  }

  bool start(std::size_t rank) {
    const Action& action = schedule_.orders[rank][next_[rank]];
    double ready = free_[rank];
    if (!inputs_ready(action, ready)) return false;
    const double end = ready + length_of(action.pass);
    const bool fresh =
        ends_.emplace(Key{action.pass, action.stage, action.micro_batch}, end).second;
    if (!fresh) refuse(str("the ", text(action), " appears twice"));
    timing_.ranks[rank].push_back({action, ready, end});
    free_[rank] = end;
    ++next_[rank];
    return true;
  }

  bool inputs_ready(const Action& a, double& ready) const {
    if (a.pass == Pass::forward) return a.stage == 0 || after(Pass::forward, a.stage - 1, a, ready);
    if (a.pass == Pass::weight_gradient) return after(Pass::input_gradient, a.stage, a, ready);
    if (!after(Pass::forward, a.stage, a, ready)) return false;
    return a.stage + 1 == schedule_.stages() || after(Pass::backward, a.stage + 1, a, ready) ||
           after(Pass::input_gradient, a.stage + 1, a, ready);
  }

  // Whether `pass` of the micro-batch has ended on `stage`; moves `ready` to when its result is
  // here.
  bool after(Pass pass, int stage, const Action& a, double& ready) const {
    const auto found = ends_.find(Key{pass, stage, a.micro_batch});
    if (found == ends_.end()) return false;
    const bool travels = schedule_.rank_of[at(stage)] != schedule_.rank_of[at(a.stage)];
    ready = std::max(ready, found->second + (travels ? costs_.transfer : 0));
    return true;
  }

  double length_of(Pass pass) const {
    switch (pass) {
      case Pass::forward:
        return costs_.forward;
      case Pass::input_gradient:
        return costs_.input_gradient;
      case Pass::weight_gradient:
        return costs_.weight_gradient;
      default:
        return costs_.input_gradient + costs_.weight_gradient;
    }
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw ConfigError(str("pipeline schedule ", schedule_.kind, ": ", what));
  }

  static std::string text(const Action& a) {
    return str(name_of(a.pass), " of micro-batch ", a.micro_batch, " on stage ", a.stage);
  }

  void check_finished() const {
    std::string waiting;
    for (std::size_t rank = 0; rank < next_.size(); ++rank)
      if (next_[rank] < schedule_.orders[rank].size())
        waiting +=
            str("; rank ", rank, " waits to run the ", text(schedule_.orders[rank][next_[rank]]));
    if (!waiting.empty()) refuse("it never ends" + waiting);
    for (int stage = 0; stage < schedule_.stages(); ++stage)
      for (int m = 0; m < schedule_.micro_batches; ++m) {
        const bool whole = ends_.contains({Pass::backward, stage, m});
        const bool split = ends_.contains({Pass::input_gradient, stage, m}) &&
                           ends_.contains({Pass::weight_gradient, stage, m});
        if (!ends_.contains({Pass::forward, stage, m}) || whole == split)
          refuse(str("it leaves out or doubles a pass of micro-batch ", m, " on stage ", stage));
      }
  }

  void measure() {
    const double work = schedule_.micro_batches * schedule_.chunks *
                        (costs_.forward + costs_.input_gradient + costs_.weight_gradient);
    for (const std::vector<Timed>& rank : timing_.ranks) {
      timing_.span = std::max(timing_.span, rank.back().end - rank.front().start);
      int alive = 0, most = 0;
      for (const Timed& timed : rank) {
        if (timed.action.pass == Pass::forward) most = std::max(most, ++alive);
        if (timed.action.pass == Pass::backward || timed.action.pass == Pass::weight_gradient)
          --alive;
      }
      timing_.peak_activations.push_back(most);
    }
    timing_.bubble = timing_.span > 0 ? 1 - work / timing_.span : 0;
  }

  const PipelineSchedule& schedule_;
  const PassCosts costs_;
  std::vector<std::size_t> next_;
  std::vector<double> free_;
  std::map<Key, double> ends_;
  PipelineTiming timing_;
};

}  // namespace

PipelineTiming simulate(const PipelineSchedule& schedule, const PassCosts& costs) {
  return Simulation(schedule, costs).run();
}

}  // namespace tutti::plan
