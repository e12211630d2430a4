// Writer, reader, history, summary, run folder, TensorBoard.
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "events/reader.h"
#include "events/run_folder.h"
#include "events/summary.h"
#include "events/tensorboard.h"
#include "events/writer.h"

namespace tutti::events {
namespace {

using Pair = std::pair<const char*, double>;

void append(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::app | std::ios::binary) << text;
}

void write_steps(Writer& writer, std::int64_t first, std::int64_t last, double loss) {
  for (std::int64_t step = first; step <= last; ++step)
    writer.scalars(step,
                   std::array{Pair{"loss", loss + static_cast<double>(step)}, Pair{"lr", 0.5}});
}

TEST_CASE("writer: what was written is read back, numbers bit for bit") {
  const TempFolder folder;
  const fs::path file = folder.path() / "rank-003.jsonl";
  const double odd = 0.1 + 0.2;
  {
    Writer writer(file, 3);
    writer.scalars(7, std::array{Pair{"loss", odd}, Pair{"bad", std::nan("")},
                                 Pair{"far", std::numeric_limits<double>::infinity()}});
    writer.span("checkpoint", 7, 12.25, 0.5);
    writer.instant("sample \"x\"", 8, {{"text", "a\n\"b\" \xff end"}});
  }
  const auto records = read_events(file);
  REQUIRE(records.size() == 3);
  CHECK(records[0]["kind"] == "scalars");
  CHECK(records[0]["rank"] == 3);
  CHECK(records[0]["step"] == 7);
  CHECK(records[0]["loss"].get<double>() == odd);
  CHECK(records[0]["bad"].is_null());
  CHECK(records[0]["far"].is_null());
  CHECK(std::abs(records[0]["time"].get<double>() - wall_seconds()) < 60);
  CHECK(records[1]["name"] == "checkpoint");
  CHECK(records[1]["start"] == 12.25);
  CHECK(records[1]["seconds"] == 0.5);
  CHECK(records[2]["name"] == "sample \"x\"");
  CHECK(records[2]["data"]["text"] ==
        "a\n\"b\" \xef\xbf\xbd end");  // bytes that are no text are marked
}

TEST_CASE("writer: flush makes lines readable; after stop nothing is written, and nothing breaks") {
  const TempFolder folder;
  const fs::path file = folder.path() / "a.jsonl";
  Writer writer(file, 0);
  write_steps(writer, 1, 100, 0);
  writer.flush();
  CHECK(read_events(file).size() == 100);
  writer.stop();
  write_steps(writer, 101, 102, 0);
  writer.flush();
  writer.stop();
  CHECK(read_events(file).size() == 100);
}

TEST_CASE("writer: what does not fit is dropped, counted, and said in the file") {
  const TempFolder folder;
  const fs::path file = folder.path() / "a.jsonl";
  set_log_level(LogLevel::off);
  Writer writer(file, 0, 300);
  writer.instant("big", 1, {{"text", std::string(400, 'x')}});
  CHECK(writer.dropped() == 1);
  writer.flush();
  write_steps(writer, 2, 2, 0);
  writer.stop();
  set_log_level(LogLevel::info);
  const auto records = read_events(file);
  REQUIRE(records.size() == 2);
  CHECK(records[1]["name"] == "dropped");
  CHECK(records[1]["data"]["records"] == 1);
}

TEST_CASE("writer: a folder that is not there is an error that names the file") {
  CHECK_THROWS_WITH_AS(Writer("/nowhere/at/all.jsonl", 0),
                       "cannot write /nowhere/at/all.jsonl: No such file or directory", WorldError);
}

TEST_CASE("writer: a full disk is no error of training") {
  if (!fs::exists("/dev/full")) return;
  set_log_level(LogLevel::off);
  Writer writer("/dev/full", 0);
  write_steps(writer, 1, 10, 0);
  writer.stop();
  set_log_level(LogLevel::info);
}

TEST_CASE("reader: after a kill inside a line, a resumed run loses nothing of its own") {
  const TempFolder folder;
  const fs::path file = folder.path() / "a.jsonl";
  {
    Writer writer(file, 0);
    write_steps(writer, 1, 10, 0);
  }
  append(file, R"({"kind":"scalars","step":11,"rank":0,"ti)");
  CHECK(read_events(file).size() == 10);
  {
    Writer writer(file, 0);
    writer.instant("resume", 6, {{"step", 6}});
    write_steps(writer, 7, 8, 100);
  }
  {
    Writer writer(file, 0);
    writer.instant("resume", 7, {{"step", 7}});
  }
  CHECK(History(file).last_step() == 7);
  CHECK(History(file).series("loss").back().value == 107.0);
  {
    Writer writer(file, 0);
    write_steps(writer, 8, 8, 100);
  }
  const auto records = read_events(file);  // 1..6, resume, 7, resume, 8
  REQUIRE(records.size() == 10);
  CHECK(records[6]["name"] == "resume");
  CHECK(records[7]["loss"] == 107.0);
  const History history(file);
  REQUIRE(history.series("loss").size() == 8);
  CHECK(history.series("loss")[5].value == 6.0);
  CHECK(history.series("loss")[7].value == 108.0);
  CHECK(history.last_step() == 8);
}

TEST_CASE("reader: lines that are no records are left out") {
  const TempFolder folder;
  const fs::path file = folder.path() / "a.jsonl";
  append(file,
         "\n[]\n{}\nnull\n{\"kind\":\"scalars\"}\nnot json\n\x01\xff\n"
         "{\"kind\":3,\"step\":1,\"time\":1}\n{\"kind\":\"scalars\",\"step\":\"1\",\"time\":1}\n"
         "{\"kind\":\"instant\",\"name\":\"resume\",\"step\":0,\"time\":1}\n"
         "{\"kind\":\"instant\",\"name\":3,\"step\":0,\"time\":1,\"data\":{}}\n"
         "{\"kind\":\"scalars\",\"step\":4,\"time\":1,\"loss\":\"x\"}\n");
  CHECK(read_events(file).size() == 1);
  CHECK(History(file).series("loss").empty());
  CHECK(read_events(folder.path() / "absent").empty());
  CHECK(History(folder.path() / "absent").last_step() == 0);
}

TEST_CASE("history: without a resume record, what was written last counts") {
  const TempFolder folder;
  const fs::path file = folder.path() / "a.jsonl";
  Writer writer(file, 0);
  write_steps(writer, 1, 5, 0);
  write_steps(writer, 3, 4, 50);
  writer.stop();
  const History history(file);
  const auto& loss = history.series("loss");
  REQUIRE(loss.size() == 4);
  CHECK(loss[2].value == 53.0);
}

TEST_CASE("tail: a file that grows byte by byte gives each record once") {
  const TempFolder folder;
  const fs::path file = folder.path() / "a.jsonl";
  Tail tail(file);
  CHECK(tail.poll().empty());
  {
    Writer writer(folder.path() / "whole", 0);
    write_steps(writer, 1, 5, 0);
  }
  std::vector<Json> seen;
  for (const char byte : read_file(folder.path() / "whole")) {
    append(file, std::string(1, byte));
    for (Json& record : tail.poll()) seen.push_back(std::move(record));
  }
  REQUIRE(seen.size() == 5);
  for (std::size_t i = 0; i < 5; ++i) CHECK(seen[i]["step"] == i + 1);
  Tail later(file);
  later.skip();
  CHECK(later.poll().empty());
}

TEST_CASE("summary: of a whole run, of one that was killed, of one that never began") {
  const TempFolder folder;
  const RunFolder run = create_run(folder.path() / "run");
  Json none = make_summary(run, 1, 2);
  for (const char* key : {"steps", "loss", "validation_loss", "tokens_per_second", "mfu", "seconds",
                          "workers", "exit"})
    CHECK(none.contains(key));
  CHECK(none["loss"].is_null());
  CHECK(none["exit"] == 1);
  {
    Writer writer(run.events(0), 0);
    writer.instant("start", 0, {{"name", "x"}, {"parameters", 12}});
    write_steps(writer, 1, 9, 0);
    writer.scalars(9, std::array{Pair{"validation_loss", 3.5}});
  }
  const Json killed = make_summary(run, 1, 2);
  CHECK(killed["steps"] == 9);
  CHECK(killed["loss"] == 9.0);
  CHECK(killed["validation_loss"] == 3.5);
  CHECK(killed["parameters"] == 12);
  {
    Writer writer(run.events(0), 0);
    writer.instant("done", 9, {{"steps", 9}, {"loss", 8.5}, {"seconds", 77}, {"exit", 3}});
  }
  const Json whole = make_summary(run, 0, 2);
  CHECK(whole["loss"] == 8.5);
  CHECK(whole["seconds"] == 77);
  CHECK(whole["exit"] == 0);
  CHECK(whole["started"].get<std::string>().ends_with("Z"));
  {
    Writer writer(run.events(0), 0);
    writer.instant("resume", 9, {{"step", 9}});
    writer.instant("start", 9, Json::object());
    write_steps(writer, 10, 11, 0);
  }
  const Json again = make_summary(run, 130, 4);
  CHECK(again["steps"] == 11);
  CHECK(again["loss"] == 11.0);
  CHECK(again["exit"] == 130);
  write_summary(run, again);
  CHECK(Json::parse(read_file(run.summary())) == again);
}

TEST_CASE("run folder: names, and a second run refused with the way out") {
  const TempFolder folder;
  const fs::path path = folder.path() / "deep" / "run";
  const RunFolder run = create_run(path);
  CHECK(run.events(7) == path / "events" / "rank-007.jsonl");
  CHECK(run.log(1234) == path / "logs" / "rank-1234.log");
  CHECK(fs::is_directory(run.checkpoints()));
  CHECK_THROWS_AS(open_run(path), ConfigError);
  CHECK_NOTHROW(create_run(path));  // nothing was trained there
  write_file(run.recipe(), "x: 1\n");
  CHECK_NOTHROW(open_run(path));
  try {
    create_run(path);
    FAIL("accepted");
  } catch (const ConfigError& error) {
    CHECK(std::string(error.what()).find("tutti resume " + path.string()) != std::string::npos);
  }
  CHECK_THROWS_AS(open_run(folder.path() / "absent"), ConfigError);
  write_file(folder.path() / "file", "");
  CHECK_THROWS_AS(create_run(folder.path() / "file"), WorldError);
}

TEST_CASE("run folder: the default name is free") {
  const TempFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  const fs::path first = default_run_path("tiny");
  CHECK(first.string().starts_with("runs/tiny-20"));
  make_folders(first);
  CHECK(default_run_path("tiny") != first);
  fs::current_path(before);
}

TEST_CASE("run folder: runs/NAME is the newest of that name, unless it is something else") {
  const TempFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  for (int i = 0; i < 2; ++i) {
    const RunFolder run = create_dated_run("tiny");
    CHECK(fs::equivalent("runs/tiny", run.path()));
  }
  make_folders("runs/own");
  create_dated_run("own");
  CHECK_FALSE(fs::is_symlink("runs/own"));
  fs::current_path(before);
}

TEST_CASE("lock: one process a run; its end, even by SIGKILL, frees it") {
  const TempFolder folder;
  const RunFolder run = create_run(folder.path() / "run");
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunLock lock(run);
    (void)!::write(pipe_ends[1], "x", 1);
    ::pause();
    ::_exit(0);
  }
  char byte;
  REQUIRE(::read(pipe_ends[0], &byte, 1) == 1);
  try {
    const RunLock lock(run);
    FAIL("accepted");
  } catch (const ConfigError& error) {
    CHECK(std::string(error.what()).find(str("in use by process ", child)) != std::string::npos);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  CHECK_NOTHROW(RunLock{run});
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
}

// A reader of TensorBoard's format written apart from the writer: a bitwise CRC, and a walk over
// protobuf fields.
std::uint32_t slow_crc(std::string_view bytes) {
  std::uint32_t crc = 0xffffffffu;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc / 2 ^ 0x82F63B78u : crc / 2;
  }
  return crc ^ 0xffffffffu;
}

template <class T>
T number(std::string_view bytes) {
  REQUIRE(bytes.size() >= sizeof(T));
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

std::vector<std::string> frames(std::string_view file) {
  std::vector<std::string> payloads;
  const auto unmasked = [](std::uint32_t masked) {
    const std::uint32_t rotated = masked - 0xa282ead8u;
    return rotated >> 17 | rotated << 15;
  };
  while (!file.empty()) {
    const auto size = number<std::uint64_t>(file);
    CHECK(unmasked(number<std::uint32_t>(file.substr(8))) == slow_crc(file.substr(0, 8)));
    payloads.emplace_back(file.substr(12, size));
    CHECK(unmasked(number<std::uint32_t>(file.substr(12 + size))) == slow_crc(payloads.back()));
    file.remove_prefix(16 + size);
  }
  return payloads;
}

// The bytes of the first field with that number; varints as eight bytes.
std::string field(std::string_view message, std::uint64_t wanted) {
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.front());
      message.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  while (!message.empty()) {
    const std::uint64_t key = varint();
    std::string value(8, '\0');
    if (key % 8 == 0) {
      const std::uint64_t read = varint();
      std::memcpy(value.data(), &read, 8);
    } else {
      const std::size_t size = key % 8 == 1 ? 8 : key % 8 == 5 ? 4 : varint();
      value = std::string(message.substr(0, size));
      message.remove_prefix(size);
    }
    if (key / 8 == wanted) return value;
  }
  return "";
}

TEST_CASE("crc32c: the published check values") {
  CHECK(crc32c("123456789") == 0xE3069283u);
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AAu);
  CHECK(crc32c("") == 0);
}

TEST_CASE("tensorboard: an independent decoder finds every field") {
  const TempFolder folder;
  const std::string text(300, 'w');
  {
    TensorBoard board(folder.path() / "tb", 40);
    board.scalar("loss", 41, 2.5);
    board.scalar("loss", 100000, -1e-3);
    board.text("sample", 42, text);
  }
  fs::path file;
  for (const auto& entry : fs::directory_iterator(folder.path() / "tb")) file = entry.path();
  CHECK(file.filename().string().find("tfevents") != std::string::npos);
  const auto events = frames(read_file(file));
  REQUIRE(events.size() == 5);
  CHECK(field(events[0], 3) == "brain.Event:2");
  CHECK(std::abs(number<double>(field(events[0], 1)) - wall_seconds()) < 60);
  CHECK(number<std::uint64_t>(field(events[1], 2)) == 41);
  CHECK(number<std::uint64_t>(field(field(events[1], 7), 1)) == 1);
  const std::string value = field(field(events[2], 5), 1);
  CHECK(number<std::uint64_t>(field(events[2], 2)) == 41);
  CHECK(field(value, 1) == "loss");
  CHECK(number<float>(field(value, 2)) == 2.5f);
  CHECK(number<std::uint64_t>(field(events[3], 2)) == 100000);
  CHECK(number<float>(field(field(field(events[3], 5), 1), 2)) == -1e-3f);
  const std::string written = field(field(events[4], 5), 1);
  CHECK(field(written, 1) == "sample");
  CHECK(field(field(written, 8), 8) == text);
  CHECK(number<std::uint64_t>(field(field(written, 8), 1)) == 7);
  CHECK(field(field(field(written, 9), 1), 1) == "text");
}

}  // namespace
}  // namespace tutti::events
