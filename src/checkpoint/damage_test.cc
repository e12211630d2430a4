// Promise 8: kills, flipped bits, cut and missing files, absent ranks, full disks.
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "base/clock.h"
#include "checkpoint/sample_tensors.h"

using namespace tutti;
using namespace tutti::checkpoint;

namespace {

constexpr std::int64_t rows = 2000;

// The child: saves steps first, first + 1, ... (step 1 again and again if first is 0) until killed.
[[noreturn]] void save_until_killed(const fs::path& folder, int world, std::int64_t first) {
  Run run(folder, world);
  for (std::int64_t i = std::max<std::int64_t>(first, 1);; ++i)
    run.save(first == 0 ? 1 : i, Sample(static_cast<std::uint64_t>(i), rows), {{"version", i}});
}

void killed_run(const fs::path& folder, int world, std::int64_t first, double seconds) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) save_until_killed(folder, world, first);
  real_clock().sleep(seconds);
  ::kill(child, SIGKILL);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE((WIFSIGNALED(status) &&
           WTERMSIG(status) ==
               SIGKILL));  // killed in the middle of it, not ended by an error of its own
}

std::string difference_at(const Latest& found) {
  const Loader loader(found.path);
  return Sample(loader.state().at("version").get<std::uint64_t>(), rows).difference(loader);
}

}  // namespace

TEST_CASE(
    "checkpoint: SIGKILL at any instant leaves the newest whole one, and no leftovers for long") {
  const TempFolder folder;
  Draw draw("kill");
  std::int64_t newest = -1;
  int leftovers = 0;
  // Longer on a busy machine, where a child comes less far before it is killed.
  for (int round = 0; round < 60 || (newest <= 10 && round < 600); ++round) {
    CAPTURE(round);
    killed_run(folder.path(), 1 + round % 3, std::max<std::int64_t>(newest, 0) + 1,
               1e-4 * static_cast<double>(draw.below(400 * (1 + round / 60))));
    const std::string left = names_in(folder.path());
    leftovers +=
        left.find(".partial") != std::string::npos || left.find(".removed") != std::string::npos;
    const Latest found = latest(folder.path());
    CHECK(found.refused.empty());
    CHECK(found.step >= newest);
    newest = found.step;
    if (found.step > 0) CHECK(difference_at(found) == "");
  }
  CHECK(newest > 10);
  CHECK(leftovers > 5);  // otherwise the kills never hit a save
  Run next(folder.path(), 1);
  CHECK(names_in(folder.path()).find('.') == std::string::npos);
  next.save(newest + 1, Sample(1));
  CHECK(steps_in(folder.path()) == std::vector{newest, newest + 1});
}

TEST_CASE("checkpoint: SIGKILL while a step is saved again: the old one or the new one") {
  const TempFolder folder;
  Run(folder.path(), 1).save(1, Sample(1, rows), {{"version", 1}});
  Draw draw("kill again");
  for (int round = 0; round < 30; ++round) {
    killed_run(folder.path(), 1 + round % 2, 0, 1e-4 * static_cast<double>(draw.below(300)));
    const Latest found = latest(folder.path());
    REQUIRE(found.step == 1);
    CHECK(difference_at(found) == "");
  }
}

namespace {

struct Damaged {  // a run with steps 1 and 2, of which 2 is to be damaged
  TempFolder folder;
  fs::path second = folder.path() / "step-00000002";
  Sample sample{2};
  Damaged() {
    Run run(folder.path(), 2, {0, 0});
    run.save(1, Sample(1), {{"position", 1}});
    run.save(2, sample, {{"position", 2}});
  }
  // Nothing: it opens and is right. Otherwise why it is refused.
  std::string refusal() const {
    try {
      const Loader loader(second);
      CHECK(sample.difference(loader) == "");
      CHECK(loader.state() == Json{{"position", 2}});
      return "";
    } catch (const WorldError& error) {
      return error.what();
    }
  }
};

void overwrite(const fs::path& path, const std::string& content) {  // quicker than write_file
  std::FILE* file = std::fopen(path.c_str(), "wb");
  REQUIRE(file);
  REQUIRE(std::fwrite(content.data(), 1, content.size(), file) == content.size());
  std::fclose(file);
}

const std::string files[] = {"manifest.json", "rank-000.safetensors", "rank-001.safetensors"};

}  // namespace

TEST_CASE("checkpoint: a flipped bit in any byte is refused by name") {
  const Damaged run;
  CHECK(run.refusal() == "");
  Draw draw("flip");
  for (const std::string& name : files) {
    const fs::path path = run.second / name;
    const std::string good = read_file(path), free_text = R"({"format":"pt"})";
    const std::size_t free = good.find(free_text);  // nobody reads this part of a header
    for (std::size_t i = 0; i < good.size(); ++i) {
      CAPTURE(name);
      CAPTURE(i);
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << draw.below(8)));
      overwrite(path, bad);
      const std::string refusal = run.refusal();
      if (free == std::string::npos || i < free || i >= free + free_text.size())
        CHECK(refusal.find(path.string()) != std::string::npos);
      if (i % 97 == 0 && !refusal.empty()) {
        const Latest found = latest(run.folder.path());
        CHECK(found.step == 1);
        CHECK(found.refused.at(0).find(path.string()) != std::string::npos);
        CHECK(Sample(1).difference(Loader(found.path)) == "");
      }
    }
    overwrite(path, good);
  }
  CHECK(run.refusal() == "");
  CHECK(latest(run.folder.path()).step == 2);
}

TEST_CASE("checkpoint: a cut, empty or absent file is refused by name") {
  const Damaged run;
  for (const std::string& name : files) {
    const fs::path path = run.second / name;
    const std::string good = read_file(path);
    for (std::size_t length = 0; length < good.size(); length += 1 + length % 3) {
      CAPTURE(name);
      CAPTURE(length);
      overwrite(path, good.substr(0, length));
      CHECK(run.refusal().find(path.string()) != std::string::npos);
    }
    fs::remove(path);
    CHECK(run.refusal().find(path.string()) != std::string::npos);
    CHECK(latest(run.folder.path()).step == 1);
    const auto [text, whole] = verify_text(run.folder.path());
    CHECK_FALSE(whole);
    CHECK(text.find("step-00000001: whole") != std::string::npos);
    CHECK(text.find("step-00000002: damaged: ") != std::string::npos);
    fs::create_directory(path);
    CHECK(run.refusal().find(path.string()) != std::string::npos);
    fs::remove(path);
    overwrite(path, good);
  }
  CHECK(run.refusal() == "");
}

TEST_CASE("checkpoint: shards of another step are refused; so are other versions of the format") {
  const Damaged run;
  const fs::path shard = run.second / files[1];
  const std::string good = read_file(shard);
  overwrite(shard, read_file(run.folder.path() / "step-00000001" / files[1]));
  CHECK(run.refusal().find("checksum of") != std::string::npos);
  overwrite(shard, good);

  Json json = parse_json(read_file(run.second / files[0]), "");
  json["version"] = format_version + 1;
  overwrite(run.second / files[0], json.dump());
  CHECK(run.refusal().find("format version 3; this program reads 1 to 2") != std::string::npos);

  fs::remove_all(run.second);
  fs::copy(run.folder.path() / "step-00000001", run.second);
  CHECK(latest(run.folder.path()).refused.at(0).find("it says it is step 1") != std::string::npos);
}

TEST_CASE("checkpoint: a manifest that lies about its entries") {
  const Manifest good{1, 1, {}, {{"t", DType::f32, {4}, {{0}, {4}}, "rank-000.safetensors", 5}}};
  CHECK(to_json(manifest_from(to_json(good), "here")) == to_json(good));
  const auto refused = [&](const auto& change) {
    Manifest bad = good;
    change(bad.entries[0]);
    CHECK_THROWS_WITH_AS(manifest_from(to_json(bad), "here"), doctest::Contains("here"),
                         ConfigError);
  };
  refused([](Entry& e) { e.file = "../rank-000.safetensors"; });
  refused([](Entry& e) { e.box.size = {5}; });
  refused([](Entry& e) { e.box.offset = {-1}; });
  refused([](Entry& e) { e.box.offset = {std::int64_t{1} << 62}; });
  refused([](Entry& e) { e.box.size = {2, 2}; });
  refused([](Entry& e) { e.shape = {-4}; });
  refused([](Entry& e) {
    e.shape = {std::int64_t{1} << 40, std::int64_t{1} << 40};
    e.box = {{0, 0}, {1, 1}};
  });
  for (const char* text : {"[]", "{}", "1", R"({"format":"other"})"})
    CHECK_THROWS_AS(manifest_from(parse_json(text, ""), "here"), ConfigError);
}

TEST_CASE(
    "checkpoint: a rank whose part does not come is named; earlier ones stay; the next goes on") {
  const TempFolder folder;
  const Sample sample(1);
  Run(folder.path(), 3).save(1, sample);
  Saver zero(folder.path(), 0, 3, {}, 0.1), one(folder.path(), 1, 3, {}, 0.1);
  one.save(2, sample.views(), {});
  zero.save(2, sample.views(), {});
  CHECK_THROWS_WITH_AS(zero.wait(),
                       doctest::Contains("checkpoint of step 2: rank 2 did not write its part"),
                       WorldError);
  CHECK_NOTHROW(zero.wait());  // told once
  CHECK(zero.last_saved() == -1);
  CHECK(names_in(folder.path()) == "step-00000001");
  CHECK(sample.difference(Loader(latest(folder.path()).path)) == "");
  one.wait();
  Saver two(folder.path(), 2, 3, {});
  for (Saver* saver : {&two, &one, &zero}) saver->save(3, sample.views(), {});
  zero.wait();
  CHECK(latest(folder.path()).step == 3);
}

TEST_CASE("checkpoint: a full disk is said, costs no earlier checkpoint, and is left again") {
  const TempFolder mount_point;
  if (::mount("tmpfs", mount_point.path().c_str(), "tmpfs", 0, "size=1m") != 0) {
    MESSAGE("SKIPPED, NOT TESTED: a full disk; mounting a small tmpfs needs root");
    return;
  }
  {
    const fs::path folder = mount_point.path() / "checkpoints";
    Run run(folder, 1);
    const Sample small(1, 500), big(2, 40000);
    run.save(1, small);
    run[0].save(2, big.views(), {});
    CHECK_THROWS_WITH_AS(run[0].wait(), doctest::Contains("No space left on device"), WorldError);
    CHECK(names_in(folder) == "step-00000001");
    CHECK(small.difference(Loader(latest(folder).path)) == "");
    run.save(3, small);
    CHECK(latest(folder).step == 3);
  }
  REQUIRE(::umount(mount_point.path().c_str()) == 0);
}

TEST_CASE("checkpoint: no permission is said with the path") {
  const TempFolder folder;
  write_file(folder.path() / "file", "");
  CHECK_THROWS_WITH_AS(Saver(folder.path() / "file" / "sub", 0, 1, {}),
                       doctest::Contains("file/sub"), WorldError);
  if (::geteuid() == 0) {
    MESSAGE("SKIPPED, NOT TESTED: a folder without permission; root may write everywhere");
    return;
  }
  const Sample sample(1);
  Saver saver(folder.path(), 0, 1, {});
  fs::permissions(folder.path(), fs::perms::owner_read | fs::perms::owner_exec);
  saver.save(1, sample.views(), {});
  CHECK_THROWS_WITH_AS(saver.wait(), doctest::Contains("Permission denied"), WorldError);
  fs::permissions(folder.path(), fs::perms::owner_all);
}
