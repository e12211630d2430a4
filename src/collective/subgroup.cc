// How groups come to be: the ranks of a job, threads of one process, and parts of either.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "collective/comm_thread.h"
#include "collective/gloo.h"
#include "collective/group.h"
#include "collective/hosts.h"
#include "collective/store_meeting.h"
#include "comm/memory_group.h"

namespace tutti::collective {
namespace {

// "tensor (ranks 1, 3)"; long lists are cut.
std::string label_of(const std::string& name, const std::vector<int>& members) {
  std::string text = str(name, members.size() == 1 ? " (rank " : " (ranks ");
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members.size() > 8 && i == 4) text += ", ...", i = members.size() - 1;
    text += str(i ? ", " : "", members[i]);
  }
  return text + ")";
}

// What the thread ranks of a process share to make subgroups: the first of a subgroup's members to
// come makes it for all.
class ThreadHub {
 public:
  std::unique_ptr<comm::Communicator> join(const Group::Meeting& meeting) {
    const std::lock_guard lock(mutex_);
    auto& members = waiting_[meeting.key];
    if (members.empty()) members = comm::make_thread_group(meeting.size, {.group = meeting.name});
    auto mine = std::move(members[static_cast<std::size_t>(meeting.rank)]);
    if (std::ranges::none_of(members, [](const auto& member) { return member != nullptr; }))
      waiting_.erase(meeting.key);
    return mine;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<std::unique_ptr<comm::Communicator>>> waiting_;
};

}  // namespace

// All ranks tell each other whom they expect, so that lists that differ are named at once.
std::shared_ptr<Group> Group::subgroup(const std::vector<int>& members, const std::string& name) {
  TUTTI_ASSERT(meet_, "group '", this->name(), "' makes no subgroups");
  const auto me = std::ranges::find(members, rank());
  TUTTI_ASSERT(me != members.end(), "rank ", rank(), " is not in the subgroup it asks for");
  std::vector<int> ranks;  // of the group that all others were made of
  for (const int member : members)
    ranks.push_back(ranks_.empty() ? member : ranks_.at(static_cast<std::size_t>(member)));
  const std::string label = label_of(name, ranks);
  std::string list;
  for (const int member : members) list += str(member, " ");
  const std::string key = str(path_, ++subgroups_made_, "/", name, "/", list);
  const std::vector<std::int64_t> mine{static_cast<std::int64_t>(hash64(key)), host_};
  const at::Tensor all = all_gather(at::tensor(mine, at::kLong));
  std::vector<std::int64_t> hosts;
  for (const int member : members) {
    TUTTI_ASSERT(0 <= member && member < size() && std::ranges::count(members, member) == 1,
                 "member ", member);
    const auto* theirs = all.const_data_ptr<std::int64_t>() + 2 * member;
    if (theirs[0] != mine[0])
      throw WorldError(str("group '", this->name(), "', rank ", rank(), ": rank ", member,
                           " does not ask for the subgroup '", label, "'"));
    hosts.push_back(theirs[1]);
  }
  const Meeting meeting{static_cast<int>(me - members.begin()), static_cast<int>(members.size()),
                        hosts, label, key};
  auto group = std::make_shared<Group>(
      meeting.size == 1 ? std::move(comm::make_thread_group(1, {.group = label})[0])
                        : meet_(meeting),
      meet_, host_);
  group->ranks_ = std::move(ranks);
  group->path_ = key + "/";
  group->taps_ = taps_;
  group->key_ = hash64(key);
  group->enter_record();
  const std::lock_guard lock(mutex_);
  subgroups_.push_back(group);
  return group;
}

void Group::abort(const std::string& reason) {
  std::vector<std::shared_ptr<Group>> subgroups;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& group : subgroups_)
      if (auto alive = group.lock()) subgroups.push_back(std::move(alive));
  }
  for (const auto& group : subgroups) group->abort(reason);
  threads_->communicator().abort(reason);
}

bool GroupOptions::in_memory() const {
  return transport == "shm" ||
         (transport == "auto" && local_size == size && size <= comm::max_memory_ranks);
}

namespace {

using CommPtr = std::unique_ptr<comm::Communicator>;

// How the groups of a job are joined.
class Joiner {
 public:
  explicit Joiner(const GroupOptions& asked) : options_(asked) {
    static constexpr std::array transports{"auto", "shm", "tcp", "gloo"};
    if (std::ranges::count(transports, asked.transport) == 0)
      throw ConfigError(std::vector<Violation>{
          {"transport", "", asked.transport, "must be one of auto, shm, tcp, gloo", ""}});
    options_.name += "/" + options_.group;
    if (!options_.here) options_.here = this_host().id;
    if (!options_.in_memory()) store_ = open_store(options_);
  }

  std::int64_t here() const { return *options_.here; }
  CommPtr world() const { return join(options_, {}); }

  CommPtr part(const Group::Meeting& meeting) const {
    GroupOptions part = options_;
    part.rank = meeting.rank;
    part.size = meeting.size;
    part.group = meeting.name;
    const bool one_host = std::ranges::count(meeting.hosts, meeting.hosts[0]) == part.size;
    part.local_size = one_host ? part.size : 1;
    part.name += "/" + meeting.key;
    return join(part, meeting.hosts);
  }

 private:
  CommPtr join(const GroupOptions& options, std::vector<std::int64_t> hosts) const {
    if (options.in_memory()) return join_memory(options);
    if (options.transport == "gloo") return join_gloo(options, store_);
    return join_hosts(options, std::move(hosts), store_);
  }

  GroupOptions options_;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace

std::unique_ptr<comm::Communicator> make_communicator(const GroupOptions& options) {
  return Joiner(options).world();
}

std::shared_ptr<Group> make_group(const GroupOptions& options) {
  const auto joiner = std::make_shared<Joiner>(options);
  return std::make_shared<Group>(
      joiner->world(), [joiner](const Group::Meeting& meeting) { return joiner->part(meeting); },
      joiner->here());
}

std::vector<std::shared_ptr<Group>> make_thread_groups(int size) {
  const auto hub = std::make_shared<ThreadHub>();
  std::vector<std::shared_ptr<Group>> groups;
  for (auto& communicator : comm::make_thread_group(size))
    groups.push_back(std::make_shared<Group>(
        std::move(communicator),
        [hub](const Group::Meeting& meeting) { return hub->join(meeting); }));
  return groups;
}

}  // namespace tutti::collective
