#include "comm/communicator.h"

#include <vector>

namespace tutti::comm {
namespace {

std::vector<std::size_t> equal_parts(int size, std::size_t count) {
  return std::vector<std::size_t>(static_cast<std::size_t>(size), count);
}

}  // namespace

void Communicator::all_gather(const void* in, void* out, std::size_t count, DType type) {
  all_gather_v(in, out, equal_parts(size(), count), type);
}

void Communicator::reduce_scatter(const void* in, void* out, std::size_t count, DType type,
                                  Reduce reduce) {
  reduce_scatter_v(in, out, equal_parts(size(), count), type, reduce);
}

void Communicator::all_to_all(const void* in, void* out, std::size_t count, DType type) {
  const auto counts = equal_parts(size(), count);
  all_to_all_v(in, counts, out, counts, type);
}

void Communicator::gather(const void* in, void* out, std::size_t count, DType type, int root) {
  gather_v(in, out, equal_parts(size(), count), type, root);
}

void Communicator::scatter(const void* in, void* out, std::size_t count, DType type, int root) {
  scatter_v(in, out, equal_parts(size(), count), type, root);
}

}  // namespace tutti::comm
