// Sums of gradients over data ranks, of which less is sent than there is: recipe::Parallel's
// compress. With g_i what rank i's own micro-batches sum to, and e_i what it has not sent yet,
//
//   c_i = C(g_i + e_i)    the sum is that of all c_i    e_i <- g_i + e_i - c_i
//
// (error feedback: Seide et al., "1-bit stochastic gradient descent", 2014; Karimireddy et al.,
// "Error feedback fixes SignSGD and other gradient compression schemes", 2019). A number is never
// lost, it comes later. What C is:
//
//   BlockReducer    bf16, fp16, int8, int4, sign     rounded in blocks (parallel/compression.h)
//   TopReducer      topk                             the largest elements of each tensor
//   FactorReducer   powersgd                         factors of low rank of each matrix
//
// All ranks get the same bits. C of a tensor does not look beyond it, nor at how buckets are cut,
// so that ranks of other axes that hold the same tensor, with the same gradient, stay alike.
#pragma once
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/group.h"
#include "parallel/shards.h"

namespace tutti::parallel {

struct Compress {
  std::string kind = "none";
  std::int64_t rank = 4;   // powersgd
  double ratio = 0.01;     // topk
  std::int64_t after = 0;  // updates with plain sums before
};

class Reducer {
 public:
  // A bucket, and where it is cut: each data rank's part.
  struct Region {
    Bucket bucket;
    std::vector<std::int64_t> cuts;
  };
  struct Setup {
    Compress compress;
    std::uint64_t seed = 1;
    std::vector<Piece> pieces;
    std::vector<Region> regions;
    std::int64_t total = 0;  // elements of all pieces with the gaps between them
    torch::ScalarType type = torch::kFloat;
    bool scatters = false;  // each rank wants the sum of its own parts alone
    std::shared_ptr<collective::Group> group;
  };

  explicit Reducer(Setup setup);
  virtual ~Reducer() = default;

  // `values` [bucket.size] is the rank's own sum; once the work is waited for it is that of all
  // (its own part, if it scatters). All ranks start the same regions in the same order and wait for
  // them in the same order; waiting may take collectives of its own.
  std::shared_ptr<collective::Work> start(std::size_t region, const torch::Tensor& values);
  // The sums were used. Without it the next are made as if these had not been.
  virtual void commit();

  // What is not sent yet, flat: of this rank; of the sum of this rank's parts (undefined: none).
  const torch::Tensor& error() const { return error_; }
  const torch::Tensor& sum_error() const { return sum_error_; }
  // Of the flat sum_error(): where this rank's part of a region begins.
  std::int64_t sum_offset(std::size_t region) const { return sum_offsets_[region]; }
  // What is carried from step to step besides, alike on all ranks: of a piece.
  struct Factor {
    std::size_t piece = 0;
    torch::Tensor values;
  };
  virtual std::vector<Factor> factors() { return {}; }
  std::int64_t bytes() const;  // that live on this rank

 protected:
  // `input` is g + e and becomes the new e; `sum` is for the sum.
  virtual std::shared_ptr<collective::Work> begin(std::size_t region, torch::Tensor input,
                                                  torch::Tensor sum) = 0;
  void keep_sum_error();

  const Region& region(std::size_t at) const { return setup_.regions[at]; }
  // The part of a region's values that is a piece.
  torch::Tensor piece_of(const torch::Tensor& values, std::size_t region, std::size_t piece) const;
  int rank() const { return setup_.group->rank(); }
  int ranks() const { return setup_.group->size(); }

  Setup setup_;
  torch::Tensor error_, next_error_, sum_error_, next_sum_error_;
  std::vector<std::int64_t> sum_offsets_;
};

// A first operation that goes on by itself, and the rest, which is done when it is waited for.
class Steps : public collective::Work {
 public:
  Steps(std::shared_ptr<collective::Work> first, std::function<void()> rest)
      : first_(std::move(first)), rest_(std::move(rest)) {}
  bool done() const override { return !rest_; }
  void wait() override;

 private:
  std::shared_ptr<collective::Work> first_;
  std::function<void()> rest_;
};

std::unique_ptr<Reducer> make_reducer(Reducer::Setup setup);

std::unique_ptr<Reducer> make_block_reducer(Reducer::Setup setup);
std::unique_ptr<Reducer> make_top_reducer(Reducer::Setup setup);
std::unique_ptr<Reducer> make_factor_reducer(Reducer::Setup setup);

}  // namespace tutti::parallel
