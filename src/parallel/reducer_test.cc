// Compressed sums over ranks that are threads: what was sent and what is left is what there was.
#include "parallel/reducer.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>

#include "parallel/sample_task.h"

namespace tutti::parallel {
namespace {

constexpr const char* kinds[] = {"bf16", "fp16", "int8", "int4", "sign", "topk", "powersgd"};

// Three pieces with gaps between them, in two buckets: the last first.
Reducer::Setup setup_of(const std::string& kind, torch::ScalarType type,
                        std::shared_ptr<collective::Group> group) {
  Reducer::Setup setup;
  setup.compress = {kind, 2, 0.1, 0};
  setup.type = type;
  std::int64_t at = 0;
  for (const auto& [name, shape] : std::vector<std::pair<std::string, std::vector<std::int64_t>>>{
           {"matrix", {70, 129}}, {"vector", {19}}, {"cube", {12, 3, 5}}}) {
    std::int64_t size = 1;
    for (const std::int64_t one : shape) size *= one;
    setup.pieces.push_back({name, shape, at, size, {}});
    at += aligned(size);
  }
  setup.total = at;
  const Bucket last{1, 3, setup.pieces[1].offset, at - setup.pieces[1].offset};
  const Bucket first{0, 1, 0, setup.pieces[1].offset};
  for (const Bucket& bucket : {last, first})
    setup.regions.push_back({bucket, cut_bucket(setup.pieces, bucket, group->size())});
  setup.group = std::move(group);
  return setup;
}

// Values in the pieces, zeros between them.
torch::Tensor gradient(const Reducer::Setup& setup, int rank, int step) {
  torch::Tensor values = torch::zeros({setup.total}, setup.type);
  for (const Piece& piece : setup.pieces)
    values.narrow(0, piece.offset, piece.size)
        .copy_(torch::arange(piece.size, torch::kDouble)
                   .mul(1.3 + 0.1 * rank)
                   .add(step)
                   .sin()
                   .mul(piece.shape.size() == 1 ? 1e-3 : 1));
  return values;
}

void reduce(Reducer& reducer, const Reducer::Setup& setup, const torch::Tensor& values) {
  std::vector<std::shared_ptr<collective::Work>> works;
  for (std::size_t r = 0; r < setup.regions.size(); ++r) {
    const Bucket& bucket = setup.regions[r].bucket;
    works.push_back(reducer.start(r, values.narrow(0, bucket.offset, bucket.size)));
  }
  for (const auto& work : works) work->wait();
}

// The flat sum_error() of a rank, in its places of the whole.
torch::Tensor placed_sum_error(const Reducer& reducer, const Reducer::Setup& setup, int rank) {
  torch::Tensor whole = torch::zeros({setup.total}, setup.type);
  const auto at = static_cast<std::size_t>(rank);
  for (std::size_t r = 0; reducer.sum_error().defined() && r < setup.regions.size(); ++r) {
    const auto& cuts = setup.regions[r].cuts;
    whole.narrow(0, cuts[at], cuts[at + 1] - cuts[at])
        .copy_(reducer.sum_error().narrow(0, reducer.sum_offset(r), cuts[at + 1] - cuts[at]));
  }
  return whole;
}

// What all ranks together had, what they got, and what is left, after some steps.
struct Books {
  torch::Tensor had, got, left;
};

Books keep_books(const std::string& kind, torch::ScalarType type, int ranks, int steps,
                 const std::function<void(Reducer::Setup&)>& change = {}) {
  Books books;
  std::mutex mutex;
  std::vector<torch::Tensor> sums(static_cast<std::size_t>(ranks));
  on_ranks(ranks, [&](int rank, const std::shared_ptr<collective::Group>& group) {
    Reducer::Setup setup = setup_of(kind, type, group);
    if (change) change(setup);
    const auto reducer = make_reducer(setup);
    torch::Tensor had = torch::zeros({setup.total}, type), got = had.clone();
    for (int step = 0; step < steps; ++step) {
      torch::Tensor values = gradient(setup, rank, step);
      had += values;
      reduce(*reducer, setup, values);
      reducer->commit();
      got += values;
    }
    const std::scoped_lock lock(mutex);
    sums[static_cast<std::size_t>(rank)] = got;
    const torch::Tensor left = reducer->error() + placed_sum_error(*reducer, setup, rank);
    books.had = books.had.defined() ? books.had + had : had;
    books.left = books.left.defined() ? books.left + left : left;
  });
  for (const torch::Tensor& sum : sums) CHECK(sum.equal(sums[0]));  // the same bits everywhere
  books.got = sums[0];
  return books;
}

double worst(const torch::Tensor& a, const torch::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST_CASE("compressed sums: what was sent and what is left is what there was, for each policy") {
  for (const char* kind : kinds)
    for (const int ranks : {1, 2, 3, 5})
      for (const auto type : {torch::kFloat, torch::kDouble}) {
        CAPTURE(kind);
        CAPTURE(ranks);
        const Books books = keep_books(kind, type, ranks, 12);
        CHECK(worst(books.got + books.left, books.had) < (type == torch::kFloat ? 2e-4 : 2e-12));
        CHECK(books.left.abs().max().item<double>() > 0);
        CHECK(books.left.abs().max().item<double>() < 30 * ranks);
        CHECK(books.got.narrow(0, 19 + 70 * 129 + 16, 1).item<double>() == 0);
      }
}

// Of one rank's own C no bit is lost: x - c is a number of the type when c is x rounded.
TEST_CASE("compressed sums: the error of one step is exact") {
  for (const char* kind : {"bf16", "fp16", "int8", "int4", "topk"}) {
    CAPTURE(kind);
    for (const auto type : {torch::kFloat, torch::kDouble}) {
      const Books books = keep_books(kind, type, 1, 1);
      CHECK((books.got + books.left).equal(books.had));
    }
  }
}

TEST_CASE("compressed sums: what loses nothing is a plain sum") {
  const auto all = [](Reducer::Setup& setup) {
    setup.compress.ratio = 1;
    setup.compress.rank = 44;  // of at most 45 that are sent as factors
  };
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    const Books books = keep_books("topk", type, 3, 1, all);
    CHECK(worst(books.got, books.had) < (type == torch::kFloat ? 1e-6 : 1e-14));
    CHECK(books.left.abs().max().item<double>() == 0);
    // The sum is of rank 6: a rank's rows are a sine each, of one frequency.
    const Books factors = keep_books("powersgd", type, 3, 1, all);
    CHECK(worst(factors.got, factors.had) < (type == torch::kFloat ? 1e-5 : 1e-10));
  }
}

TEST_CASE("compressed sums: without commit() the next is as if there had been none") {
  for (const char* kind : kinds) {
    CAPTURE(kind);
    std::map<bool, torch::Tensor> sums;
    for (const bool spoilt : {false, true})
      on_ranks(2, [&](int rank, const std::shared_ptr<collective::Group>& group) {
        const Reducer::Setup setup = setup_of(kind, torch::kFloat, group);
        const auto reducer = make_reducer(setup);
        torch::Tensor values;
        for (int step = 0; step < 3; ++step) {
          if (spoilt && step == 1) {
            values = gradient(setup, rank, 7);
            if (rank == 1) values[5] = std::numeric_limits<float>::quiet_NaN();
            reduce(*reducer, setup, values);
            CHECK_FALSE(values.isfinite().all().item<bool>());
          }
          values = gradient(setup, rank, step);
          reduce(*reducer, setup, values);
          reducer->commit();
        }
        if (rank == 0) sums[spoilt] = values;
      });
    CHECK(sums[false].equal(sums[true]));
  }
}

TEST_CASE(
    "compressed sums: a rank that wants its own part alone gets it without a second rounding") {
  for (const char* kind : {"bf16", "int8", "sign"})
    on_ranks(3, [&](int rank, const std::shared_ptr<collective::Group>& group) {
      CAPTURE(kind);
      std::atomic<int> gathers = 0;
      group->on_call([&](const collective::Call& call) {
        gathers += call.operation == std::string("all_gather") ? 1 : 0;
      });
      Reducer::Setup setup = setup_of(kind, torch::kDouble, group);
      setup.scatters = true;
      const auto reducer = make_reducer(setup);
      torch::Tensor values = gradient(setup, rank, 0), sum = values.clone();
      reduce(*reducer, setup, values);
      reducer->commit();
      group->on_call({});
      CHECK(gathers == 0);
      CHECK_FALSE(reducer->sum_error().defined());
      torch::Tensor sent = sum - reducer->error();
      group->all_reduce(sent);
      const auto at = static_cast<std::size_t>(rank);
      for (const auto& region : setup.regions) {
        const auto part = [&](const torch::Tensor& flat) {
          return flat.narrow(0, region.cuts[at], region.cuts[at + 1] - region.cuts[at]);
        };
        CHECK(part(values).allclose(part(sent), 0, 1e-12));
      }
    });
}

TEST_CASE("powersgd: it tracks the leading directions, and a weight that was not used comes back") {
  on_ranks(2, [&](int, const std::shared_ptr<collective::Group>& group) {
    const Reducer::Setup setup = setup_of("powersgd", torch::kDouble, group);
    const auto reducer = make_reducer(setup);
    const auto factors = [&] { return reducer->factors(); };
    REQUIRE(factors().size() == 2);  // the matrix, and the cube as [12, 15]
    CHECK(factors()[0].values.sizes() == torch::IntArrayRef({129, 2}));
    CHECK(factors()[1].values.sizes() == torch::IntArrayRef({15, 2}));
    torch::Tensor zeros = torch::zeros({setup.total}, torch::kDouble);
    const torch::Tensor before = factors()[0].values.clone();
    reduce(*reducer, setup, zeros);
    reducer->commit();
    CHECK(factors()[0].values.equal(before));  // no direction is lost
    const torch::Tensor u = torch::linspace(-1, 1, 70, torch::kDouble),
                        v = torch::arange(129, torch::kDouble).sin();
    torch::Tensor values = torch::zeros({setup.total}, torch::kDouble);
    values.narrow(0, 0, 70 * 129).copy_(torch::outer(u, v).view({-1}));
    const torch::Tensor wanted = 2 * values;
    reduce(*reducer, setup, values);
    CHECK(values.allclose(wanted, 0, 1e-12));  // of rank 1: nothing is left
  });
}

TEST_CASE("compressed sums: bytes sent are those that docs/parallelism.md says") {
  for (const auto& [kind, each] : {std::pair{"bf16", 2.0},
                                   {"fp16", 2 + 1. / 64},
                                   {"int8", 1 + 1. / 64},
                                   {"int4", .5 + 1. / 64},
                                   {"sign", .125 + 1. / 64},
                                   {"topk", 8 * 0.1}}) {
    CAPTURE(kind);
    std::atomic<std::int64_t> bytes = 0;
    on_ranks(2, [&, kind = kind](int rank, const std::shared_ptr<collective::Group>& group) {
      if (rank == 0) group->on_call([&](const collective::Call& call) { bytes += call.bytes; });
      const Reducer::Setup setup = setup_of(kind, torch::kFloat, group);
      const auto reducer = make_reducer(setup);
      torch::Tensor values = gradient(setup, rank, 0);
      reduce(*reducer, setup, values);
      group->on_call({});
    });
    // Twice: to those who sum and back; of topk, to each of two.
    CHECK(static_cast<double>(bytes) ==
          doctest::Approx(2 * each * (70 * 129 + 19 + 180)).epsilon(0.02));
  }
}

}  // namespace
}  // namespace tutti::parallel
