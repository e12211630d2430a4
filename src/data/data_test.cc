#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/fs.h"
#include "base/rng.h"
#include "data/bpe.h"
#include "data/corpus.h"
#include "data/hugging_face_tokenizer.h"
#include "data/sampler.h"
#include "data/sentencepiece.h"
#include "data/tokenizer.h"
#include "data/tokenizer_trainer.h"
#include "data/unicode.h"

namespace tutti::data {
namespace {

using Ids = std::vector<std::int32_t>;

template <class Error, class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "(no error)";
}

bool has(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  if (!found) MESSAGE("'" << text << "' lacks '" << part << "'");
  return found;
}

std::unique_ptr<Tokenizer> trained(std::int64_t vocab = 300) {
  TokenizerTrainer trainer({.vocab = vocab});
  for (int i = 0; i < 20; ++i)
    trainer.add("the cat sat on the mat, the cat's hat: 12345 caf\xC3\xA9\n");
  return parse_hugging_face_tokenizer(trainer.finish(), "trained");
}

Corpus counting(std::uint64_t tokens, std::vector<std::uint64_t> inner = {}) {
  Ids ids(tokens);
  for (std::size_t i = 0; i < tokens; ++i) ids[i] = static_cast<std::int32_t>(i);
  inner.insert(inner.begin(), 0);
  inner.push_back(tokens);
  return Corpus::in_memory(ids, inner);
}

Part whole(const Corpus& corpus, double weight = 1) { return {corpus, weight, 0, corpus.tokens()}; }

TEST_CASE("merging words equals its slow twin") {
  const RandomStream random(1, "bpe");
  MergeTable merges;
  merges.reserve(200);
  for (std::uint32_t i = 0; i < 60; ++i)
    merges.add(static_cast<std::int32_t>(random.below(20, 2 * i)),
               static_cast<std::int32_t>(random.below(20, 2 * i + 1)),
               {i, static_cast<std::int32_t>(random.below(20, 1000 + i))});
  for (std::uint64_t length : {0, 1, 2, 7, 47, 48, 49, 200})
    for (std::uint64_t round = 0; round < 20; ++round) {
      Ids fast(length);
      for (std::size_t i = 0; i < length; ++i)
        fast[i] = static_cast<std::int32_t>(random.below(20, 5000 + round * 300 + i));
      Ids slow = fast;
      merge_word(merges, fast);
      merge_word_slowly(merges, slow);
      CHECK(fast == slow);
    }
}

TEST_CASE("bytes and a trained tokenizer give the text back") {
  const auto bytes = open_tokenizer("bytes");
  CHECK(bytes->encode("a\xFF") == Ids{97, 255});
  CHECK(bytes->decode(Ids{97, 255}) == "a\xFF");
  CHECK_FALSE(bytes->end_of_document());
  const auto bpe = trained();
  CHECK(bpe->end_of_document() == 0);
  for (const std::string text :
       {"", " the  cat\n\n", "caf\xC3\xA9 \xF0\x9F\x98\x80 123456", "a<|endoftext|>b"})
    CHECK(bpe->decode(bpe->encode(text)) == text);
  CHECK(bpe->encode("<|endoftext|>") == Ids{0});
  CHECK(bpe->encode("the cat").size() < 4);
  CHECK(trained()->hash() == bpe->hash());
  CHECK(has(error_of<WorldError>([&] { bpe->encode("ab\xFF"); }), "offset 2"));
  CHECK(has(error_of<WorldError>([&] { bpe->decode(Ids{100000}); }), "100000"));
}

TEST_CASE("a stream never shows half a character") {
  const auto bpe = trained(257);
  const auto bytes = open_tokenizer("bytes");
  const std::string text =
      "na\xC3\xAFve \xF0\x9F\x98\x80\xF0\x9F\x98\x80 and a longer tail of text, \xE4\xBD\xA0.";
  for (const Tokenizer* tokenizer : {bpe.get(), bytes.get()}) {
    StreamDecoder stream(*tokenizer);
    std::string all;
    for (const std::int32_t id : tokenizer->encode(text)) {
      const std::string part = stream.push(id);
      CHECK(incomplete_tail(part) == 0);
      CHECK(lossy_utf8(part) == part);
      all += part;
    }
    CHECK(all + stream.finish() == text);
  }
}

TEST_CASE("wrong tokenizers are refused by name") {
  TempFolder folder;
  CHECK(has(error_of<ConfigError>([] { open_tokenizer("/nowhere.json"); }), "/nowhere.json"));
  CHECK(has(error_of<ConfigError>([&] { open_tokenizer(folder.path().string()); }),
            "folder without"));
  const auto parse = [](const std::string& json) {
    return error_of<ConfigError>([&] { parse_hugging_face_tokenizer(json, "t.json"); });
  };
  CHECK(has(parse("{"), "t.json is not a sound tokenizer.json"));
  CHECK(has(parse(R"({"model":{"type":"WordPiece","vocab":{}}})"), "WordPiece"));
  CHECK(has(parse(R"({"normalizer":{"type":"BertNormalizer"},"model":{}})"), "BertNormalizer"));
  CHECK(has(parse(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}})"), "merge 0"));
  CHECK(has(parse(R"({"model":{"type":"BPE","vocab":{"a":-1},"merges":[]}})"), "out of range"));
  CHECK(has(error_of<ConfigError>([] { parse_sentencepiece("\x0A\xFFgarbage", "s.model"); }),
            "s.model"));
  CHECK(has(error_of<ConfigError>([] { parse_sentencepiece("", "s.model"); }), "no pieces"));
  CHECK(has(error_of<ConfigError>([] { TokenizerTrainer({.vocab = 5, .split = "x"}); }), "gpt2"));
}

TEST_CASE("sources: files, folders, JSONL, and what is wrong with them") {
  TempFolder folder;
  const fs::path root = folder.path();
  make_folders(root / "texts/b");
  write_file(root / "texts/b/2.txt", "two");
  write_file(root / "texts/1.txt", "one");
  write_file(root / "texts/.hidden", "no");
  write_file(root / "texts/c.jsonl", "{\"text\":\"three\"}\n\n{\"text\":\"four\"}\n");
  std::vector<std::string> seen;
  for_each_document((root / "texts").string(), "text", false,
                    [&](std::string_view text) { seen.emplace_back(text); });
  CHECK(seen == std::vector<std::string>{"one", "two", "three", "four"});
  const auto fails = [&](const std::string& name, const std::string& content) {
    write_file(root / name, content);
    return error_of<ConfigError>(
        [&] { for_each_document((root / name).string(), "text", false, [](std::string_view) {}); });
  };
  CHECK(has(fails("empty.txt", ""), "empty"));
  CHECK(has(fails("bad.txt", "ok\xC3("), "offset 2"));
  CHECK(has(fails("a.jsonl", "{\"text\":\"x\"}\n{oops\n"), "a.jsonl:2"));
  CHECK(has(fails("b.jsonl", "{\"words\":\"x\"}\n"), "b.jsonl:1: no text field \"text\""));
  CHECK(has(fails("c.jsonl", "[1]"), "not a JSON object"));
  CHECK(has(error_of<ConfigError>(
                [&] { for_each_document((root / "none").string(), "text", false, {}); }),
            "none"));
  make_folders(root / "void");
  CHECK(has(error_of<ConfigError>(
                [&] { for_each_document((root / "void").string(), "text", false, {}); }),
            "no files"));
  if (::geteuid() != 0) {
    fs::permissions(root / "texts/1.txt", fs::perms::none);
    CHECK(has(error_of<WorldError>(
                  [&] { for_each_document((root / "texts").string(), "text", false, {}); }),
              "1.txt"));
  }
}

TEST_CASE("a corpus file gives its tokens back and damage is found") {
  TempFolder folder;
  const fs::path text = folder.path() / "a.jsonl", file = folder.path() / "a.tutti";
  write_file(text, "{\"text\":\"the cat\"}\n{\"text\":\"sat\"}\n");
  const auto bpe = trained();
  const auto total = tokenize_to_file({text.string()}, *bpe, file);
  const Corpus corpus = Corpus::open(file, true);
  CHECK(corpus.token_bytes() == 2);
  CHECK(corpus.documents() == 2);
  CHECK(corpus.tokens() == total.tokens);
  Ids want = bpe->encode("the cat"), got(corpus.tokens());
  want.push_back(0);
  CHECK(corpus.offsets()[1] == want.size());
  for (const std::int32_t id : bpe->encode("sat")) want.push_back(id);
  want.push_back(0);
  corpus.read(0, got);
  CHECK(got == want);
  CHECK(corpus.text_bytes() == 10);
  CHECK(has(error_of<ConfigError>([&] { open_source(file.string(), *open_tokenizer("bytes")); }),
            "another tokenizer"));
  const std::string sound = read_file(file);
  for (const std::size_t at :
       {std::size_t{0}, std::size_t{16}, std::size_t{130}, sound.size() - 1}) {
    std::string flipped = sound;
    flipped[at] ^= 4;
    write_file(file, flipped);
    CHECK_THROWS_AS(Corpus::open(file, true), WorldError);
  }
  write_file(file, sound.substr(0, sound.size() - 8));
  CHECK_THROWS_AS(Corpus::open(file), WorldError);
  write_file(file, "");
  CHECK(has(error_of<WorldError>([&] { Corpus::open(file); }), "a.tutti"));
}

TEST_CASE("the cache serves, notices changed text and heals damage") {
  TempFolder folder;
  const fs::path text = folder.path() / "a.txt", cache = folder.path() / "cache";
  const auto bytes = open_tokenizer("bytes");
  write_file(text, "first");
  CHECK(open_source(text.string(), *bytes, {}, cache).tokens() == 5);
  const fs::path kept = fs::directory_iterator(cache)->path();
  write_file(kept, "damaged");
  CHECK(open_source(text.string(), *bytes, {}, cache).tokens() == 5);
  write_file(text, "second");
  CHECK(open_source(text.string(), *bytes, {}, cache).tokens() == 6);
}

TEST_CASE("sequential order is block p mod B with stride `sequence`") {
  const Sampler sampler({whole(counting(10))}, {.sequence = 4, .shuffled = false});
  CHECK(sampler.samples() == 2);
  Ids inputs(4), targets(4);
  sampler.fill(3, inputs, targets);
  CHECK(inputs == Ids{4, 5, 6, 7});
  CHECK(targets == Ids{5, 6, 7, 8});
}

TEST_CASE("a shuffled epoch visits each block once, epochs and seeds differ") {
  const Corpus corpus = counting(1001);
  const Sampler sampler({whole(corpus)}, {.sequence = 10, .seed = 7});
  const auto epoch = [](const Sampler& from, std::uint64_t number) {
    std::vector<std::uint64_t> blocks;
    for (std::uint64_t i = 0; i < 100; ++i) blocks.push_back(from.place(number * 100 + i).block);
    return blocks;
  };
  const auto first = epoch(sampler, 0);
  CHECK(std::set(first.begin(), first.end()).size() == 100);
  CHECK(first != epoch(sampler, 1));
  CHECK(first != epoch(Sampler({whole(corpus)}, {.sequence = 10, .seed = 8}), 0));
  CHECK(first == epoch(Sampler({whole(corpus)}, {.sequence = 10, .seed = 7}), 0));
}

TEST_CASE("a blend keeps its shares at every length and repeats no block early") {
  const Sampler sampler({whole(counting(101), 3), whole(counting(201), 1)}, {.sequence = 10});
  std::vector<std::vector<std::uint64_t>> blocks(2);
  for (std::uint64_t p = 0; p < 9000; ++p) {
    const auto place = sampler.place(p);
    blocks[place.part].push_back(place.block);
    CHECK(std::abs(static_cast<double>(blocks[0].size()) - 0.75 * static_cast<double>(p + 1)) <=
          1.0);
  }
  CHECK(std::set(blocks[1].begin(), blocks[1].begin() + 20).size() == 20);
  CHECK(std::set(blocks[0].begin() + 10, blocks[0].begin() + 20).size() == 10);
}

TEST_CASE("documents are numbered and no target crosses an end") {
  const Corpus corpus = counting(13, {3, 3, 4, 8});
  const Sampler sampler({whole(corpus)}, {.sequence = 6, .shuffled = false, .document_mask = true});
  Ids inputs(6), targets(6), documents(6);
  sampler.fill(0, inputs, targets, documents);
  CHECK(documents == Ids{0, 0, 0, 1, 2, 2});
  CHECK(targets == Ids{1, 2, no_target, no_target, 5, 6});
  sampler.fill(1, inputs, targets, documents);
  CHECK(documents == Ids{0, 0, 1, 1, 1, 1});
  CHECK(targets == Ids{7, no_target, 9, 10, 11, 12});
}

TEST_CASE("too short data and tokens beyond the vocabulary are errors") {
  CHECK(has(error_of<ConfigError>([] { Sampler({whole(counting(8))}, {.sequence = 8}); }),
            "one sample needs 9"));
  const Corpus corpus = Corpus::in_memory({1, 2, 300, 4}, {0, 4}, 256);
  const Sampler sampler({whole(corpus)}, {.sequence = 3, .shuffled = false});
  Ids inputs(3), targets(3);
  CHECK(has(error_of<WorldError>([&] { sampler.fill(0, inputs, targets); }), "token 2 is 300"));
}

TEST_CASE("a dataset holds whole documents out and names all bad sources") {
  TempFolder folder;
  std::string lines;
  for (int i = 0; i < 10; ++i)
    lines += "{\"text\":\"" + std::string(100, static_cast<char>('a' + i)) + "\"}\n";
  write_file(folder.path() / "a.jsonl", lines);
  const auto bytes = open_tokenizer("bytes");
  recipe::Data data;
  data.train = {{(folder.path() / "a.jsonl").string()}};
  data.sequence = 9;
  data.order = "sequential";
  data.validation_fraction = 0.17;
  ::setenv("TUTTI_CACHE", (folder.path() / "cache").c_str(), 1);
  const Dataset dataset = open_dataset(data, *bytes, 1);
  CHECK(dataset.train->samples() == 88);
  CHECK(dataset.validation->samples() == 22);
  Ids inputs(9), targets(9);
  dataset.validation->fill(0, inputs, targets);
  CHECK(inputs[0] == 'i');
  CHECK(dataset.bytes_per_token == 1);
  data.train = {{"/no/1"}, {"/no/2"}};
  const std::string error = error_of<ConfigError>([&] { open_dataset(data, *bytes, 1); });
  CHECK(has(error, "/no/1: data.train: no such file"));
  CHECK(has(error, "/no/2"));
}

TEST_CASE("prefetched batches are the filled ones, and it stops at any time") {
  const Sampler sampler({whole(counting(1001))}, {.sequence = 10});
  Prefetcher ahead(sampler, 3, [](std::uint64_t i) { return 5 + 3 * i; }, 2);
  Ids inputs(10), targets(10);
  for (std::uint64_t i = 0; i < 20; ++i) {
    const Batch batch = ahead.next();
    CHECK(batch.first == 5 + 3 * i);
    sampler.fill(batch.first + 2, inputs, targets);
    CHECK(std::equal(inputs.begin(), inputs.end(), batch.inputs.begin() + 20));
    CHECK(std::equal(targets.begin(), targets.end(), batch.targets.begin() + 20));
  }
}

}  // namespace
}  // namespace tutti::data
