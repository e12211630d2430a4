#include "comm/call.h"

#include <iterator>

#include "base/error.h"
#include "comm/reduce.h"

namespace tutti::comm {
namespace {

constexpr const char* names[] = {
    "barrier",        "broadcast",  "all_reduce",      "all_gather",
    "reduce_scatter", "all_to_all", "tree_all_reduce", "tree_reduce_scatter",
    "reduce",         "gather",     "scatter"};

bool within(std::int32_t value, std::size_t bound) {
  return value >= 0 && static_cast<std::size_t>(value) < bound;
}

bool is_known(const CallHead& call) {
  return within(call.operation, std::size(names)) &&
         within(call.type, static_cast<std::size_t>(DType::boolean) + 1) &&
         within(call.reduce, static_cast<std::size_t>(Reduce::average) + 1);
}

std::string joined(std::span<const std::uint64_t> parts) {
  std::string text;
  for (const std::uint64_t part : parts) text += str(text.empty() ? "" : "+", part);
  return text;
}

}  // namespace

std::uint64_t fingerprint(const ReductionPlan* plan) {
  std::uint64_t hash = 0;
  if (plan)
    for (const Range range : plan->ranges)
      hash = (hash ^ static_cast<unsigned>(range.end)) * 0x100000001b3u;
  return hash;
}

std::string describe(const CallHead& call, std::span<const std::uint64_t> parts) {
  if (!is_known(call)) return "what is no call";
  const auto operation = static_cast<Operation>(call.operation);
  std::string text = str(names[call.operation], " #", call.sequence);
  if (operation == Operation::barrier) return text;
  text += str(" (", name_of(static_cast<DType>(call.type)), " x ");
  const bool reduces = operation == Operation::all_reduce || operation == Operation::reduce;
  const bool in_parts =
      !reduces && operation != Operation::broadcast && operation != Operation::tree_all_reduce;
  const bool rooted = operation == Operation::broadcast || operation == Operation::reduce ||
                      operation == Operation::gather || operation == Operation::scatter;
  text += in_parts ? joined(parts) : str(call.count);
  if (rooted) text += str(", root ", call.root);
  if (reduces || operation == Operation::reduce_scatter)
    text += str(", ", name_of(static_cast<Reduce>(call.reduce)));
  return text + ")";
}

}  // namespace tutti::comm
