#include "nn/spread.h"

#include "base/error.h"
#include "nn/plain.h"

namespace tutti::nn {
namespace {

Spread one_device;
thread_local Spread* current = &one_device;

}  // namespace

std::string to_text(const Type& type) {
  switch (type.kind) {
    case Type::Kind::replicate:
      return "Replicate";
    case Type::Kind::shard:
      return str("Shard(", type.dim, ")");
    case Type::Kind::partial:
      return "Partial";
    case Type::Kind::varying:
      return "Varying";
  }
  return "?";
}

// On one rank all types hold at once.
torch::Tensor Spread::convert(const torch::Tensor& x, Type, Type, std::int64_t,
                              const torch::Tensor&) {
  return x;
}

std::shared_ptr<RowExchange> Spread::exchange(Type, Type, std::int64_t rows, std::int64_t,
                                              const torch::Tensor&) {
  return std::make_shared<RowExchange>(rows);
}

torch::Tensor Spread::attention(const AttentionCall& c) {
  if (!c.keep.defined()) return nn::attention(c.qkv, c.heads, c.rope, c.first_key);
  return plain::attend(plain::split_and_rotate(c.qkv, c.heads, c.rope), c.heads,
                       plain::seen(c.heads, 0, c.first_key, c.qkv.device()), c.keep);
}

Spread& spread() { return *current; }

SpreadScope::SpreadScope(Spread* spread) : outer_(current) {
  current = spread ? spread : &one_device;
}
SpreadScope::~SpreadScope() { current = outer_; }

}  // namespace tutti::nn
