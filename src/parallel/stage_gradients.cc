// StageParameters, while a step's micro-batches run: gradients are collected and summed over ranks.
#include <algorithm>

#include "base/error.h"
#include "base/fault.h"
#include "parallel/stage_parameters.h"

namespace tutti::parallel {

// --- a micro-batch's gradients

void StageParameters::begin_step(std::int64_t updates, double loss_scale) {
  const torch::NoGradGuard no_grad;
  drain();
  compressing_ = reducer_ && updates >= options_.compress.after;
  loss_scale_ = loss_scale;
  if (options_.zero == 3)
    for (BucketState& b : buckets_)
      if (b.unit < 0) gather(b);
}

// After a step that threw: nothing of it is under way any more.
void StageParameters::drain() {
  collecting_ = false;
  for (BucketState& b : buckets_)
    for (auto* work : {&b.work, &b.gathering}) try {
        if (auto one = std::exchange(*work, nullptr)) one->wait();
      } catch (const std::exception&) {  // it was reported where it mattered
      }
}

void StageParameters::begin(int index) {
  index_ = index;
  last_ = index + 1 == count_;
  collecting_ = true;
  if (options_.zero <= 1) {
    slot_ = arrivals_[static_cast<std::size_t>(index)].slot;
    merges_ = arrivals_[static_cast<std::size_t>(index)].merges;
  }
  is_ready_.assign(pieces_.size(), false);
  is_written_ = is_ready_;
  next_bucket_ = 0;
  for (BucketState& b : buckets_) b.missing = b.bucket.end_piece - b.bucket.first_piece;
}

torch::Tensor StageParameters::gradient_view(std::size_t p) {
  const Piece& piece = pieces_[p];
  if (options_.zero <= 1) return view_of(slots_[static_cast<std::size_t>(slot_)], piece);
  BucketState& b = buckets_[bucket_of_[p]];
  if (!b.gradient.defined()) b.gradient = torch::zeros({b.bucket.size}, master_type_);
  return b.gradient.narrow(0, piece.offset - b.bucket.offset, piece.size).view(piece.shape);
}

void StageParameters::wait_for(BucketState& b) {
  if (const auto work = std::exchange(b.work, nullptr)) work->wait();
}

// A parameter that was whole already and comes again has several uses. That is learnt in the first
// step, which reduces nothing before all of backward is done.
nn::GradSink::Target StageParameters::target_of(std::size_t p) {
  if (is_ready_[p]) {
    if (bucket_of_[p] < next_bucket_)
      throw WorldError(str(pieces_[p].name,
                           " was used more than once in a micro-batch for the first time since the "
                           "first step, after its gradient had been sent; set parallel.overlap: "
                           "off"));
    used_again_[p] = true;
  }
  const bool adds_up = options_.zero <= 1 && !options_.reproducible && index_ > 0;
  return {gradient_view(p), adds_up || is_written_[p]};
}

nn::GradSink::Target StageParameters::target(const torch::Tensor& parameter) {
  const auto found = piece_of_.find(parameter.unsafeGetTensorImpl());
  return found == piece_of_.end() ? Target{} : target_of(found->second);
}

void StageParameters::ready(const torch::Tensor& parameter) {
  const auto found = piece_of_.find(parameter.unsafeGetTensorImpl());
  if (found != piece_of_.end()) written(found->second);
}

void StageParameters::take_autograd_gradient(std::size_t p) {
  torch::Tensor& gradient = pieces_[p].parameter.mutable_grad();
  if (!gradient.defined()) return;
  const torch::NoGradGuard no_grad;
  const Target place = target_of(p);
  if (place.accumulate)
    place.grad.add_(gradient);
  else
    place.grad.copy_(gradient);
  gradient.reset();
  written(p);
}

void StageParameters::written(std::size_t p) {
  is_written_[p] = true;
  if (!used_again_[p]) mark_ready(p);
}

void StageParameters::mark_ready(std::size_t p) {
  if (is_ready_[p]) return;
  is_ready_[p] = true;
  --buckets_[bucket_of_[p]].missing;
  const bool sends = reduces_leaves() ? options_.tokens != nullptr : last_ || options_.zero >= 2;
  if (options_.overlap && uses_known_ && sends) reduce_complete();
}

// In the order of the buckets, whatever order they were completed in: a rank whose micro-batch left
// a parameter out completes them in another order than its peers.
void StageParameters::reduce_complete() {
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].missing == 0)
    reduce(buckets_[next_bucket_++]);
}

// Parameters that this micro-batch did not use have gradient zero.
void StageParameters::finish_pieces() {
  for (std::size_t p = 0; p < is_ready_.size(); ++p) {
    if (is_ready_[p]) continue;
    take_autograd_gradient(p);
    if (!is_written_[p] && !target_of(p).accumulate) gradient_view(p).zero_();
    mark_ready(p);
  }
}

void StageParameters::merge(std::vector<torch::Tensor>& slots, int slot, int merges,
                            std::int64_t offset, std::int64_t size) {
  for (; merges > 0; --merges, --slot)
    slots[static_cast<std::size_t>(slot - 1)]
        .narrow(0, offset, size)
        .add_(slots[static_cast<std::size_t>(slot)].narrow(0, offset, size));
}

void StageParameters::end() {
  const torch::NoGradGuard no_grad;
  finish_pieces();
  if (reduces_leaves()) finish_leaves();
  collecting_ = false;
  if (fault("last-micro-batch") && last_ && ranks_.data && options_.zero <= 1)
    slots_[static_cast<std::size_t>(slot_)].zero_();
  if (options_.zero >= 2) {
    reduce_rest();
    for (BucketState& b : buckets_) add_incoming(b);
  } else if (!last_) {
    merge(slots_, slot_, merges_, 0, total_);
  }
}

void StageParameters::reduce_rest() {
  while (next_bucket_ < buckets_.size()) reduce(buckets_[next_bucket_++]);
}

// --- sums over ranks

void StageParameters::reduce(BucketState& b) {
  const torch::NoGradGuard no_grad;
  if (options_.zero >= 2)
    exchange(b, true);
  else if (collecting_ && reduces_leaves())
    reduce_leaf(b);
  else
    reduce_slots(b);
}

void StageParameters::reduce_leaf(BucketState& b) {
  if (!options_.tokens || fault("context-gradient")) return;
  b.work = options_.tokens->all_reduce_async(
      slots_[static_cast<std::size_t>(slot_)].narrow(0, b.bucket.offset, b.bucket.size));
}

// The buckets are for the micro-batches' sum to go through again.
void StageParameters::finish_leaves() {
  reduce_rest();
  next_bucket_ = 0;
  for (BucketState& b : buckets_) wait_for(b);
  if (options_.reduce_first)
    options_.reduce_first({slots_[static_cast<std::size_t>(slot_)]}, 0, pieces_.size(), pieces_);
}

// A bucket of some micro-batches, over the axes that come before data.
void StageParameters::sum_first(const std::vector<torch::Tensor>& flats, const Bucket& bucket) {
  if (flats.empty()) return;
  std::vector<std::shared_ptr<collective::Work>> works;
  if (options_.tokens && !fault("context-gradient"))
    for (const torch::Tensor& flat : flats)
      works.push_back(options_.tokens->all_reduce_async(flat));
  for (const auto& work : works) work->wait();
  if (options_.reduce_first)
    options_.reduce_first(flats, bucket.first_piece, bucket.end_piece, pieces_);
}

void StageParameters::reduce_slots(BucketState& b) {
  const auto in_bucket = [&](const torch::Tensor& flat) {
    return flat.narrow(0, b.bucket.offset, b.bucket.size);
  };
  if (count_ > 0)
    merge(slots_, slot_, merges_, b.bucket.offset, b.bucket.size);
  else if (!options_.reproducible)
    in_bucket(slots_[0]).zero_();
  std::vector<torch::Tensor> nodes;
  for (int i = 0; i < plan_.nodes_of(ranks_.rank()); ++i)
    nodes.push_back(in_bucket(slots_[static_cast<std::size_t>(i)]));
  if (!reduces_leaves()) sum_first(nodes, b.bucket);
  if (!ranks_.data || fault("data-gradient")) return;
  if (compresses(b)) return start_compressed(b);
  b.work =
      ranks_.shards() == 1
          ? ranks_.data->tree_all_reduce_async(nodes, in_bucket(slots_[0]), plan_)
          : ranks_.data->tree_reduce_scatter_async(nodes, own_gradient(b), part_sizes(b), plan_);
}

// What is not sent is kept without the loss's scale, which may be another in the next step.
void StageParameters::start_compressed(BucketState& b) {
  const torch::Tensor values = slots_[0].narrow(0, b.bucket.offset, b.bucket.size);
  if (loss_scale_ != 1) torch::Tensor(values).div_(loss_scale_);
  b.work = reducer_->start(static_cast<std::size_t>(&b - buckets_.data()), values);
}

void StageParameters::finish_compressed(BucketState& b) {
  torch::Tensor values = slots_[0].narrow(0, b.bucket.offset, b.bucket.size);
  if (loss_scale_ != 1) values.mul_(loss_scale_);
  if (ranks_.shards() == 1) return;
  const Part own = own_part(b);
  own_gradient(b).copy_(slots_[0].narrow(0, own.begin, own.size));
}

int StageParameters::leaves_in_round() const {
  return std::clamp(options_.micro_batches - index_ * ranks_.size(), 0, ranks_.size());
}

// The own part of each rank's gradient; ranks that have no micro-batch in this round send none.
void StageParameters::exchange(BucketState& b, bool has_gradient) {
  if (has_gradient) sum_first({b.gradient}, b.bucket);
  if (!ranks_.data) {
    b.incoming = std::exchange(b.gradient, torch::Tensor());
    return;
  }
  const auto own = own_part(b).size;
  std::vector<std::int64_t> send(static_cast<std::size_t>(ranks_.size()), 0), recv = send;
  if (has_gradient) send = part_sizes(b);
  std::fill_n(recv.begin(), leaves_in_round(), own);
  b.incoming = torch::empty({own * leaves_in_round()}, master_type_);
  if (!has_gradient) b.gradient = torch::empty({0}, master_type_);
  b.work = ranks_.data->all_to_all_v_async(b.gradient, b.incoming, send, recv);
}

// Consecutive ids, in their order, along the tree.
void StageParameters::add_incoming(BucketState& b) {
  wait_for(b);
  const std::int64_t own = own_part(b).size;
  for (int r = 0; r < leaves_in_round(); ++r) {
    const auto id = static_cast<std::size_t>(index_ * ranks_.size() + r);
    const comm::Arrival arrival = arrivals_[id];
    torch::Tensor place =
        slots_[static_cast<std::size_t>(arrival.slot)].narrow(0, b.own_offset, own);
    const torch::Tensor leaf = b.incoming.narrow(0, r * own, own);
    if (options_.reproducible || id == 0)
      place.copy_(leaf);
    else
      place.add_(leaf);
    merge(slots_, arrival.slot, arrival.merges, b.own_offset, own);
  }
  b.incoming = b.gradient = torch::Tensor();
}

void StageParameters::finish() {
  const torch::NoGradGuard no_grad;
  if (options_.zero >= 2) {
    const int rounds = (options_.micro_batches + ranks_.size() - 1) / ranks_.size();
    for (index_ = count_; index_ < rounds; ++index_) {  // rounds in which this rank has nothing
      idle_pass(true);
      for (BucketState& b : buckets_) exchange(b, false);
      for (BucketState& b : buckets_) add_incoming(b);
    }
    for (const BucketState& b : buckets_)
      own_gradient(b).copy_(slots_[0].narrow(0, b.own_offset, own_part(b).size));
  } else {
    if (count_ == 0) next_bucket_ = 0;
    reduce_rest();
    for (BucketState& b : buckets_) {
      wait_for(b);
      if (compresses(b)) finish_compressed(b);
    }
  }
  uses_known_ = true;
  if (fault("shard-boundary") && ranks_.shards() > 1) gradient_.copy_(gradient_.roll(1));
  if (ranks_.shards() == 1 && options_.zero < 2) return;
  for (BucketState& b : buckets_) start_sharing(b);
  for (BucketState& b : buckets_) wait_for(b);
}

// From the rank that answers for a part to the replicas of its shard.
void StageParameters::start_sharing(BucketState& b) {
  if (!ranks_.replica) return;
  std::vector<std::int64_t> sizes;
  const int first = DataRanks::rank_of(ranks_.shard) * ranks_.replicas();
  for (int r = 0; r < ranks_.replicas(); ++r) sizes.push_back(part(b, first + r).size);
  b.work = ranks_.replica->all_gather_v_async(own_gradient(b), shard_view(gradient_, b), sizes);
}

void StageParameters::share_own_gradient(const std::string& alone) {
  BucketState& b = bucket_of(alone);
  start_sharing(b);
  wait_for(b);
}

}  // namespace tutti::parallel
