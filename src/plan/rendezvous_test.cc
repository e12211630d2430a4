// Schedules over a transport that holds nothing: a message is under way only once its receiver asks
// for it. simulate() lets a result arrive by itself; here the ranks, and the order of messages
// between each two of them, are played out.
#include <doctest/doctest.h>

#include <deque>
#include <map>
#include <set>
#include <utility>

#include "plan/pipeline_schedule.h"

using namespace tutti::plan;

namespace {

// Who waits until a message has been taken: nobody but the end of the step, as in
// parallel::Pipeline, where each peer and direction has a thread; or the rank that sends it.
enum class Sender { goes_on, waits };

class Rendezvous {
 public:
  Rendezvous(const PipelineSchedule& schedule, Sender sender)
      : schedule_(schedule), sender_(sender), next_(schedule.orders.size()) {}

  // Whether all ranks come to their end.
  bool ends() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < schedule_.ranks; ++rank)
        while (move(rank)) moved = true;
    }
    for (int rank = 0; rank < schedule_.ranks; ++rank)
      if (next_[at(rank)] < schedule_.orders[at(rank)].size() || unsent(rank)) return false;
    return true;
  }

 private:
  struct Message {
    bool gradient = false;
    int stage = 0, micro_batch = 0;  // of the stage that reads it
    auto operator<=>(const Message&) const = default;
  };

  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  int rank_of(int stage) const { return schedule_.rank_of[at(stage)]; }

  bool unsent(int rank) const {
    for (const auto& [way, messages] : under_way_)
      if (way.first == rank && !messages.empty()) return true;
    return false;
  }

  // One thing that `rank` can do now: take a message that it waits for, or a pass.
  bool move(int rank) {
    if (next_[at(rank)] == schedule_.orders[at(rank)].size()) return false;
    if (sender_ == Sender::waits && unsent(rank)) return false;
    const Action& a = schedule_.orders[at(rank)][next_[at(rank)]];
    const bool forward = a.pass == Pass::forward;
    if (a.pass != Pass::weight_gradient) {
      const int from = forward ? a.stage - 1 : a.stage + 1;
      const Message wanted{!forward, a.stage, a.micro_batch};
      if (0 <= from && from < schedule_.stages() && !here_.contains(wanted))
        return rank_of(from) != rank && take(rank_of(from), rank);
      give(rank, forward ? a.stage + 1 : a.stage - 1, {!forward, 0, a.micro_batch});
    }
    ++next_[at(rank)];
    return true;
  }

  // The next of the messages from `from`, in the order in which it sent them.
  bool take(int from, int rank) {
    std::deque<Message>& messages = under_way_[{from, rank}];
    if (messages.empty()) return false;
    here_.insert(messages.front());
    messages.pop_front();
    return true;
  }

  void give(int rank, int stage, Message message) {
    if (stage < 0 || stage == schedule_.stages()) return;
    message.stage = stage;
    if (rank_of(stage) == rank)
      here_.insert(message);
    else
      under_way_[{rank, rank_of(stage)}].push_back(message);
  }

  const PipelineSchedule& schedule_;
  Sender sender_;
  std::vector<std::size_t> next_;
  std::map<std::pair<int, int>, std::deque<Message>> under_way_;  // sender and receiver
  std::set<Message> here_;
};

bool ends(const PipelineSchedule& schedule, Sender sender) {
  return Rendezvous(schedule, sender).ends();
}

}  // namespace

TEST_CASE("pipeline: no schedule needs a transport that holds messages") {
  int ended = 0;
  for (const std::string& kind : pipeline_kinds())
    for (int ranks = 1; ranks <= 8; ++ranks)
      for (int chunks = 1; chunks <= 4; ++chunks)
        for (int m = 1; m <= 24; ++m) {
          if (!pipeline_violations(kind, ranks, chunks, m).empty()) continue;
          INFO(kind << " on " << ranks << " ranks x " << chunks << ", " << m);
          CHECK(ends(make_pipeline_schedule(kind, ranks, chunks, m), Sender::goes_on));
          ++ended;
        }
  MESSAGE(ended << " schedules");
  CHECK(ended > 900);
}

// Why sends have threads of their own: two neighbours of 1f1b that each wait for the other to take
// a message stand still. gpipe's messages never cross.
TEST_CASE("pipeline: ranks that wait in their sends stand still in 1f1b, not in gpipe") {
  CHECK(ends(make_pipeline_schedule("gpipe", 4, 1, 8), Sender::waits));
  CHECK_FALSE(ends(make_pipeline_schedule("1f1b", 2, 1, 3), Sender::waits));
  PipelineSchedule crossed = make_pipeline_schedule("gpipe", 2, 1, 2);
  std::swap(crossed.orders[0][1], crossed.orders[0][2]);
  CHECK_FALSE(ends(crossed, Sender::goes_on));
}
