#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/text.h"

using namespace tutti;

TEST_CASE("ConfigError: one line a violation, empty parts left out") {
  const ConfigError error({{"optimizer.lr", "a.yaml:3", "fast", "must be a number", "try 0.001"},
                           {"data.train", "", "", "is missing", ""}});
  CHECK(std::string(error.what()) ==
        "a.yaml:3: optimizer.lr = fast: must be a number; try 0.001\ndata.train: is missing");
}

TEST_CASE("Philox4x32-10: the known answers that its authors publish with Random123") {
  using Words = std::array<std::uint32_t, 4>;
  CHECK(philox4x32({0, 0, 0, 0}, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({~0u, ~0u, ~0u, ~0u}, ~0ull) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
}

TEST_CASE("RandomStream: normal draws, independent by name and substream") {
  const RandomStream stream(7, "a"), other(7, "b");
  double sum = 0, squares = 0;
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const double value = stream.normal(i);
    sum += value;
    squares += value * value;
  }
  CHECK(std::abs(sum / 100000) < 0.01);
  CHECK(std::abs(squares / 100000 - 1) < 0.02);
  CHECK(stream.words(5) != other.words(5));
  CHECK(stream.words(5) == RandomStream(7, "a").words(5));
  CHECK(stream.words(5) != RandomStream(7, "a", 1).words(5));
  for (std::uint64_t i = 0; i < 1000; ++i) CHECK(stream.below(3, i) < 3);
}

TEST_CASE("Permutation: a bijection for every size, not the identity") {
  for (std::uint64_t size : {1, 2, 3, 5, 16, 17, 100, 1023, 4096, 5000}) {
    const Permutation shuffle(size, RandomStream(1, "order"));
    std::set<std::uint64_t> seen;
    std::uint64_t fixed = 0;
    for (std::uint64_t i = 0; i < size; ++i) {
      seen.insert(shuffle(i));
      fixed += shuffle(i) == i;
    }
    CHECK(seen.size() == size);
    CHECK(*seen.rbegin() == size - 1);
    if (size > 100) CHECK(fixed < size / 20);
  }
}

TEST_CASE("nearest: suggests misspellings, not strangers") {
  const std::vector<std::string> words{"layers", "heads", "learning_rate"};
  CHECK(nearest("layer", words) == "layers");
  CHECK(nearest("haeds", words) == "heads");
  CHECK(nearest("banana", words).empty());
  CHECK(edit_distance("ab", "ba") == 1);
}

TEST_CASE(
    "write_file: replaces whole, read_file and MappedFile give it back, errors name the path") {
  const TempFolder folder;
  const fs::path file = folder.path() / "a.txt";
  write_file(file, "one");
  write_file(file, "two");
  CHECK(read_file(file) == "two");
  CHECK(MappedFile(file).bytes().size() == 3);
  CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
  CHECK_THROWS_WITH_AS(
      read_file(folder.path() / "none"),
      str("cannot read ", (folder.path() / "none").string(), ": No such file or directory").c_str(),
      WorldError);
  CHECK_THROWS_AS(read_file(folder.path()), WorldError);
  CHECK_THROWS_AS(write_file(folder.path() / "no" / "x", ""), WorldError);
  CHECK(read_file("/proc/self/stat").size() > 10);
}

TEST_CASE("valid_utf8: accepts all planes, refuses overlong, surrogate, torn and beyond") {
  std::size_t at = 99;
  CHECK(valid_utf8("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"));
  for (const char* bad : {"\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82", "\xFF"})
    CHECK_FALSE(valid_utf8(bad));
  CHECK_FALSE(valid_utf8("abc\x80", &at));
  CHECK(at == 3);
}

TEST_CASE("human units and ISO time") {
  CHECK(human_bytes(1536) == "1.50 KiB");
  CHECK(human_count(12345678) == "12.3M");
  CHECK(human_seconds(3725) == "1h 02m");
  CHECK(human_seconds(2.04) == "2.0s");
  CHECK(iso_time(0) == "1970-01-01T00:00:00.000Z");
  CHECK(hex64(0x1f) == "000000000000001f");
  CHECK_THROWS_AS(parse_json("{", "x.json"), ConfigError);
}
