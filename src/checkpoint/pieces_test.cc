// Tensors in pieces: what any layout saved, any other loads; pieces that lie are refused by name.
#include <algorithm>

#include "base/hash.h"
#include "checkpoint/sample_tensors.h"

using namespace tutti;
using namespace tutti::checkpoint;

namespace {

// Cuts [0, length) into parts, some of them empty: their ends.
std::vector<std::int64_t> random_cuts(std::int64_t length, std::int64_t parts, Draw& draw) {
  std::vector<std::int64_t> ends{length};
  while (std::ssize(ends) < parts) ends.push_back(draw.below(length + 1));
  std::sort(ends.begin(), ends.end());
  return ends;
}

// Boxes that make up the shape: the product of cuts of each dimension, in up to 3 parts.
std::vector<Box> random_grid(const Shape& shape, Draw& draw) {
  std::vector<Box> boxes{{{}, {}}};
  for (const std::int64_t length : shape) {
    std::vector<Box> longer;
    std::int64_t begin = 0;
    for (const std::int64_t end : random_cuts(length, 1 + draw.below(3), draw)) {
      for (Box box : boxes) {
        box.offset.push_back(begin);
        box.size.push_back(end - begin);
        longer.push_back(box);
      }
      begin = end;
    }
    boxes = std::move(longer);
  }
  return boxes;
}

Box random_box(const Shape& shape, Draw& draw) {
  Box box;
  for (const std::int64_t length : shape) {
    box.offset.push_back(draw.below(length + 1));
    box.size.push_back(draw.below(length - box.offset.back() + 1));
  }
  return box;
}

// The slow twin of Loader::read: element by element.
Bytes bytes_in(const Bytes& all, const Shape& shape, const Box& box, std::size_t element) {
  Bytes out;
  for (std::int64_t i = 0; i < element_count(box); ++i) {
    std::int64_t rest = i, at = 0, stride = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      at += (box.offset[d] + rest % box.size[d]) * stride;
      rest /= box.size[d];
      stride *= shape[d];
    }
    const auto from = all.begin() + at * static_cast<std::ptrdiff_t>(element);
    out.insert(out.end(), from, from + static_cast<std::ptrdiff_t>(element));
  }
  return out;
}

struct Tensor {
  std::string name;
  DType dtype;
  Shape shape;
  Bytes bytes =
      bytes_of(name, 1, static_cast<std::size_t>(element_count(whole(shape))) * size_of(dtype));
};

// Names that look like the keys of others' pieces are among them.
const std::vector<Tensor>& tensors() {
  static const std::vector<Tensor> all{
      {"w", DType::f32, {7, 5}},         {"w#1", DType::f32, {7, 5}},
      {"w#3", DType::bf16, {13}},        {"scalar", DType::f64, {}},
      {"empty", DType::f32, {0, 3}},     {"ids", DType::i64, {2, 2}},
      {"heads", DType::bf16, {3, 4, 5}}, {"deep", DType::f32, {2, 3, 2, 3}}};
  return all;
}

// A piece of a tensor that a rank of an engine has.
struct Piece {
  const Tensor* tensor;
  std::optional<Box> box;  // none: all of it, as all ranks have
  bool owned = true;
  Bytes bytes = {};

  Box part() const { return box ? *box : whole(tensor->shape); }
  Bytes right() const {
    return bytes_in(tensor->bytes, tensor->shape, part(), size_of(tensor->dtype));
  }
};

// Gives the piece to a random rank, and sometimes to others that do not own it.
void give(std::vector<std::vector<Piece>>& ranks, const Tensor& tensor, const Box& box,
          Draw& draw) {
  const std::int64_t owner = draw.below(std::ssize(ranks));
  for (std::int64_t rank = 0; rank < std::ssize(ranks); ++rank)
    if (rank == owner || draw.below(4) == 0)
      ranks[static_cast<std::size_t>(rank)].push_back({&tensor, box, rank == owner});
}

// One tensor over the ranks: replicated, in boxes, or in boxes each cut into runs of elements as
// ZeRO does.
void spread(std::vector<std::vector<Piece>>& ranks, const Tensor& tensor, Draw& draw) {
  const std::int64_t kind = draw.below(4);
  if (kind == 0)
    for (auto& rank : ranks) rank.push_back({&tensor, {}});
  else if (kind == 1)
    for (const Box& box : random_grid(tensor.shape, draw)) give(ranks, tensor, box, draw);
  else
    for (const Box& box :
         kind == 2 ? std::vector{whole(tensor.shape)} : random_grid(tensor.shape, draw)) {
      std::int64_t first = 0;
      for (const std::int64_t end : random_cuts(element_count(box), std::ssize(ranks) + 1, draw)) {
        for (const Box& run : boxes_of_range(box, first, end - first))
          give(ranks, tensor, run, draw);
        first = end;
      }
    }
  // Ranks without any know of it by an empty piece, as engines do. It is not owned, as a scalar's
  // is not empty; but a tensor without elements has no other.
  const bool nothing = element_count(whole(tensor.shape)) == 0;
  const Shape zeros(tensor.shape.size(), 0);
  for (auto& rank : ranks)
    if (std::ranges::none_of(rank, [&](const Piece& piece) { return piece.tensor == &tensor; }))
      rank.push_back({&tensor, Box{zeros, zeros}, nothing});
}

// All ranks of an engine that lays its state out at random.
class Layout {
 public:
  explicit Layout(int seed) : ranks_(1 + static_cast<std::size_t>(seed) % 4) {
    Draw draw(str("layout ", seed));
    for (const Tensor& tensor : tensors()) spread(ranks_, tensor, draw);
    for (auto& rank : ranks_)  // engines list a name's pieces at any places
      for (std::size_t i = rank.size(); i-- > 1;)
        if (rank[i].box && rank[i - 1].box && draw.below(2)) std::swap(rank[i], rank[i - 1]);
  }
  std::size_t pieces() const {
    std::size_t count = 0;
    for (const auto& rank : ranks_) count += rank.size();
    return count;
  }
  void save(const fs::path& folder) {
    Run run(folder, static_cast<int>(ranks_.size()));
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      std::vector<TensorView> views;
      for (Piece& piece : ranks_[rank]) {
        piece.bytes = piece.right();
        if (!piece.box || piece.owned)
          views.push_back({piece.tensor->name, piece.tensor->dtype, piece.tensor->shape,
                           piece.bytes.data(), piece.box});
      }
      run[rank].save(1, views, {});
    }
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) run[rank].wait();
  }
  // "" if every rank gets the right bytes, else what is wrong.
  std::string load(const fs::path& step_folder) {
    const Loader loader(step_folder);
    std::vector<Loader::Expected> expected;
    for (const Tensor& tensor : tensors())
      expected.push_back({tensor.name, tensor.dtype, tensor.shape});
    loader.require(expected);
    for (auto& rank : ranks_)
      for (Piece& piece : rank) {
        const Bytes right = piece.right();
        piece.bytes.assign(right.size() + 1, std::byte{0xAB});
        loader.read(piece.tensor->name, piece.part(), piece.bytes.data());
        if (piece.bytes.back() != std::byte{0xAB}) return piece.tensor->name + ": wrote too far";
        piece.bytes.pop_back();
        if (piece.bytes != right) return piece.tensor->name + " " + to_text(piece.part());
      }
    return "";
  }

 private:
  std::vector<std::vector<Piece>> ranks_;
};

}  // namespace

TEST_CASE("checkpoint: what is saved in one layout is loaded in any other, all pairs") {
  constexpr int count = 16;
  std::vector<Layout> layouts;
  for (int seed = 0; seed < count; ++seed) layouts.emplace_back(seed);
  for (int from = 0; from < count; ++from) {
    const TempFolder folder;
    CHECK(layouts[static_cast<std::size_t>(from)].pieces() >= tensors().size());
    layouts[static_cast<std::size_t>(from)].save(folder.path());
    for (int to = 0; to < count; ++to) {
      CAPTURE(from);
      CAPTURE(to);
      CHECK(layouts[static_cast<std::size_t>(to)].load(folder.path() / step_folder_name(1)) == "");
    }
  }
}

TEST_CASE("checkpoint: any box is read from any pieces (against element by element)") {
  Draw draw("boxes");
  for (int seed = 100; seed < 110; ++seed) {
    const TempFolder folder;
    Layout(seed).save(folder.path());
    const Loader loader(folder.path() / step_folder_name(1));
    for (const Tensor& tensor : tensors())
      for (int read = 0; read < 20; ++read) {
        const Box box = random_box(tensor.shape, draw);
        const Bytes right = bytes_in(tensor.bytes, tensor.shape, box, size_of(tensor.dtype));
        Bytes got(right.size());
        loader.read(tensor.name, box, got.data());
        CAPTURE(tensor.name);
        CAPTURE(to_text(box));
        CHECK(got == right);
      }
  }
}

namespace {

// One rank's checkpoint of "w" [4, 3] in the pieces [0:2], [2:3] and [3:4], and a tensor "w#1".
class Pieces {
 public:
  Pieces() {
    const Tensor w{"w", DType::f32, {4, 3}}, other{"w#1", DType::f32, {3}};
    const std::byte* data = w.bytes.data();
    const std::vector<TensorView> views{{"w", DType::f32, {4, 3}, data, Box{{0, 0}, {2, 3}}},
                                        {"w", DType::f32, {4, 3}, data + 24, Box{{2, 0}, {1, 3}}},
                                        {"w", DType::f32, {4, 3}, data, Box{{1, 1}, {0, 2}}},
                                        {"w#1", DType::f32, {3}, other.bytes.data(), {}},
                                        {"w", DType::f32, {4, 3}, data + 36, Box{{3, 0}, {1, 3}}}};
    Saver saver(folder_.path(), 0, 1, {});
    saver.save(1, views, {});
    saver.wait();
  }
  fs::path step() const { return folder_.path() / step_folder_name(1); }
  Json manifest() const { return parse_json(read_file(step() / "manifest.json"), ""); }
  // Why the checkpoint is refused with the manifest changed; "": it is not.
  template <class Change>
  std::string refusal(const Change& change) const {
    Manifest changed = manifest_from(manifest(), "");
    change(changed.entries);
    return refusal_of(to_json(changed));
  }
  std::string refusal_of(const Json& manifest) const {
    write_file(step() / "manifest.json", manifest.dump());
    try {
      const Loader loader(step());
      Bytes out(48);
      loader.read("w", whole({4, 3}), out.data());
      CHECK(out == bytes_of("w", 1, 48));
      loader.read("w#1", whole({3}), out.data());
      CHECK(std::equal(out.begin(), out.begin() + 12, bytes_of("w#1", 1, 12).begin()));
      return "";
    } catch (const WorldError& error) {
      return error.what();
    }
  }

 private:
  TempFolder folder_;
};

}  // namespace

TEST_CASE("checkpoint: pieces have keys of their own in the file; only other keys are written") {
  const Pieces pieces;
  CHECK(pieces.refusal([](auto&) {}) == "");
  std::string keys;
  const Json manifest = pieces.manifest();
  for (const Json& entry : manifest.at("entries"))
    keys += str(entry.at("name").get<std::string>(), " at ", entry.value("key", "its name"), "; ");
  CHECK(keys == "w at its name; w at w#2; w#1 at its name; w at w#3; ");
  const StoredFile file(pieces.step() / shard_name(0));
  CHECK(file.tensors().at("w").shape == Shape{2, 3});
  CHECK(file.tensors().at("w#3").shape == Shape{1, 3});
  CHECK(file.tensors().size() == 4);
}

TEST_CASE("checkpoint: wrong keys, overlapping and missing pieces are refused by name") {
  using Entries = std::vector<Entry>;
  const auto refusal = [](const auto& change) { return Pieces().refusal(change); };
  const auto has = [](const std::string& text, const std::string& part) {
    CHECK_MESSAGE(text.find(part) != std::string::npos, part, " in ", text);
  };
  has(refusal([](Entries& e) { e[1].key = "w#9"; }), "w is not what the manifest says");
  has(refusal([](Entries& e) { e[1].key = ""; }), "the key w in rank-000.safetensors is another");
  has(refusal([](Entries& e) { e[3].key = "w#2"; }), "w: the key w#2 in rank-000.safetensors is");
  has(refusal([](Entries& e) { std::swap(e[1].key, e[3].key); }), "the checksum of w does not");
  has(refusal([](Entries& e) { e[1].key = "__metadata__"; }), "w is not what the manifest says");
  has(refusal([](Entries& e) { e[1].box.offset = {3, 0}; }), "w is stored twice in [3:4, 0:3]");
  has(refusal([](Entries& e) { e[1].box.offset = {1, 0}; }), "w is stored twice in [1:2, 0:3]");
  has(refusal([](Entries& e) { e.erase(e.begin() + 1); }), "w is not stored whole");
  has(refusal([](Entries& e) { e[1].shape = {5, 3}; }), "w has pieces of different shapes");
}

TEST_CASE("checkpoint: version 1, which has no keys, is read") {
  const TempFolder folder;
  const Sample sample(1);
  Run(folder.path(), 3).save(1, sample);
  const fs::path file = folder.path() / step_folder_name(1) / "manifest.json";
  Json json = parse_json(read_file(file), "");
  CHECK(json.at("version") == 2);
  json["version"] = 1;
  json.erase("checksum");
  json["checksum"] = hex64(hash64(json.dump()));
  write_file(file, json.dump(1));
  CHECK(sample.difference(Loader(file.parent_path())) == "");
}
