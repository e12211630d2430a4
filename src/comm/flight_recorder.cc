#include "comm/flight_recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"

namespace tutti::comm {
namespace {

constexpr std::array<char, 8> magic = {'t', 'u', 't', 't', 'i', 'f', 'l', '1'};

template <std::size_t size>
void put(std::array<char, size>& to, const std::string& text) {
  to = {};
  std::memcpy(to.data(), text.data(), std::min(text.size(), size - 1));
}

template <std::size_t size>
void put(std::array<char, size>& to, const char* text) {
  std::strncpy(to.data(), text, size - 1);
  to.back() = 0;
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

// Field `which` of /proc/PID/stat, counted from 1; "" if there is no such process.
std::string process_field(int process, std::size_t which) {
  try {
    const std::string stat = read_file(str("/proc/", process, "/stat"));
    const auto words = split(stat.substr(stat.rfind(')') + 2), ' ');  // the name may have blanks
    return which >= 3 && which - 3 < words.size() ? words[which - 3] : "";
  } catch (const WorldError&) {
    return "";
  }
}

// Tells a process from a later one of the same number.
std::uint64_t birth_of(int process) {
  const std::string ticks = process_field(process, 22);
  return ticks.empty() ? 0 : std::stoull(ticks);
}

// Seconds since 1970 less those of the monotonic clock: the tightest of some readings, as this
// process may lose its core between two.
double wall_offset() {
  double offset = 0, least = 1e300;
  for (int i = 0; i < 16; ++i) {
    const double before = real_clock().now(), wall = wall_seconds(), after = real_clock().now();
    if (after - before >= least) continue;
    least = after - before;
    offset = wall - (before + after) / 2;
  }
  return offset;
}

}  // namespace

std::string site_text(const std::source_location& site) {
  const char* name = site.file_name();
  const char* slash = std::strrchr(name, '/');
  return str(slash ? slash + 1 : name, ":", site.line());
}

struct FlightRecorder::File {
  FlightHead head;
  std::array<FlightGroup, FlightHead::most_groups> groups;
  std::array<FlightEntry, FlightHead::capacity> entries;
};

FlightRecorder::FlightRecorder(const fs::path& file, int rank, int world) {
  ::unlink(file.c_str());  // whoever reads an older one keeps it
  const int fd = ::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) throw WorldError(str(file.string(), ": cannot be made: ", errno_text()));
  // Room on the disk now, so that a full one is an error here and not a signal later.
  const int error = ::posix_fallocate(fd, 0, sizeof(File));
  void* memory =
      error ? MAP_FAILED : ::mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const std::string why = error ? errno_text(error) : errno_text();
  ::close(fd);
  if (memory == MAP_FAILED) {
    ::unlink(file.c_str());
    throw WorldError(str(file.string(), ": has no room for ", sizeof(File), " bytes: ", why));
  }
  file_ = static_cast<File*>(memory);
  FlightHead& head = file_->head;
  head.rank = rank, head.world = world, head.process = ::getpid();
  head.birth = birth_of(::getpid());
  head.wall = wall_offset();
  put(head.host, host_name());
  head.magic = magic;  // last: it is a recorder's from now on
}

FlightRecorder::~FlightRecorder() {
  file_->head.closed = std::uncaught_exceptions() > 0 ? 2 : 1;
  ::munmap(file_, sizeof(File));
}

int FlightRecorder::add_group(const std::string& name, std::uint64_t key, int rank, int size) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t at = file_->head.groups;
  if (at == FlightHead::most_groups) return -1;
  FlightGroup& group = file_->groups[at];
  group.key = key, group.rank = rank, group.size = size;
  put(group.name, name);
  file_->head.groups = at + 1;
  return static_cast<int>(at);
}

FlightEntry& FlightRecorder::claim(std::uint64_t& order) {
  order = std::atomic_ref(file_->head.newest).fetch_add(1) + 1;
  FlightEntry& entry = file_->entries[order % FlightHead::capacity];
  std::atomic_ref(entry.order).store(0);
  std::atomic_thread_fence(std::memory_order_release);
  const FlightEntry empty;
  std::memcpy(reinterpret_cast<std::byte*>(&entry) + sizeof entry.order,
              reinterpret_cast<const std::byte*>(&empty) + sizeof entry.order,
              sizeof entry - sizeof entry.order);
  return entry;
}

FlightEntry* FlightRecorder::find(std::uint64_t order) {
  FlightEntry& entry = file_->entries[order % FlightHead::capacity];
  return order > 0 && std::atomic_ref(entry.order).load() == order ? &entry : nullptr;
}

std::uint64_t FlightRecorder::ask(const Asked& asked) {
  if (asked.group < 0) return 0;
  std::uint64_t order = 0;
  FlightEntry& entry = claim(order);
  entry.sequence = asked.sequence, entry.bytes = asked.bytes;
  entry.group = asked.group, entry.peer = asked.peer;
  entry.type = static_cast<std::uint8_t>(asked.type), entry.message = asked.message;
  put(entry.operation, asked.operation);
  put(entry.site, site_text(asked.site));
  entry.asked = real_clock().now();
  std::atomic_ref(entry.order).store(order);
  return order;
}

void FlightRecorder::start(std::uint64_t order) {
  if (FlightEntry* entry = find(order)) entry->started = real_clock().now();
}

void FlightRecorder::end(std::uint64_t order, bool failed) {
  FlightEntry* entry = find(order);
  if (!entry) return;
  entry->failed = failed;
  entry->ended = real_clock().now();
}

void FlightRecorder::span(const char* name, double start, double end) {
  std::uint64_t order = 0;
  FlightEntry& entry = claim(order);
  put(entry.operation, name);
  entry.asked = entry.started = start, entry.ended = end;
  std::atomic_ref(entry.order).store(order);
}

namespace {

constexpr std::int32_t most_members = 65536;  // parallel.workers
constexpr auto last_type = static_cast<std::uint8_t>(DType::boolean);

FlightLog::Process state_of(int process, std::uint64_t birth) {
  if (birth_of(process) != birth) return FlightLog::Process::ended;
  const std::string state = process_field(process, 3);
  if (state == "Z" || state == "X") return FlightLog::Process::ended;
  return state == "T" || state == "t" ? FlightLog::Process::stopped : FlightLog::Process::runs;
}

// What a damaged file has in a text's place is not for a terminal.
template <std::size_t size>
void make_printable(std::array<char, size>& text) {
  text.back() = 0;
  for (char* c = text.data(); *c; ++c)
    if (static_cast<unsigned char>(*c) < ' ' || *c == 0x7f) *c = '?';
}

}  // namespace

FlightLog read_flight(const fs::path& file) {
  const MappedFile mapped(file);
  const std::byte* from = mapped.bytes().data();
  const auto take = [&](auto& value) {
    std::memcpy(&value, from, sizeof value);
    from += sizeof value;
  };
  FlightHead head;
  constexpr std::size_t size = sizeof head + FlightHead::most_groups * sizeof(FlightGroup) +
                               FlightHead::capacity * sizeof(FlightEntry);
  if (mapped.bytes().size() == size) take(head);
  if (head.magic != magic) throw WorldError(str(file.string(), ": is no flight recorder's file"));
  if (head.rank < 0 || head.rank >= head.world || head.world > most_members)
    throw WorldError(str(file.string(), ": is damaged: rank ", head.rank, " of ", head.world));
  FlightLog log;
  log.rank = head.rank, log.world = head.world, log.process = head.process, log.wall = head.wall;
  make_printable(head.host);
  log.host = head.host.data();
  for (std::uint64_t i = 0; i < FlightHead::most_groups; ++i) {
    FlightGroup group;
    take(group);
    make_printable(group.name);
    const bool whole = group.size <= most_members && group.rank >= 0 && group.rank < group.size;
    if (!whole) group.rank = group.size = 0;  // a damaged one: nobody is in it
    if (i < head.groups) log.groups.push_back(group);
  }
  for (std::uint64_t i = 0; i < FlightHead::capacity; ++i) {
    FlightEntry entry;
    const std::byte* place = from;
    take(entry);
    std::atomic_thread_fence(std::memory_order_acquire);
    std::uint64_t again = 0;  // another one now: it was written while it was read
    std::memcpy(&again, place, sizeof again);
    if (entry.order == 0 || again != entry.order ||
        entry.group >= static_cast<std::int32_t>(log.groups.size()) || entry.type > last_type)
      continue;
    make_printable(entry.operation);
    make_printable(entry.site);
    log.now = std::max({log.now, entry.asked, entry.started, entry.ended});
    log.entries.push_back(entry);
  }
  std::ranges::sort(log.entries, {}, &FlightEntry::order);
  const bool here = log.host == host_name();
  log.state = head.closed == 1   ? FlightLog::Process::closed
              : head.closed == 2 ? FlightLog::Process::failed
              : here             ? state_of(head.process, head.birth)
                                 : FlightLog::Process::elsewhere;
  if (here) log.now = std::max(log.now, real_clock().now());
  return log;
}

}  // namespace tutti::comm
