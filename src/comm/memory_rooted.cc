// The operations that have a root.
#include <algorithm>

#include "base/error.h"
#include "comm/memory_communicator.h"
#include "comm/reduce.h"

namespace tutti::comm {
namespace {

const std::byte* bytes_of(const void* data) { return static_cast<const std::byte*>(data); }

}  // namespace

void MemoryCommunicator::reduce(const void* in, void* out, std::size_t count, DType type,
                                Reduce reduce, int root) {
  check_reduction(type, reduce);
  TUTTI_ASSERT(0 <= root && root < size(), "root ", root);
  Call call{.operation = Operation::reduce,
            .type = type,
            .count = count,
            .reduce = reduce,
            .root = root,
            .plan = &ranks_plan_,
            .out = static_cast<std::byte*>(out),
            .nodes = 1,
            .node = {bytes_of(in)}};
  run(call);
}

void MemoryCommunicator::gather_v(const void* in, void* out, std::span<const std::size_t> counts,
                                  DType type, int root) {
  TUTTI_ASSERT(counts.size() == static_cast<std::size_t>(size()), counts.size(), " counts");
  TUTTI_ASSERT(0 <= root && root < size(), "root ", root);
  Call call{.operation = Operation::gather,
            .type = type,
            .count = std::ranges::max(counts),
            .root = root,
            .parts = counts,
            .out = static_cast<std::byte*>(out),
            .nodes = 1,
            .node = {bytes_of(in)}};
  run(call);
}

void MemoryCommunicator::scatter_v(const void* in, void* out, std::span<const std::size_t> counts,
                                   DType type, int root) {
  TUTTI_ASSERT(counts.size() == static_cast<std::size_t>(size()), counts.size(), " counts");
  TUTTI_ASSERT(0 <= root && root < size(), "root ", root);
  Call call{.operation = Operation::scatter,
            .type = type,
            .count = std::ranges::max(counts),
            .root = root,
            .scatters = true,
            .parts = counts,
            .out = static_cast<std::byte*>(out),
            .nodes = rank() == root ? 1 : 0,
            .node = {bytes_of(in)}};
  run(call);
}

}  // namespace tutti::comm
