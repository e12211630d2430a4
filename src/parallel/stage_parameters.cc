#include "parallel/stage_parameters.h"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "base/error.h"

namespace tutti::parallel {
namespace {

constexpr std::int64_t alignment = 16;  // elements: one AVX-512 register of floats

std::int64_t aligned(std::int64_t size) { return (size + alignment - 1) / alignment * alignment; }

std::int64_t bytes_of(const torch::Tensor& t) {
  return t.defined() ? t.numel() * static_cast<std::int64_t>(t.element_size()) : 0;
}

torch::Tensor empty_flat(const std::shared_ptr<collective::Group>& group, std::int64_t size,
                         torch::ScalarType type) {
  return group ? group->empty_shared(size, type) : torch::zeros({size}, type);
}

}  // namespace

StageParameters::StageParameters(Options options, const std::vector<Named>& parameters,
                                 DataRanks ranks, const recipe::Optimizer& optimizer)
    : options_(std::move(options)), ranks_(std::move(ranks)) {
  const torch::NoGradGuard no_grad;
  lay_out(parameters);
  cut_buckets();
  make_gradients();
  make_optimizer(optimizer);
  install_hooks();
  publish();
}

StageParameters::~StageParameters() { drain(); }

void StageParameters::lay_out(const std::vector<Named>& parameters) {
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const Named& named : parameters) {
    if (!seen.insert(named.parameter.unsafeGetTensorImpl()).second) continue;
    if (named.parameter.scalar_type() == torch::kDouble) master_type_ = torch::kDouble;
    pieces_.push_back({named.name, named.parameter.sizes().vec(), total_, named.parameter.numel(),
                       named.parameter});
    input_first_.push_back(named.input_first);
    total_ += aligned(named.parameter.numel());
  }
  if (master_type_ == torch::kDouble) options_.compute_type = torch::kDouble;
  for (const UnitBucket& b : make_unit_buckets(
           pieces_, options_.zero == 3 ? options_.units : options_.alone, total_,
           options_.bucket_bytes, static_cast<std::int64_t>(torch::elementSize(master_type_)))) {
    BucketState state;
    state.bucket = b.bucket;
    state.unit = b.unit;
    buckets_.push_back(std::move(state));
  }
}

// Shard buffers hold the own parts of all buckets in the flat order.
void StageParameters::cut_buckets() {
  bucket_of_.resize(pieces_.size());
  std::int64_t shard_size = 0;
  for (std::size_t i = buckets_.size(); i-- > 0;) {
    BucketState& b = buckets_[i];
    b.cuts = cut_bucket(pieces_, b.bucket, ranks_.size());
    b.shard_offset = shard_size;
    shard_size += own_shard(b).size;
    for (std::size_t p = b.bucket.first_piece; p < b.bucket.end_piece; ++p) bucket_of_[p] = i;
  }
  master_ = torch::zeros({shard_size}, master_type_);
  const bool alias = ranks_.shards() == 1 && options_.compute_type == master_type_;
  for (BucketState& b : buckets_) {
    b.stays = alias || options_.zero < 3;
    b.compute = alias ? shard_view(master_, b)
                      : empty_flat(options_.zero < 3 ? ranks_.shard : nullptr, b.bucket.size,
                                   options_.compute_type);
    const torch::Tensor exact = torch::zeros({b.bucket.size}, master_type_);
    for (std::size_t p = b.bucket.first_piece; p < b.bucket.end_piece; ++p)
      exact.narrow(0, pieces_[p].offset - b.bucket.offset, pieces_[p].size)
          .copy_(pieces_[p].parameter.reshape({-1}));
    const Part mine = own_shard(b);
    shard_view(master_, b).copy_(exact.narrow(0, mine.begin - b.bucket.offset, mine.size));
    for (std::size_t p = b.bucket.first_piece; p < b.bucket.end_piece; ++p)
      pieces_[p].parameter.set_data(
          b.compute.narrow(0, pieces_[p].offset - b.bucket.offset, pieces_[p].size)
              .view(pieces_[p].shape));
  }
  if (options_.zero == 3)
    compute_shard_ = options_.compute_type == master_type_
                         ? master_
                         : torch::zeros({shard_size}, options_.compute_type);
}

std::vector<int> StageParameters::ids_of(int zero, int micro_batches, int ranks, int rank) {
  std::vector<int> ids;
  if (zero >= 2) {
    for (int id = rank; id < micro_batches; id += ranks) ids.push_back(id);
  } else {
    const comm::Range range =
        comm::even_ranges(micro_batches, ranks)[static_cast<std::size_t>(rank)];
    for (int id = range.begin; id < range.end; ++id) ids.push_back(id);
  }
  return ids;
}

void StageParameters::make_gradients() {
  const int n = options_.micro_batches;
  count_ = static_cast<int>(ids_of(options_.zero, n, ranks_.size(), ranks_.rank()).size());
  const comm::Arrival add_up{0, 0};
  if (options_.zero >= 2) {
    arrivals_ = options_.reproducible
                    ? comm::arrivals_of({0, n}, n)
                    : std::vector<comm::Arrival>(static_cast<std::size_t>(n), add_up);
    std::int64_t own = 0;
    for (BucketState& b : buckets_) {
      b.own_offset = own;
      own += own_part(b).size;
    }
    for (int i = 0; i < std::max(1, comm::slots_of(arrivals_)); ++i)
      slots_.push_back(torch::zeros({own}, master_type_));
    gradient_ = torch::zeros({master_.numel()}, master_type_);
    return;
  }
  const auto ranges = comm::even_ranges(n, ranks_.size());
  const comm::Range mine = ranges[static_cast<std::size_t>(ranks_.rank())];
  arrivals_ = options_.reproducible
                  ? comm::arrivals_of(mine, n)
                  : std::vector<comm::Arrival>(static_cast<std::size_t>(count_), add_up);
  plan_ = comm::plan_reduction(
      options_.reproducible ? ranges : comm::even_ranges(ranks_.size(), ranks_.size()));
  for (int i = 0; i < std::max(1, comm::slots_of(arrivals_)); ++i)
    slots_.push_back(empty_flat(ranks_.data, total_, master_type_));
  gradient_ = ranks_.shards() == 1 ? slots_[0] : torch::zeros({master_.numel()}, master_type_);
}

void StageParameters::make_optimizer(const recipe::Optimizer& recipe) {
  optim::Peers peers;
  peers.size = ranks_.shards();
  peers.rank = DataRanks::rank_of(ranks_.shard);
  peers.sizes.assign(pieces_.size(), {});
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    segments_.push_back({pieces_[p].name, 0, 0, pieces_[p].shape, input_first_[p], 0});
    peers.sizes[p].assign(static_cast<std::size_t>(peers.size), 0);
  }
  for (const BucketState& b : buckets_)
    for (int shard = 0; shard < peers.size; ++shard) {
      const Part held = shard_part(b, shard);
      for (const Fragment& f :
           fragments_of(pieces_, b.bucket, held.begin, held.begin + held.size)) {
        peers.sizes[f.piece][static_cast<std::size_t>(shard)] = f.size;
        if (shard != peers.rank) continue;
        optim::Segment& segment = segments_[f.piece];
        segment.offset = b.shard_offset + f.offset - held.begin;
        segment.size = f.size;
        segment.first = f.first;
      }
    }
  if (ranks_.shard)
    peers.exchange = [this](torch::Tensor in, torch::Tensor out, std::vector<std::int64_t> send,
                            std::vector<std::int64_t> recv) {
      ranks_.shard->all_to_all_v(std::move(in), std::move(out), std::move(send), std::move(recv));
    };
  if (!ranks_.shard && ranks_.data) {
    peers.size = ranks_.size();
    peers.rank = ranks_.rank();
    peers.broadcast = [this](torch::Tensor values, int root) {
      ranks_.data->broadcast(std::move(values), root);
    };
  }
  optimizer_ = optim::make_optimizer(recipe, segments_, master_, std::move(peers));
}

// Parameters that the sink does not serve tell us through autograd's own accumulation.
void StageParameters::install_hooks() {
  used_again_.resize(pieces_.size());
  for (std::size_t p = 0; p < pieces_.size(); ++p) {
    const torch::Tensor& parameter = pieces_[p].parameter;
    piece_of_[parameter.unsafeGetTensorImpl()] = p;
    auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
    using torch::autograd::variable_list;
    accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [this, p](const variable_list& outputs, const variable_list&) {
          if (collecting_) take_autograd_gradient(p);
          return outputs;
        }));
    accumulators_.push_back(std::move(accumulator));
  }
}

StageParameters::Part StageParameters::part(const BucketState& b, int data_rank) const {
  const auto at = static_cast<std::size_t>(data_rank);
  return {b.cuts[at], b.cuts[at + 1] - b.cuts[at]};
}

StageParameters::Part StageParameters::shard_part(const BucketState& b, int shard) const {
  const auto first = static_cast<std::size_t>(shard * ranks_.replicas());
  const auto end = first + static_cast<std::size_t>(ranks_.replicas());
  return {b.cuts[first], b.cuts[end] - b.cuts[first]};
}

std::vector<std::int64_t> StageParameters::part_sizes(const BucketState& b) const {
  std::vector<std::int64_t> sizes;
  for (int r = 0; r < ranks_.size(); ++r) sizes.push_back(part(b, r).size);
  return sizes;
}

std::vector<std::int64_t> StageParameters::shard_sizes(const BucketState& b) const {
  std::vector<std::int64_t> sizes;
  for (int s = 0; s < ranks_.shards(); ++s) sizes.push_back(shard_part(b, s).size);
  return sizes;
}

torch::Tensor StageParameters::shard_view(const torch::Tensor& flat, const BucketState& b) const {
  return flat.narrow(0, b.shard_offset, own_shard(b).size);
}

// Of the summed gradient, what this data rank alone answers for.
torch::Tensor StageParameters::own_gradient(const BucketState& b) const {
  const Part own = own_part(b);
  return gradient_.narrow(0, b.shard_offset + own.begin - own_shard(b).begin, own.size);
}

// --- a micro-batch's gradients

void StageParameters::begin_step() {
  const torch::NoGradGuard no_grad;
  drain();
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
  if (options_.zero <= 1)
    return FlatParameters::view(slots_[static_cast<std::size_t>(slot_)], piece);
  BucketState& b = buckets_[bucket_of_[p]];
  if (!b.gradient.defined()) b.gradient = torch::zeros({b.bucket.size}, master_type_);
  return b.gradient.narrow(0, piece.offset - b.bucket.offset, piece.size).view(piece.shape);
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
  const bool whole_first = options_.zero <= 1 && reduces_leaves();
  if (options_.overlap && uses_known_ && !whole_first && (last_ || options_.zero >= 2))
    reduce_complete();
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
  collecting_ = false;
  if (options_.zero <= 1 && reduces_leaves())
    options_.reduce_first({slots_[static_cast<std::size_t>(slot_)]}, 0, pieces_.size(), pieces_);
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
  else
    reduce_slots(b);
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
  if (options_.reduce_first && !reduces_leaves() && !nodes.empty())
    options_.reduce_first(nodes, b.bucket.first_piece, b.bucket.end_piece, pieces_);
  if (!ranks_.data) return;
  b.work =
      ranks_.shards() == 1
          ? ranks_.data->tree_all_reduce_async(nodes, in_bucket(slots_[0]), plan_)
          : ranks_.data->tree_reduce_scatter_async(nodes, own_gradient(b), part_sizes(b), plan_);
}

int StageParameters::leaves_in_round() const {
  return std::clamp(options_.micro_batches - index_ * ranks_.size(), 0, ranks_.size());
}

// The own part of each rank's gradient; ranks that have no micro-batch in this round send none.
void StageParameters::exchange(BucketState& b, bool has_gradient) {
  if (options_.reduce_first && has_gradient)
    options_.reduce_first({b.gradient}, b.bucket.first_piece, b.bucket.end_piece, pieces_);
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
  if (b.work) b.work->wait();
  b.work.reset();
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
      if (b.work) b.work->wait();
      b.work.reset();
    }
  }
  uses_known_ = true;
  if (ranks_.shards() > 1 || options_.zero >= 2) share_own_gradients();
}

void StageParameters::share_own_gradients() {
  if (!ranks_.replica) return;
  for (BucketState& b : buckets_) {
    std::vector<std::int64_t> sizes;
    const int first = DataRanks::rank_of(ranks_.shard) * ranks_.replicas();
    for (int r = 0; r < ranks_.replicas(); ++r) sizes.push_back(part(b, first + r).size);
    b.work = ranks_.replica->all_gather_v_async(own_gradient(b), shard_view(gradient_, b), sizes);
  }
  for (BucketState& b : buckets_) {
    b.work->wait();
    b.work.reset();
  }
}

// --- norm and update

void StageParameters::write_squares(const std::vector<double*>& blocks) const {
  for (const BucketState& b : buckets_) {
    const Part own = own_part(b);
    const torch::Tensor gradient = own_gradient(b);
    for (const Fragment& f : fragments_of(pieces_, b.bucket, own.begin, own.begin + own.size))
      if (blocks[f.piece])
        optim::block_squares(gradient.narrow(0, f.offset - own.begin, f.size),
                             blocks[f.piece] + f.first / optim::norm_block);
  }
}

torch::Tensor StageParameters::own_gradient(const std::string& alone) const {
  const auto at = std::find_if(buckets_.begin(), buckets_.end(), [&](const BucketState& b) {
    return pieces_[b.bucket.first_piece].name == alone;
  });
  TUTTI_ASSERT(at != buckets_.end(), alone, " has no bucket of its own");
  return own_gradient(*at);
}

std::string StageParameters::first_non_finite() const {
  return optim::first_non_finite(gradient_, segments_);
}

void StageParameters::update(std::int64_t step, double lr, double scale) {
  const torch::NoGradGuard no_grad;
  optimizer_->step(master_, gradient_, step, lr, scale);
  publish();
}

void StageParameters::restored() {
  const torch::NoGradGuard no_grad;
  publish();
}

// The master's values to where the module sees them.
void StageParameters::publish() {
  if (options_.zero == 3) {
    if (!compute_shard_.is_same(master_)) compute_shard_.copy_(master_);
    release_all();
    return;
  }
  for (BucketState& b : buckets_) {
    const Part mine = own_shard(b);
    torch::Tensor seen = b.compute.narrow(0, mine.begin - b.bucket.offset, mine.size);
    if (!seen.is_alias_of(master_)) seen.copy_(shard_view(master_, b));
    if (ranks_.shards() > 1)
      b.work = ranks_.shard->all_gather_v_async(seen, b.compute, shard_sizes(b));
  }
  for (BucketState& b : buckets_) {
    if (b.work) b.work->wait();
    b.work.reset();
  }
}

void StageParameters::end_step() {
  if (options_.zero == 3) release_all();
}

// --- zero 3: storages that come and go

void StageParameters::start_gather(BucketState& b) {
  if (b.whole || b.gathering) return;
  const torch::NoGradGuard no_grad;
  auto* storage = b.compute.storage().unsafeGetStorageImpl();
  const auto bytes = static_cast<std::size_t>(bytes_of(b.compute));
  storage->set_data_ptr_noswap(at::getCPUAllocator()->allocate(bytes));
  storage->set_nbytes(bytes);
  const torch::Tensor mine = shard_view(compute_shard_, b);
  if (ranks_.shards() > 1) {
    b.gathering = ranks_.shard->all_gather_v_async(mine, b.compute, shard_sizes(b));
  } else {
    b.compute.copy_(mine);
    b.whole = true;
  }
}

void StageParameters::gather(BucketState& b) {
  start_gather(b);
  if (!b.gathering) return;
  b.gathering->wait();
  b.gathering.reset();
  b.whole = true;
}

void StageParameters::release(BucketState& b) {
  if (b.gathering) gather(b);
  if (!b.whole || b.stays) return;
  auto* storage = b.compute.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr());
  storage->set_nbytes(0);
  b.whole = false;
}

StageParameters::BucketState* StageParameters::bucket_of_unit(int unit) {
  for (BucketState& b : buckets_)
    if (b.unit == unit) return &b;
  return nullptr;
}

void StageParameters::unit(int unit, Use use) {
  if (options_.zero < 3) return;
  BucketState* b = bucket_of_unit(unit);
  if (!b) return;
  const bool begins = use == Use::forward_begin || use == Use::backward_begin;
  if (begins) {
    gather(*b);
    const int next = use == Use::forward_begin ? unit + 1 : unit - 1;
    if (BucketState* soon = options_.prefetch && next >= 0 ? bucket_of_unit(next) : nullptr)
      start_gather(*soon);
  } else if (use == Use::backward_end || options_.reshard_after_forward) {
    release(*b);
  }
}

void StageParameters::idle_pass(bool with_backward) {
  if (options_.zero < 3) return;
  const int units = static_cast<int>(options_.units.size());
  for (int u = 0; u < units; ++u) {
    unit(u, Use::forward_begin);
    unit(u, Use::forward_end);
  }
  for (int u = units; with_backward && u-- > 0;) {
    unit(u, Use::backward_begin);
    unit(u, Use::backward_end);
  }
}

void StageParameters::gather_all() {
  for (BucketState& b : buckets_) start_gather(b);
  for (BucketState& b : buckets_) gather(b);
}

void StageParameters::release_all() {
  if (options_.zero < 3) return;
  for (BucketState& b : buckets_) release(b);
}

// --- state

std::vector<StageParameters::Held> StageParameters::state() {
  std::vector<Held> all;
  for (std::size_t p = 0; p < pieces_.size(); ++p)
    all.push_back({"model/" + pieces_[p].name, p, segments_[p].first,
                   master_.narrow(0, segments_[p].offset, segments_[p].size)});
  for (optim::NamedTensor& tensor : optimizer_->state())
    all.push_back({std::move(tensor.name), tensor.segment, segments_[tensor.segment].first,
                   std::move(tensor.value)});
  return all;
}

StageParameters::Memory StageParameters::memory() const {
  Memory memory;
  memory.parameters = bytes_of(compute_shard_);
  for (const BucketState& b : buckets_)
    if (b.whole && !(compute_shard_.defined() && b.compute.is_alias_of(compute_shard_)))
      memory.parameters += bytes_of(b.compute);
  for (const torch::Tensor& slot : slots_) memory.gradients += bytes_of(slot);
  if (!gradient_.is_alias_of(slots_[0])) memory.gradients += bytes_of(gradient_);
  const bool alias = compute_shard_.is_same(master_) || buckets_[0].compute.is_alias_of(master_);
  memory.optimizer = alias ? 0 : bytes_of(master_);
  for (const optim::NamedTensor& tensor : optimizer_->state())
    memory.optimizer += bytes_of(tensor.value);
  return memory;
}

}  // namespace tutti::parallel
