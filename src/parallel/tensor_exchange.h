// The rows of a product on their way over the tensor axis (nn/row_exchange.h), in `chunks` runs.
//
//   gathered   own rows are multiplied while the others' come, chunks - 1 of each rank's in turn
//   summed     a chunk (the same part of each rank's rows) is on its way while the next is made
//
// With one chunk nothing is cut: all rows come or are made, then go; only `meanwhile` runs beside.
// Sums are by element along a tree over the ranks: how rows are cut does not change their bits.
#pragma once
#include <memory>
#include <vector>

#include "collective/group.h"
#include "mesh/placement.h"
#include "nn/row_exchange.h"

namespace tutti::parallel {

class TensorExchange : public nn::RowExchange {
 public:
  // `by_rows`: the stream is cut by rows (all-gather, reduce-scatter); else every rank has all of
  // it (nothing, all-reduce). `lost`: a seeded bug leaves sums out.
  TensorExchange(std::shared_ptr<collective::Group> group, std::int64_t rows, bool by_rows,
                 int chunks, bool lost = false);

  torch::Tensor gathered(const torch::Tensor& x, const Use& use) override;
  torch::Tensor summed(std::int64_t features, const torch::TensorOptions& options, const Make& make,
                       const std::function<void()>& meanwhile) override;

 private:
  using Work = std::shared_ptr<collective::Work>;
  struct Run {                    // of rows on their way
    std::vector<nn::Span> spans;  // each rank's
    torch::Tensor stage;          // where they come to, side by side
    Work work;
  };
  // Of the whole's rows: piece `index` of `count` of each rank's.
  std::vector<nn::Span> pieces(int count, int index) const;
  nn::Span own() const;
  std::vector<Run> start_gather(const torch::Tensor& x, const torch::Tensor& whole) const;
  Work scatter(int chunk, const torch::Tensor& out, const Make& make) const;
  Work reduce(int chunk, const torch::Tensor& out, const Make& make) const;

  std::shared_ptr<collective::Group> group_;
  bool by_rows_;
  int chunks_;
  bool lost_;
};

}  // namespace tutti::parallel
