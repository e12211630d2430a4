#include "launch/hosts.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"

namespace tutti::launch {
namespace {

constexpr double beat_seconds = 1;

fs::path file_of(const fs::path& run) { return run / "hosts.json"; }

// Its beats tell that the launcher lives. None: no sign, or not one of ours.
std::optional<std::pair<HostsSign, std::uint64_t>> read(const fs::path& run) {
  try {
    const Json json = Json::parse(read_file(file_of(run)));
    HostsSign sign;
    sign.folder = run / json.at("folder").get<std::string>();
    sign.hosts = json.at("hosts").get<int>();
    sign.workers = json.at("workers").get<int>();
    sign.threads = json.at("threads").get<int>();
    sign.resume = json.at("resume").get<bool>();
    return std::pair{sign, json.at("beats").get<std::uint64_t>()};
  } catch (const WorldError&) {
    return {};
  } catch (const Json::exception&) {
    return {};
  }
}

}  // namespace

HostsMeeting::HostsMeeting(const fs::path& run, HostsSign sign)
    : file_(file_of(run)), sign_(std::move(sign)) {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number)
    throw WorldError(str("no random bytes: ", errno_text()));
  sign_.folder = run / ("meeting-" + hex64(number));
  make_folders(sign_.folder);
  write();
}

HostsMeeting::~HostsMeeting() {
  std::error_code ignored;
  fs::remove(file_, ignored);
  fs::remove_all(sign_.folder, ignored);
}

void HostsMeeting::beat() {
  if (real_clock().now() - written_ < beat_seconds) return;
  try {
    write();
    silent_ = false;
  } catch (const WorldError& error) {  // a run that has met can do without
    if (!std::exchange(silent_, true))
      log_warning(str(error.what(), "; hosts that have not joined yet will not find this one"));
  }
}

void HostsMeeting::write() {
  written_ = real_clock().now();
  write_file(file_, Json{{"folder", sign_.folder.filename().string()},
                         {"hosts", sign_.hosts},
                         {"workers", sign_.workers},
                         {"threads", sign_.threads},
                         {"resume", sign_.resume},
                         {"beats", ++beats_}}
                        .dump());
}

HostClaim::HostClaim(const HostsSign& sign, int host) : file_(sign.folder / str("host-", host)) {
  const int file = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0 && errno == EEXIST)
    throw ConfigError({{"--host", "", str(host), "has joined already", "give each host its own"}});
  if (file < 0) throw WorldError(str("cannot write ", file_.string(), ": ", errno_text()));
  ::close(file);
}

HostClaim::~HostClaim() {
  std::error_code ignored;
  fs::remove(file_, ignored);
}

HostsSign await_hosts(const fs::path& run, double timeout, const std::function<bool()>& stop) {
  const double start = real_clock().now();
  auto first = read(run);
  for (;;) {
    const auto now = read(run);
    if (now && first && now->first.folder == first->first.folder && now->second > first->second)
      return now->first;
    if (now && (!first || now->first.folder != first->first.folder)) first = now;
    if (stop()) throw WorldError("interrupted");
    if (real_clock().now() - start > timeout)
      throw WorldError(str("no host has started the run ", run.string(), " within ", timeout,
                           " s: tutti train RECIPE --out ", run.string(), " --hosts N"));
    real_clock().sleep(0.1);
  }
}

}  // namespace tutti::launch
