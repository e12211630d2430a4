#include "parallel/stage_parameters.h"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "base/error.h"
#include "base/fault.h"

namespace tutti::parallel {
namespace {

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
  make_reducer();
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
                       named.parameter, named.weight});
    input_first_.push_back(named.input_first);
    runs_.push_back(named.runs);
    total_ += aligned(named.parameter.numel());
  }
  if (master_type_ == torch::kDouble) options_.compute_type = torch::kDouble;
  std::vector<std::string> apart = options_.zero == 3 ? options_.units : std::vector<std::string>();
  const int units = static_cast<int>(apart.size());
  apart.insert(apart.end(), options_.alone.begin(), options_.alone.end());
  for (const UnitBucket& b :
       make_buckets(pieces_, apart, total_, options_.bucket_bytes,
                    static_cast<std::int64_t>(torch::elementSize(master_type_)))) {
    BucketState state;
    state.bucket = b.bucket;
    state.unit = b.unit < units ? b.unit : -1;
    state.alone = b.unit >= units;
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
    segments_.push_back({pieces_[p].name, 0, 0, pieces_[p].shape, input_first_[p], 0, runs_[p]});
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
  optimizer_ = optim::make_optimizer(recipe, segments_, master_, std::move(peers), options_.seed);
}

void StageParameters::make_reducer() {
  const Compress& compress = options_.compress;
  if (compress.kind == "none" || !ranks_.data) return;
  TUTTI_ASSERT(options_.zero <= 1 && !options_.reproducible, "sums that are compressed");
  if (compress.kind == "sign" && compress.after > 0) optimizer_->freeze_after(compress.after);
  Reducer::Setup setup{compress,     options_.seed,       pieces_,    {}, total_,
                       master_type_, ranks_.shards() > 1, ranks_.data};
  for (const BucketState& b : buckets_) setup.regions.push_back({b.bucket, b.cuts});
  reducer_ = parallel::make_reducer(std::move(setup));
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

// --- norm and update

void StageParameters::write_squares(const std::vector<double*>& blocks) const {
  for (const BucketState& b : buckets_) {
    const bool all = fault("replica-norm");
    const Part own = all ? own_shard(b) : own_part(b);
    const torch::Tensor gradient = all ? shard_view(gradient_, b) : own_gradient(b);
    for (const Fragment& f : fragments_of(pieces_, b.bucket, own.begin, own.begin + own.size))
      if (blocks[f.piece])
        optim::block_squares(gradient.narrow(0, f.offset - own.begin, f.size),
                             blocks[f.piece] + f.first / optim::norm_block);
  }
}

StageParameters::BucketState& StageParameters::bucket_of(const std::string& alone) {
  const auto at = std::find_if(buckets_.begin(), buckets_.end(), [&](const BucketState& b) {
    return pieces_[b.bucket.first_piece].name == alone;
  });
  TUTTI_ASSERT(at != buckets_.end(), alone, " has no bucket of its own");
  return *at;
}

torch::Tensor StageParameters::own_gradient(const std::string& alone) {
  return own_gradient(bucket_of(alone));
}

std::string StageParameters::first_non_finite() const {
  return optim::first_non_finite(gradient_, segments_);
}

void StageParameters::update(std::int64_t step, double lr, double scale) {
  const torch::NoGradGuard no_grad;
  if (fault("bias-correction") && ranks_.shards() > 1) ++step;
  optimizer_->step(master_, gradient_, step, lr, scale);
  if (compressing_) reducer_->commit();
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
  for (BucketState& b : buckets_) wait_for(b);
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
  if (!b.whole || b.stays || (fault("stale-gather") && b.unit == 0 && last_)) return;
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
  if (options_.zero < 3 || all_stay_) return;
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
  all_stay_ = true;
  for (BucketState& b : buckets_) start_gather(b);
  for (BucketState& b : buckets_) gather(b);
}

void StageParameters::release_all() {
  all_stay_ = false;
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

std::vector<StageParameters::Held> StageParameters::gradients() const {
  std::vector<Held> all;
  for (std::size_t p = 0; p < pieces_.size(); ++p)
    all.push_back({pieces_[p].name, p, segments_[p].first,
                   gradient_.narrow(0, segments_[p].offset, segments_[p].size)});
  return all;
}

std::vector<StageParameters::Held> StageParameters::unsent() const {
  std::vector<Held> all;
  if (!reducer_) return all;
  const std::string own = str("data.", ranks_.rank(), "/compress.error/");
  for (std::size_t p = 0; p < pieces_.size(); ++p)
    if (!buckets_[bucket_of_[p]].alone)
      all.push_back({own + pieces_[p].name, p, 0,
                     reducer_->error().narrow(0, pieces_[p].offset, pieces_[p].size)});
  if (!reducer_->sum_error().defined()) return all;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    if (buckets_[i].alone) continue;
    const Part part = own_part(buckets_[i]);
    for (const Fragment& f :
         fragments_of(pieces_, buckets_[i].bucket, part.begin, part.begin + part.size))
      all.push_back({"compress.sum_error/" + pieces_[f.piece].name, f.piece, f.first,
                     reducer_->sum_error().narrow(
                         0, reducer_->sum_offset(i) + f.offset - part.begin, f.size)});
  }
  return all;
}

std::vector<Reducer::Factor> StageParameters::factors() const {
  if (!reducer_) return {};
  std::vector<Reducer::Factor> all = reducer_->factors();
  std::erase_if(all, [&](const Reducer::Factor& f) { return buckets_[bucket_of_[f.piece]].alone; });
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
  if (reducer_) memory.gradients += reducer_->bytes();
  const bool alias = compute_shard_.is_same(master_) ||
                     (!buckets_.empty() && buckets_[0].compute.is_alias_of(master_));
  memory.optimizer = alias ? 0 : bytes_of(master_);
  for (const optim::NamedTensor& tensor : optimizer_->state())
    memory.optimizer += bytes_of(tensor.value);
  return memory;
}

}  // namespace tutti::parallel
