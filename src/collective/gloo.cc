#include "collective/gloo.h"

#include "base/clock.h"
#include "base/error.h"

// The wheel exports Gloo but lacks its headers; the system's serve where they are installed.
#if defined(USE_C10D_GLOO) && __has_include(<gloo/context.h>)
#include <netdb.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <string>
#include <utility>
#include <vector>

#include "collective/backend_communicator.h"
#include "comm/segment.h"

namespace tutti::collective {
namespace {

using Milliseconds = std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

Milliseconds timeout_of(const GroupOptions& options) {
  return Milliseconds(static_cast<std::int64_t>(options.timeout * 1e3));
}

[[noreturn]] void fail(const GroupOptions& options, const std::string& cause) {
  throw WorldError(str("gloo group '", options.group, "', rank ", options.rank, " of ",
                       options.size, ": meeting at ", options.host, ":", options.port, ": ",
                       cause));
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

// Which processes of this host the group has, so that the end of one can be named.
class LocalPeers {
 public:
  LocalPeers(const StorePtr& store, const GroupOptions& options) {
    const std::string host = host_name();
    const auto set = [&](const std::string& key, const std::string& value) {
      store->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
    };
    set(str("peer/", options.rank), str(getpid(), " ", host));
    for (int r = 0; r < options.size; ++r) {
      const auto value = store->get(str("peer/", r));
      const std::string text(value.begin(), value.end());
      const auto space = text.find(' ');
      const bool local = r != options.rank && text.substr(space + 1) == host;
      processes_.push_back(local ? std::stoi(text.substr(0, space)) : 0);
      watches_.emplace_back(processes_.back());
    }
  }

  // A peer's socket closes a moment before its process counts as ended: looks for up to a second.
  std::string lost() const {
    std::string text;
    for (int look = 0; look < 100 && text.empty(); ++look) {
      text = ended();
      if (text.empty()) real_clock().sleep(0.01);
    }
    return text;
  }

 private:
  std::string ended() const {
    std::string text;
    for (std::size_t r = 0; r < watches_.size(); ++r)
      if (watches_[r].ended())
        text +=
            str(text.empty() ? "" : ", ", "rank ", r, " (process ", processes_[r], ") has ended");
    return text;
  }

  std::vector<int> processes_;
  std::vector<comm::ProcessWatch> watches_;
};

c10::intrusive_ptr<c10d::Backend> open_backend(const StorePtr& store, const GroupOptions& options) {
  using Gloo = c10d::ProcessGroupGloo;
  auto gloo = Gloo::Options::create(timeout_of(options));
  const bool local = options.host == "127.0.0.1" || options.host == "localhost";
  gloo->devices.push_back(local ? Gloo::createDeviceForHostname("127.0.0.1")
                                : Gloo::createDefaultDevice());
  return c10::make_intrusive<Gloo>(store, options.rank, options.size, gloo);
}

}  // namespace

std::unique_ptr<comm::Communicator> join_gloo(const GroupOptions& options, StorePtr root) {
  const StorePtr store = c10::make_intrusive<c10d::PrefixStore>(options.name, std::move(root));
  try {
    auto peers = std::make_shared<LocalPeers>(store, options);
    auto backend = open_backend(store, options);
    return std::make_unique<BackendCommunicator>(backend, "gloo", options.group, options.timeout,
                                                 [peers, store] { return peers->lost(); });
  } catch (const std::exception& error) {
    const std::string text = error.what();
    fail(options, text.substr(0, text.find('\n')));
  }
}

}  // namespace tutti::collective

#else

namespace tutti::collective {

std::unique_ptr<comm::Communicator> join_gloo(const GroupOptions&,
                                              c10::intrusive_ptr<c10d::Store>) {
  throw ConfigError(
      std::vector<Violation>{{"transport", "", "gloo", "this build has no Gloo",
                              "install libgloo-dev and build again, or use transport: tcp"}});
}

}  // namespace tutti::collective
#endif
