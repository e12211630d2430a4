// Bugs that can be switched on: `tutti parity` must find each of them (docs/parity.md). They sit at
// the places where such bugs happen, and are written as if someone had made the mistake:
//
//   if (!fault("context-gradient")) context->all_reduce(flat);
//
// At most one is on, in the whole process. A place costs one relaxed load, and a name that is not
// in the table does not compile.
#pragma once
#include <array>
#include <atomic>
#include <string>
#include <string_view>

namespace tutti {

struct Fault {
  std::string_view name;
  std::string_view axis;  // of the layout, without which it does nothing
  std::string_view what;  // is wrong then
};

inline constexpr std::array faults = {
    Fault{"row-parallel-sum", "tensor", "products cut along their inputs are not summed"},
    Fault{"input-gradient-sum", "tensor", "the gradient of what all ranks read is not summed"},
    Fault{"uncut-gradient", "tensor", "gradients of weights that all ranks hold are not summed"},
    Fault{"uncut-norm", "tensor", "weights that all ranks hold count once a rank in the norm"},
    Fault{"vocabulary-sum", "tensor", "each rank's softmax sums over its own ids only"},
    Fault{"vocabulary-max", "tensor", "each rank's softmax subtracts its own largest logit"},
    Fault{"dropout-rows", "tensor", "dropout masks begin at each rank's first row"},
    Fault{"router-loss-share", "tensor", "each rank counts the router's loss of all tokens"},
    Fault{"rope-offset", "context", "rotations are off by one position"},
    Fault{"ring-rescale", "context", "what was summed is not rescaled when a block comes"},
    Fault{"ring-home", "context", "gradients of keys and values end one rank from home"},
    Fault{"gather-gradient", "context", "gradients of gathered keys are not summed"},
    Fault{"ulysses-heads", "context", "heads come to the wrong rank"},
    Fault{"document-edge", "context", "other ranks' keys are seen across documents"},
    Fault{"dropout-position", "context", "dropout masks begin at each rank's first token"},
    Fault{"context-gradient", "context", "gradients are not summed over the axis"},
    Fault{"context-norm", "context", "every rank of the axis counts in the norm"},
    Fault{"expert-load", "context", "each rank sees its own tokens' load of experts only"},
    Fault{"expert-way-home", "expert", "rows come home in the order in which experts had them"},
    Fault{"expert-norm", "expert", "only the first rank's experts count in the norm"},
    Fault{"tied-twice", "pipeline", "a tied weight's gradient is summed over its stages twice"},
    Fault{"tied-once", "pipeline", "a tied weight's gradient is not summed over its stages"},
    Fault{"split-weights", "pipeline", "a split backward pass loses a micro-batch's weights"},
    Fault{"stage-loss", "pipeline", "losses of routers before the last stage are dropped"},
    Fault{"data-gradient", "data", "gradients are not summed over the ranks"},
    Fault{"last-micro-batch", "data", "the last micro-batch's gradient is dropped"},
    Fault{"local-count", "data", "the loss is divided by the rank's own count of targets"},
    Fault{"replica-norm", "data", "every replica counts in the norm"},
    Fault{"stale-gather", "zero", "a unit is not gathered again after the update"},
    Fault{"bias-correction", "zero", "the optimizer's step number is one ahead"},
    Fault{"shard-boundary", "zero", "shards of the gradient begin one element late"},
};

namespace detail {
inline std::atomic<int> active_fault = -1;
}

class FaultName {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): fault("name") is what it is for
  consteval FaultName(const char* name) : index_(index_of(name)) {
    if (index_ < 0) throw "no such fault";
  }
  constexpr int index() const { return index_; }

  static constexpr int index_of(std::string_view name) {
    for (std::size_t i = 0; i < faults.size(); ++i)
      if (faults[i].name == name) return static_cast<int>(i);
    return -1;
  }

 private:
  int index_;
};

inline bool fault(FaultName name) {
  return detail::active_fault.load(std::memory_order_relaxed) == name.index();
}

// On for its lifetime; "" for none. ConfigError for a name that is not in the table.
class FaultScope {
 public:
  explicit FaultScope(const std::string& name);
  ~FaultScope();
  FaultScope(const FaultScope&) = delete;
  FaultScope& operator=(const FaultScope&) = delete;
};

}  // namespace tutti
