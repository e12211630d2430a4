// The c10d operations on lists of tensors: one a rank, or several operations in one call.
#include <utility>

#include "collective/comm_backend.h"
#include "collective/dense.h"

namespace tutti::collective {
namespace {

using Tensors = std::vector<at::Tensor>;

std::vector<std::size_t> counts_of(const Tensors& list) {
  std::vector<std::size_t> counts;
  for (const at::Tensor& tensor : list) counts.push_back(static_cast<std::size_t>(tensor.numel()));
  return counts;
}

// Room for the tensors of `list`, one after the other.
at::Tensor room_for(const Tensors& list, const at::TensorOptions& options) {
  std::int64_t count = 0;
  for (const at::Tensor& tensor : list) count += tensor.numel();
  return at::empty({count}, options);
}

at::Tensor joined(const Tensors& list) {
  Tensors flat;
  for (const at::Tensor& tensor : list) {
    TORCH_CHECK(tensor.scalar_type() == list[0].scalar_type(), "a list of one type");
    flat.push_back(tensor.reshape({-1}));
  }
  return at::cat(flat);
}

void split_into(const Tensors& list, const at::Tensor& from) {
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : list) {
    tensor.copy_(from.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

void check_equal(const Tensors& list, const at::Tensor& one) {
  for (const at::Tensor& tensor : list)
    TORCH_CHECK(tensor.numel() == one.numel() && tensor.scalar_type() == one.scalar_type(),
                "all ranks' tensors must have one size and type");
}

// The outputs of input i are element i of each rank's list.
std::vector<Tensors> transposed(const std::vector<Tensors>& lists) {
  std::vector<Tensors> result(lists.empty() ? 0 : lists[0].size());
  for (const Tensors& list : lists) {
    TORCH_CHECK(list.size() == result.size(), "each rank's list must be as long");
    for (std::size_t i = 0; i < list.size(); ++i) result[i].push_back(list[i]);
  }
  return result;
}

}  // namespace

void CommBackend::check_list(const Tensors& list) const {
  TORCH_CHECK(list.size() == static_cast<std::size_t>(getSize()), "expected a tensor for each of ",
              getSize(), " ranks, not ", list.size());
}

CommBackend::WorkPtr CommBackend::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  return start(c10d::OpType::ALLREDUCE_COALESCED, tensors,
               [list = dense(tensors), reduce = to_reduce(options.reduceOp)](auto& c) {
                 for (const Dense& data : list) {
                   c.all_reduce(data.data(), data.count(), data.type(), reduce);
                   data.give_back();
                 }
               });
}

CommBackend::WorkPtr CommBackend::allgather(Lists& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions&) {
  TORCH_CHECK(outputs.size() == 1, "one list a rank, not ", outputs.size());
  check_list(outputs[0]);
  const Dense in(only(inputs));
  TORCH_CHECK(counts_of(outputs[0])[static_cast<std::size_t>(getRank())] == in.count(),
              "the input must be as long as this rank's output");
  return start(c10d::OpType::ALLGATHER, outputs[0],
               [in, list = outputs[0], options = inputs[0].options()](auto& c) {
                 const at::Tensor all = room_for(list, options);
                 c.all_gather_v(in.data(), all.data_ptr(), counts_of(list), in.type());
                 split_into(list, all);
               });
}

CommBackend::WorkPtr CommBackend::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                                      const c10d::AllgatherOptions& options) {
  const Lists lists = transposed(outputs);
  TORCH_CHECK(!inputs.empty() && lists.size() == inputs.size(), "expected outputs for each input");
  WorkPtr last;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Lists list{lists[i]};
    Tensors in{inputs[i]};
    last = allgather(list, in, options);
  }
  return last;
}

CommBackend::WorkPtr CommBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                  const c10d::AllgatherOptions&) {
  TORCH_CHECK(outputs.size() == inputs.size(), "as many outputs as inputs");
  for (std::size_t i = 0; i < inputs.size(); ++i) check_sizes(outputs[i], inputs[i], getSize());
  return start(c10d::OpType::COALESCED, outputs,
               [out = dense(outputs), in = dense(inputs)](auto& c) {
                 for (std::size_t i = 0; i < in.size(); ++i) {
                   c.all_gather(in[i].data(), out[i].data(), in[i].count(), in[i].type());
                   out[i].give_back();
                 }
               });
}

CommBackend::WorkPtr CommBackend::gather(Lists& outputs, Tensors& inputs,
                                         const c10d::GatherOptions& options) {
  const int root = static_cast<int>(options.rootRank);
  const Tensors list = outputs.empty() ? Tensors() : outputs[0];
  if (getRank() == root) check_list(list);
  check_equal(list, only(inputs));
  return start(c10d::OpType::GATHER, list,
               [in = Dense(inputs[0]), list, root, like = inputs[0].options()](auto& c) {
                 const at::Tensor all = room_for(list, like);
                 c.gather(in.data(), all.data_ptr(), in.count(), in.type(), root);
                 split_into(list, all);
               });
}

CommBackend::WorkPtr CommBackend::scatter(Tensors& outputs, Lists& inputs,
                                          const c10d::ScatterOptions& options) {
  const int root = static_cast<int>(options.rootRank);
  const Dense out(only(outputs));
  const bool is_root = getRank() == root;
  if (is_root) {
    TORCH_CHECK(inputs.size() == 1, "one list of the root, not ", inputs.size());
    check_list(inputs[0]);
    check_equal(inputs[0], outputs[0]);
  }
  const at::Tensor in = is_root ? joined(inputs[0]) : at::Tensor();
  return start(c10d::OpType::SCATTER, outputs, [out, in, root](auto& c) {
    c.scatter(in.defined() ? in.data_ptr() : nullptr, out.data(), out.count(), out.type(), root);
    out.give_back();
  });
}

CommBackend::WorkPtr CommBackend::reduce_scatter(Tensors& outputs, Lists& inputs,
                                                 const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(inputs.size() == 1, "one list a rank, not ", inputs.size());
  check_list(inputs[0]);
  const Dense out(only(outputs));
  const auto counts = counts_of(inputs[0]);
  TORCH_CHECK(counts[static_cast<std::size_t>(getRank())] == out.count() &&
                  inputs[0][0].scalar_type() == outputs[0].scalar_type(),
              "the output must be like this rank's input");
  return start(
      c10d::OpType::REDUCE_SCATTER, outputs,
      [out, counts, in = Dense(joined(inputs[0])), reduce = to_reduce(options.reduceOp)](auto& c) {
        c.reduce_scatter_v(in.data(), out.data(), counts, in.type(), reduce);
        out.give_back();
      });
}

CommBackend::WorkPtr CommBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(outputs.size() == inputs.size(), "as many outputs as inputs");
  for (std::size_t i = 0; i < inputs.size(); ++i) check_sizes(inputs[i], outputs[i], getSize());
  return start(
      c10d::OpType::COALESCED, outputs,
      [out = dense(outputs), in = dense(inputs), reduce = to_reduce(options.reduceOp)](auto& c) {
        for (std::size_t i = 0; i < in.size(); ++i) {
          c.reduce_scatter(in[i].data(), out[i].data(), out[i].count(), out[i].type(), reduce);
          out[i].give_back();
        }
      });
}

CommBackend::WorkPtr CommBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                           const c10d::AllToAllOptions&) {
  check_list(outputs);
  check_list(inputs);
  TORCH_CHECK(inputs[0].scalar_type() == outputs[0].scalar_type(),
              "inputs and outputs of one type");
  return start(c10d::OpType::ALLTOALL, outputs,
               [list = outputs, receive = counts_of(outputs), send = counts_of(inputs),
                in = Dense(joined(inputs)), like = outputs[0].options()](auto& c) {
                 const at::Tensor all = room_for(list, like);
                 c.all_to_all_v(in.data(), send, all.data_ptr(), receive, in.type());
                 split_into(list, all);
               });
}

}  // namespace tutti::collective
