#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/fs.h"
#include "base/subprocess.h"
#include "base/text.h"
#include "cli/doctor.h"
#include "cli/worker.h"
#include "launch/cores.h"

namespace tutti::cli {
namespace {

using Grade = Finding::Grade;

// The text after "key :" in a file of such lines.
std::string field_of(const char* path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos && trim(line.substr(0, colon)) == key) {
      return std::string(trim(line.substr(colon + 1)));
    }
  }
  return {};
}

double meminfo(const std::string& key) {
  return std::strtod(field_of("/proc/meminfo", key).c_str(), nullptr) * 1024;
}

Finding cpu() {
  const std::string model = field_of("/proc/cpuinfo", "model name");
  std::istringstream flags(field_of("/proc/cpuinfo", "flags"));
  const std::set<std::string> set{std::istream_iterator<std::string>(flags),
                                  std::istream_iterator<std::string>()};
  const char* vectors = set.count("avx512f") ? "AVX-512" : set.count("avx2") ? "AVX2" : "";
  utsname system{};
  ::uname(&system);
  std::string detail = model.empty() ? system.machine : model;
  if (*vectors) return {Grade::good, "cpu", detail + ", " + vectors, ""};
  return {Grade::note, "cpu", detail + ", no AVX2", "works, but slowly"};
}

Finding cores() {
  const int usable = launch::usable_cores();
  const auto allowed = launch::allowed_cores().size();
  std::string detail = str(usable, " usable");
  if (static_cast<std::size_t>(usable) < allowed) {
    detail += str(" (a quota of the ", allowed, " we may run on)");
  }
  return {Grade::good, "cores", detail, ""};
}

Finding memory() {
  const double free = meminfo("MemAvailable");
  const std::string detail = human_bytes(meminfo("MemTotal")) + ", " + human_bytes(free) + " free";
  if (free > 1.5e9) return {Grade::good, "memory", detail, ""};
  return {Grade::note, "memory", detail, "each worker takes some 0.5 GiB besides the model"};
}

Finding disk() {
  const double free = static_cast<double>(free_bytes("."));
  const std::string detail = human_bytes(free) + " free here";
  if (::access(".", W_OK) != 0) {
    return {Grade::bad, "disk", "no write permission here", "use --out DIR with a folder of yours"};
  }
  if (free > 2e9) return {Grade::good, "disk", detail, ""};
  return {Grade::note, "disk", detail, "checkpoints need room: free some or use --out DIR"};
}

Finding shared_memory() {
  struct statvfs info{};
  if (::statvfs("/dev/shm", &info) != 0 || ::access("/dev/shm", W_OK) != 0) {
    return {Grade::note, "/dev/shm", "absent or not writable",
            "not needed, but mount a tmpfs there (docker run --ipc=host)"};
  }
  const double block = static_cast<double>(info.f_frsize);
  return {Grade::good, "/dev/shm",
          human_bytes(static_cast<double>(info.f_blocks) * block) + ", " +
              human_bytes(static_cast<double>(info.f_bavail) * block) + " free",
          ""};
}

Finding compiler() {
  for (const char* name : {"clang++-19", "clang++", "c++"}) {
    try {
      const Captured got = run_and_capture({name, {"--version"}, {}, -1, {}}, 10);
      if (got.end && got.end->ok())
        return {Grade::good, "compiler", split(got.output, '\n')[0], ""};
    } catch (const WorldError&) {  // not this one
    }
  }
  return {Grade::note, "compiler", "none found", "only building needs one: ./dev setup brings it"};
}

Finding worker() {
  try {
    const fs::path path = find_worker();
    const Captured got = run_and_capture({path, {"version"}, {}, -1, {}}, 30);
    if (got.end && got.end->ok()) {
      return {Grade::good, "libtorch", std::string(trim(got.output)), ""};
    }
    return {Grade::bad, "libtorch", "tutti-worker does not start: " + std::string(trim(got.output)),
            "build again: ./dev build"};
  } catch (const WorldError& error) {
    return {Grade::bad, "libtorch", error.what(), "./dev setup, then ./dev build"};
  }
}

Finding clock() {
  timespec resolution{};
  ::clock_getres(CLOCK_MONOTONIC, &resolution);
  const std::time_t now = std::time(nullptr);
  char text[64];
  std::tm utc{};
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", ::gmtime_r(&now, &utc));
  if (now > 1735689600) return {Grade::good, "clock", text, ""};  // 2025
  return {Grade::note, "clock", text, "set the clock: times in reports will be wrong"};
}

Finding ports() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool good = fd >= 0 &&
                    ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                    ::listen(fd, 1) == 0;
  const std::string why = good ? "" : errno_text();
  if (fd >= 0) ::close(fd);
  if (good) return {Grade::good, "ports", "can listen on 127.0.0.1", ""};
  return {Grade::note, "ports", "cannot listen on 127.0.0.1: " + why,
          "only transport: gloo needs it; allow loopback sockets"};
}

Finding corpus() {
  const fs::path root = program_folder().parent_path().parent_path().parent_path();
  for (const fs::path& base : {fs::path("."), root}) {
    if (fs::exists(base / "corpus/shakespeare")) {
      return {Grade::good, "corpus", (base / "corpus/shakespeare").lexically_normal().string(), ""};
    }
  }
  return {Grade::note, "corpus", "Shakespeare's plays are not here",
          "./dev setup brings them (recipes/shakespeare.yaml reads them)"};
}

}  // namespace

std::vector<Finding> examine_machine() {
  return {cpu(),      cores(),  memory(), disk(),  shared_memory(),
          compiler(), worker(), clock(),  ports(), corpus()};
}

}  // namespace tutti::cli
