#include "parallel/context.h"

#include <cmath>

#include "base/error.h"
#include "base/fault.h"
#include "mesh/placement.h"
#include "nn/plain.h"
#include "nn/record.h"

namespace tutti::parallel {
namespace {

using collective::Group;

torch::Tensor range(std::int64_t begin, std::int64_t size) {
  return torch::arange(begin, begin + size, torch::kLong);
}

// Chunks i and 2n - 1 - i of 2n.
torch::Tensor zig_zag(std::int64_t sequence, int ranks, int index) {
  if (ranks == 1) return range(0, sequence);
  const Slice low = slice_of(sequence, 2 * ranks, index);
  const Slice high = slice_of(sequence, 2 * ranks, 2 * ranks - 1 - index);
  return torch::cat({range(low.begin, low.size), range(high.begin, high.size)});
}

torch::Tensor compute_type(const torch::Tensor& x) {
  return x.scalar_type() == torch::kDouble ? x : x.to(torch::kFloat);
}

torch::Tensor each_group(const torch::Tensor& x, std::int64_t group) {
  return group == 1 ? x : x.repeat_interleave(group, 1);
}

// One block of queries with one block of keys.
struct Block {
  torch::Tensor query, key, value;  // [batch, heads, q or k, dim]; fp32 or fp64; all query heads
  torch::Tensor seen;               // bool [1 or batch, 1, q, k]
  double scale = 1;

  torch::Tensor scores() const {
    return torch::matmul(query, key.transpose(2, 3)).mul_(scale).masked_fill_(~seen, -INFINITY);
  }
};

torch::Tensor seen(const torch::Tensor& queries, const torch::Tensor& keys,
                   const torch::Tensor& first_key) {
  torch::Tensor mask = (keys <= queries.unsqueeze(1)).view({1, 1, queries.size(0), keys.size(0)});
  if (first_key.defined()) mask = mask & (keys >= first_key.view({first_key.size(0), 1, -1, 1}));
  return mask;
}

// Merges a block's result into (out, lse): both are softmax-weighted means with their log weights.
void merge(torch::Tensor& out, torch::Tensor& lse, const Block& block) {
  const torch::Tensor scores = block.scores();
  const torch::Tensor block_lse = torch::logsumexp(scores, -1, true);
  const torch::Tensor total = torch::logaddexp(lse, block_lse);
  const torch::Tensor safe = total.masked_fill(total == -INFINITY, 0);
  if (!fault("ring-rescale")) out = out * (lse - safe).exp();
  out = out + torch::matmul((scores - safe).exp(), block.value);
  lse = total;
}

// A tensor of each of the ring's ranks in turn, this rank's first; the next is under way while one
// is used.
class Ring {
 public:
  Ring(Group& group, std::vector<std::int64_t> lengths) : group_(group), lengths_(lengths) {}

  int owner(int turn) const { return (group_.rank() - turn + group_.size()) % group_.size(); }
  // Sends x [2, batch, heads, length, dim] on and starts to receive the next.
  torch::Tensor start(const torch::Tensor& x, int next_owner) {
    const int size = group_.size(), rank = group_.rank();
    std::vector<std::int64_t> shape = x.sizes().vec();
    shape[3] = lengths_[static_cast<std::size_t>(next_owner)];
    torch::Tensor next = torch::empty(shape, x.options());
    sent_ = x.contiguous();
    sending_ = group_.send_async(sent_, (rank + 1) % size);
    receiving_ = group_.recv_async(next, (rank + size - 1) % size);
    return next;
  }
  void finish() {
    receiving_->wait();
    sending_->wait();
  }

 private:
  Group& group_;
  std::vector<std::int64_t> lengths_;
  torch::Tensor sent_;
  std::shared_ptr<collective::Work> sending_, receiving_;
};

}  // namespace

torch::Tensor context_positions(std::int64_t sequence, const ContextGrid& grid, int index) {
  const torch::Tensor ring = zig_zag(sequence, grid.ring, index / grid.ulysses);
  const Slice part = slice_of(ring.size(0), grid.ulysses, index % grid.ulysses);
  return ring.narrow(0, part.begin, part.size);
}

ContextAttention::ContextAttention(std::shared_ptr<Group> ring, std::shared_ptr<Group> ulysses,
                                   bool gather)
    : ring_(std::move(ring)), ulysses_(std::move(ulysses)), gather_(gather) {
  if (ring_) grid_.ring = ring_->size();
  if (ulysses_) grid_.ulysses = ulysses_->size();
  index_ = (ring_ ? ring_->rank() * grid_.ulysses : 0) + (ulysses_ ? ulysses_->rank() : 0);
}

torch::Tensor ContextAttention::ring_positions(std::int64_t sequence, int ring_index) const {
  return zig_zag(sequence, grid_.ring, ring_index);
}

// [batch, heads, tokens here, dim] <-> [batch, heads / ulysses, tokens of the group, dim]
torch::Tensor ContextAttention::exchanged(const torch::Tensor& x, std::int64_t sequence,
                                          bool to_heads) const {
  const int n = ulysses_->size(), rank = ulysses_->rank();
  const std::int64_t tokens = ring_positions(sequence, ring_ ? ring_->rank() : 0).size(0);
  const std::int64_t heads = to_heads ? x.size(1) / n : x.size(1);
  std::vector<torch::Tensor> parts, rows;
  std::vector<std::int64_t> send, receive;
  const std::int64_t mine = slice_of(tokens, n, rank).size;
  for (int r = 0; r < n; ++r) {
    const Slice slice = slice_of(tokens, n, r);
    const torch::Tensor part =
        to_heads ? x.narrow(1, (fault("ulysses-heads") ? n - 1 - r : r) * heads, heads)
                 : x.narrow(2, slice.begin, slice.size);
    parts.push_back(part.reshape({-1}));
    send.push_back(part.numel());
    const std::int64_t length = to_heads ? slice.size : mine;
    receive.push_back(x.size(0) * heads * length * x.size(3));
  }
  const torch::Tensor in = torch::cat(parts);
  std::int64_t total = 0;
  for (const std::int64_t count : receive) total += count;
  const torch::Tensor out = torch::empty({total}, x.options());
  ulysses_->all_to_all_v(in, out, send, receive);
  std::int64_t at = 0;
  for (int r = 0; r < n; ++r) {
    const std::int64_t count = receive[static_cast<std::size_t>(r)];
    const std::int64_t length = to_heads ? slice_of(tokens, n, r).size : mine;
    rows.push_back(out.narrow(0, at, count).view({x.size(0), heads, length, x.size(3)}));
    at += count;
  }
  return torch::cat(rows, to_heads ? 2 : 1);
}

torch::Tensor ContextAttention::moved(const torch::Tensor& x, std::int64_t sequence,
                                      bool to_heads) const {
  if (!ulysses_) return x;
  torch::Tensor y;
  {
    const torch::NoGradGuard no_grad;
    y = exchanged(x.detach(), sequence, to_heads);
  }
  if (nn::wants_gradient({x}))
    nn::record({y}, {x}, "all_to_all", [this, sequence, to_heads](nn::Tensors&& g) -> nn::Tensors {
      return {exchanged(g[0], sequence, !to_heads)};
    });
  return y;
}

torch::Tensor ContextAttention::around_ring(const torch::Tensor& query, const torch::Tensor& key,
                                            const torch::Tensor& value,
                                            const torch::Tensor& first_key,
                                            std::int64_t sequence) const {
  const int ranks = grid_.ring;
  std::vector<torch::Tensor> positions;
  std::vector<std::int64_t> lengths;
  for (int r = 0; r < ranks; ++r) {
    positions.push_back(ring_positions(sequence, r));
    lengths.push_back(positions.back().size(0));
  }
  const torch::Tensor& mine = positions[static_cast<std::size_t>(ring_->rank())];
  const std::int64_t group = query.size(1) / key.size(1);
  const double scale = 1 / std::sqrt(static_cast<double>(query.size(3)));
  const auto block = [=](const torch::Tensor& q, const torch::Tensor& pair,
                         const torch::Tensor& keys) {
    const bool crosses = fault("document-edge") && keys.data_ptr() != mine.data_ptr();
    return Block{q, each_group(pair[0], group), each_group(pair[1], group),
                 seen(mine, keys, crosses ? torch::Tensor() : first_key), scale};
  };
  const bool history = nn::wants_gradient({query, key, value});
  torch::Tensor out, lse;
  const torch::Tensor q = compute_type(query.detach());
  const torch::Tensor own =
      torch::stack({compute_type(key.detach()), compute_type(value.detach())});
  {
    const torch::NoGradGuard no_grad;
    Ring ring(*ring_, lengths);
    out = torch::zeros_like(q);
    lse = torch::full({q.size(0), q.size(1), q.size(2), 1}, -INFINITY, q.options());
    torch::Tensor pair = own;
    for (int turn = 0; turn < ranks; ++turn) {
      const bool more = turn + 1 < ranks;
      torch::Tensor next;
      if (more) next = ring.start(pair, ring.owner(turn + 1));
      merge(out, lse, block(q, pair, positions[static_cast<std::size_t>(ring.owner(turn))]));
      if (more) ring.finish();
      pair = next;
    }
  }
  torch::Tensor result = out.to(query.scalar_type());
  if (result.is_same(out)) result = out.variable_data();
  if (!history) return result;
  // Keys and values go round once more, and their gradients with them, one rank ahead of home.
  nn::record(
      {result}, {query, key, value}, "ring_attention",
      [=, this](nn::Tensors&& gradients) -> nn::Tensors {
        const torch::Tensor d_out = compute_type(gradients[0]);
        const torch::Tensor delta = (d_out * out).sum(-1, true);
        const torch::Tensor safe = lse.masked_fill(lse == -INFINITY, 0);
        torch::Tensor d_query = torch::zeros_like(q), pair = own, d_pair = torch::zeros_like(own);
        Ring ring(*ring_, lengths), gradient_ring(*ring_, lengths);
        for (int turn = 0; turn < ranks; ++turn) {
          const bool more = turn + 1 < ranks;
          torch::Tensor next;
          const int owner = ring.owner(turn);
          if (more) next = ring.start(pair, ring.owner(turn + 1));
          const Block b = block(q, pair, positions[static_cast<std::size_t>(owner)]);
          const torch::Tensor p = (b.scores() - safe).exp();
          const torch::Tensor dp = torch::matmul(d_out, b.value.transpose(2, 3));
          const torch::Tensor ds = p * (dp - delta) * scale;
          d_query += torch::matmul(ds, b.key);
          const auto to_groups = [&](const torch::Tensor& x) {
            return group == 1
                       ? x
                       : x.view({x.size(0), x.size(1) / group, group, x.size(2), x.size(3)}).sum(2);
          };
          d_pair[0] += to_groups(torch::matmul(ds.transpose(2, 3), q));
          d_pair[1] += to_groups(torch::matmul(p.transpose(2, 3), d_out));
          if (more) ring.finish();
          pair = next;
          // After the last turn this brings each gradient home.
          if (!more && fault("ring-home")) break;
          torch::Tensor coming = gradient_ring.start(d_pair, ring.owner(turn + 1));
          gradient_ring.finish();
          d_pair = coming;
        }
        return {d_query.to(query.scalar_type()), d_pair[0].to(key.scalar_type()),
                d_pair[1].to(value.scalar_type())};
      });
  return result;
}

// [batch, heads, tokens here, dim] -> of all tokens in order; the gradient is summed over the ring.
torch::Tensor ContextAttention::all_keys(const torch::Tensor& x, std::int64_t sequence) const {
  if (!ring_) return x;
  const torch::Tensor mine = ring_positions(sequence, ring_->rank());
  const auto expand = [=](const torch::Tensor& local) {
    torch::Tensor all =
        torch::zeros({local.size(0), local.size(1), sequence, local.size(3)}, local.options());
    all.index_copy_(2, mine, local);
    return all;
  };
  torch::Tensor y;
  const bool history = nn::wants_gradient({x});
  {
    const torch::NoGradGuard no_grad;
    y = expand(x.detach());
    ring_->all_reduce(y);  // of zeros elsewhere: exact
  }
  if (history)
    nn::record({y}, {x}, "all_keys", [this, mine](nn::Tensors&& g) -> nn::Tensors {
      torch::Tensor sum = g[0].clone(at::MemoryFormat::Contiguous);
      if (!fault("gather-gradient")) ring_->all_reduce(sum);
      return {sum.index_select(2, mine)};
    });
  return y;
}

torch::Tensor ContextAttention::with_all_keys(const torch::Tensor& query, const torch::Tensor& key,
                                              const torch::Tensor& value, const Call& call,
                                              const torch::Tensor& first_key) const {
  const std::int64_t group = query.size(1) / key.size(1);
  const torch::Tensor mine = ring_positions(call.sequence, ring_ ? ring_->rank() : 0);
  const torch::Tensor keys = each_group(all_keys(key, call.sequence), group);
  const torch::Tensor values = each_group(all_keys(value, call.sequence), group);
  torch::Tensor scores =
      torch::matmul(query, keys.transpose(2, 3)) / std::sqrt(static_cast<double>(query.size(3)));
  const torch::Tensor mask = seen(mine, range(0, call.sequence), first_key);
  scores = compute_type(scores).masked_fill(~mask, -INFINITY);
  torch::Tensor p = torch::softmax(scores, -1).to(value.scalar_type());
  if (call.keep.defined()) p = p * call.keep.to(p.scalar_type());
  return torch::matmul(p, values);
}

torch::Tensor ContextAttention::run(const Call& call) const {
  const nn::Heads& h = call.heads;
  nn::Rope rope = call.rope;
  if (fault("rope-offset") && rope.cosine.defined())
    rope = {rope.cosine.roll(1, 0), rope.sine.roll(1, 0)};
  const auto qkv = nn::plain::split_and_rotate(call.qkv, h, rope);
  torch::Tensor first_key = call.first_key;
  if (ulysses_ && first_key.defined())
    first_key =
        exchanged(first_key.view({h.batch, 1, h.sequence, 1}).repeat({1, grid_.ulysses, 1, 1}),
                  call.sequence, true)
            .view({h.batch, -1});
  Call whole = call;
  if (ulysses_ && call.keep.defined()) {
    // Of its own heads' rows of the whole group: [batch, heads here, tokens of the group,
    // sequence].
    whole.keep = exchanged(call.keep, call.sequence, true);
  }
  const torch::Tensor query = moved(qkv.query, call.sequence, true);
  const torch::Tensor key = moved(qkv.key, call.sequence, true);
  const torch::Tensor value = moved(qkv.value, call.sequence, true);
  const bool circulate = ring_ && !gather_ && !call.keep.defined();
  const torch::Tensor out = circulate ? around_ring(query, key, value, first_key, call.sequence)
                                      : with_all_keys(query, key, value, whole, first_key);
  return moved(out, call.sequence, false).transpose(1, 2).reshape({h.tokens(), h.heads * h.dim});
}

}  // namespace tutti::parallel
