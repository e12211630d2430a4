// Whether ranks hold alike what they must hold alike: weights and moments of replicas, what tensor
// and context ranks do not cut, both ends of a tied embedding, buffers, gathered and rounded
// copies. A step never compares them, so that a flipped bit or a fault of a transport on one rank
// would spoil the run unseen.
//
// What must be alike follows from names and boxes alone: of one tensor, every element that several
// ranks hold. Each such part is hashed (XXH3, 64 bits: two different values pass as alike once in
// 2^64), and the hashes are gathered: 8 bytes a part and rank. What only one rank holds is not
// hashed.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collective/group.h"
#include "parallel/engine.h"

namespace tutti::train {

struct Divergence {
  std::string tensor;  // the first that differs, in the order of the model: "model/<parameter>"
  std::vector<std::int64_t> shape;
  Box box;  // the part of it that differs
  // Those that hold the same, together; most ranks first, then by their first rank.
  std::vector<std::vector<int>> ranks;
  std::int64_t tensors = 0;  // that differ in all
};

// The ranks whose value is not that of most; all of them if no value is held by more than another.
std::vector<int> suspects(const Divergence& found);

// "rank 1", "ranks 0, 2".
std::string ranks_text(const std::vector<int>& ranks);

// "model/norm.weight is not the same on all ranks that hold it: rank 1 differs from ranks 0, 2".
std::string to_text(const Divergence& found);

// What engines hold: state() and copies().
std::vector<parallel::StateTensor> held_by(parallel::Engine& engine);

class DivergenceWatch {
 public:
  // `order`: names of parameters and buffers in the order of the model; what is not among them
  // comes last. The same on all ranks.
  DivergenceWatch(std::shared_ptr<collective::Group> world, std::vector<std::string> order);

  // All ranks call it together, each with what it holds, and all are told the same. WorldError: a
  // peer was lost.
  std::optional<Divergence> compare(const std::vector<parallel::StateTensor>& held);

  // That this rank hashed in the last comparison.
  std::int64_t bytes() const { return bytes_; }

 private:
  // A part of a tensor that several ranks hold.
  struct Part {
    std::string name;
    std::vector<std::int64_t> shape;
    Box box;
    std::vector<int> holders;  // ascending
    std::size_t mine = 0;      // index of what this rank holds of it, if it does
  };
  struct Whereabouts {  // of what this rank holds, when parts_ was made
    std::string name;
    Box box;
    bool operator==(const Whereabouts&) const = default;
  };

  void agree_on_parts(const std::vector<parallel::StateTensor>& held);
  std::vector<std::uint64_t> hash_mine(const std::vector<parallel::StateTensor>& held);
  std::vector<std::vector<std::uint64_t>> gather(const std::vector<std::uint64_t>& mine) const;

  std::shared_ptr<collective::Group> world_;
  std::vector<std::string> order_;
  std::vector<Whereabouts> held_;
  std::vector<Part> parts_;  // in the order of the model, the same on all ranks
  std::int64_t bytes_ = 0;
};

}  // namespace tutti::train
