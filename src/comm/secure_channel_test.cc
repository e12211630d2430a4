// The handshake and the records, byte by byte.
#include "comm/secure_channel.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

using namespace tutti::comm;

namespace {

using Text = std::vector<std::byte>;

Hello hello_of(std::uint32_t from, std::uint32_t to) {
  Hello hello{};
  hello.size = 3;
  hello.from = from;
  hello.to = to;
  hello.lane = 1;
  hello.chunk_bytes = 4096;
  hello.group = sha256("a group");
  return hello;
}

Hello listener_hello() {
  Hello hello = hello_of(0, 0);
  hello.lane = 0;
  return hello;
}

struct Pair {
  Handshake connector, listener;
  Pair(const Hello& a, const Hello& b, const std::string& secret, const std::string& other)
      : connector(a, secret, true), listener(b, other, false) {}
};

Pair make_pair(const std::string& secret = "s", const std::string& other = "s") {
  return {hello_of(2, 0), listener_hello(), secret, other};
}

// All four messages; change(message, text) may spoil them.
template <class Change>
void shake(Pair& pair, Change change) {
  std::string text = pair.connector.opening();
  for (int message = 0; message < 4; ++message) {
    change(message, text);
    text = (message % 2 ? pair.connector : pair.listener).answer(text);
  }
}
void shake(Pair& pair) {
  shake(pair, [](int, const std::string&) {});
}

Text text_of(std::size_t bytes, int seed) {
  Text text(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    text[i] = static_cast<std::byte>(i * 7 + static_cast<std::size_t>(seed));
  return text;
}

Text sealed(Sealer& sealer, const Text& text) {
  Text record(Record::longest);
  const ByteView all = text;
  const ByteView pieces[] = {all.first(all.size() / 3), all.subspan(all.size() / 3)};
  record.resize(sealer.seal(pieces, record.data()));
  return record;
}

}  // namespace

TEST_CASE("A handshake gives both sides the same keys, each connection its own") {
  Pair first = make_pair(), second = make_pair();
  shake(first);
  shake(second);
  CHECK(first.connector.wants() == 0);
  CHECK(first.listener.wants() == 0);
  CHECK(first.connector.keys().send == first.listener.keys().receive);
  CHECK(first.connector.keys().receive == first.listener.keys().send);
  CHECK(first.connector.keys().send != first.connector.keys().receive);
  CHECK(first.connector.keys().send != second.connector.keys().send);
  CHECK(first.listener.peer().from == 2);
  CHECK(first.listener.peer().lane == 1);
  CHECK(first.connector.peer().from == 0);
}

TEST_CASE("Another secret is refused, by whoever hears of it first") {
  Pair pair = make_pair("s", "another");
  const std::string opening = pair.connector.opening(), reply = pair.listener.answer(opening);
  CHECK_THROWS_WITH_AS(pair.connector.answer(reply), doctest::Contains("knows the secret"),
                       Refused);
  CHECK_THROWS_WITH_AS(pair.listener.answer(std::string(32, 'x')),
                       doctest::Contains("knows the secret"), Refused);
}

TEST_CASE("A handshake with one byte changed on the way is refused") {
  constexpr std::size_t sizes[] = {sizeof(Hello), sizeof(Hello) + 32, 32, 32};
  for (int spoilt = 0; spoilt < 4; ++spoilt)
    for (std::size_t place = 0; place < sizes[spoilt]; ++place) {
      Pair pair = make_pair();
      const auto change = [&](int message, std::string& text) {
        CHECK(text.size() == sizes[message]);
        if (message == spoilt) text[place] = static_cast<char>(text[place] ^ 1);
      };
      CHECK_THROWS_AS(shake(pair, change), Refused);
    }
}

TEST_CASE("Answers of another handshake, one's own words and keys that are none are refused") {
  Pair first = make_pair(), second = make_pair();
  const std::string reply = first.listener.answer(first.connector.opening());
  CHECK_THROWS_AS(second.connector.answer(reply), Refused);
  Handshake listener(listener_hello(), "s", false), another(listener_hello(), "s", false);
  CHECK_THROWS_AS(another.answer(listener.opening()), Refused);
  Pair pair = make_pair();
  std::string opening = pair.connector.opening();
  std::ranges::fill(opening.end() - 32, opening.end(), '\0');  // a point of small order
  CHECK_THROWS_WITH_AS(pair.listener.answer(opening), doctest::Contains("its key is none"),
                       Refused);
}

TEST_CASE("Sides that differ say in what") {
  const auto refusal = [](auto change) {
    Hello other = hello_of(2, 0);
    change(other);
    Pair pair(other, listener_hello(), "s", "s");
    try {
      shake(pair);
    } catch (const Refused& refused) {
      return std::string(refused.what());
    }
    return std::string();
  };
  CHECK(refusal([](Hello&) {}).empty());
  CHECK(refusal([](Hello& h) { h.group = sha256("b"); }) == "it belongs to another group");
  CHECK(refusal([](Hello& h) { h.size = 4; }) == "its group has another size");
  CHECK(refusal([](Hello& h) { h.to = 1; }) == "it is or wants another rank");
  CHECK(refusal([](Hello& h) { h.from = 3; }) == "it is or wants another rank");
  CHECK(refusal([](Hello& h) { h.encrypt = 1; }) == "only one side encrypts");
  CHECK(refusal([](Hello& h) { h.chunk_bytes = 1; }) == "it has other chunk_bytes or eager_bytes");
}

TEST_CASE("Records open to what was sealed, in their order only") {
  const Key key = sha256("key");
  Sealer sealer(key);
  Opener opener(key);
  std::vector<Text> records;
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{1000}, Record::most}) {
    records.push_back(sealed(sealer, text_of(bytes, 3)));
    CHECK(Opener::length(records.back().data()) == records.back().size());
    Text copy = records.back();
    CHECK(std::ranges::equal(opener.open(copy), text_of(bytes, 3)));
    if (bytes > 100)
      CHECK(!std::ranges::equal(std::span(records.back()).subspan(4, bytes), text_of(bytes, 3)));
  }
  CHECK_THROWS_AS(opener.open(records.back()), Refused);  // once more
  Opener late(key);
  CHECK_THROWS_AS(late.open(records[1]), Refused);  // the first is missing
  Opener other(sha256("another key"));
  CHECK_THROWS_AS(other.open(records[0]), Refused);
}

TEST_CASE("A record with one byte changed is refused, one that is too long at its length") {
  const Key key = sha256("key");
  Sealer sealer(key);
  const Text record = sealed(sealer, text_of(100, 5));
  for (std::size_t place = Record::head; place < record.size(); ++place) {
    Opener opener(key);
    Text changed = record;
    changed[place] ^= std::byte{4};
    CHECK_THROWS_AS(opener.open(changed), Refused);
  }
  Opener opener(key);
  Text shorter(record.begin(), record.end() - 1);
  shorter[0] = std::byte{99};
  CHECK_THROWS_AS(opener.open(shorter), Refused);
  const std::byte huge[4] = {std::byte{255}, std::byte{255}, std::byte{255}, std::byte{255}};
  CHECK_THROWS_AS(Opener::length(huge), Refused);
}
