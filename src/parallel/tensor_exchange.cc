#include "parallel/tensor_exchange.h"

#include <utility>

namespace tutti::parallel {
namespace {

torch::Tensor at(const torch::Tensor& x, nn::Span rows) {
  return x.narrow(0, rows.begin, rows.size);
}

std::int64_t rows_of(const std::vector<nn::Span>& spans) {
  std::int64_t rows = 0;
  for (const nn::Span& span : spans) rows += span.size;
  return rows;
}

collective::Counts counts_of(const std::vector<nn::Span>& spans, std::int64_t features) {
  collective::Counts counts;
  for (const nn::Span& span : spans) counts.push_back(span.size * features);
  return counts;
}

}  // namespace

TensorExchange::TensorExchange(std::shared_ptr<collective::Group> group, std::int64_t rows,
                               bool by_rows, int chunks, bool lost)
    : nn::RowExchange(rows),
      group_(std::move(group)),
      by_rows_(by_rows),
      chunks_(chunks),
      lost_(lost) {}

std::vector<nn::Span> TensorExchange::pieces(int count, int index) const {
  std::vector<nn::Span> spans;
  for (int r = 0; r < group_->size(); ++r) {
    const Slice whole = slice_of(rows(), group_->size(), r);
    const Slice piece = slice_of(whole.size, count, index);
    spans.push_back({whole.begin + piece.begin, piece.size});
  }
  return spans;
}

nn::Span TensorExchange::own() const {
  return pieces(1, 0)[static_cast<std::size_t>(group_->rank())];
}

// With one run it comes straight to its place.
std::vector<TensorExchange::Run> TensorExchange::start_gather(const torch::Tensor& x,
                                                              const torch::Tensor& whole) const {
  const int count = std::max(1, chunks_ - 1);
  const auto rank = static_cast<std::size_t>(group_->rank());
  std::vector<Run> runs;
  for (int k = 0; k < count; ++k) {
    Run run{pieces(count, k), whole, nullptr};
    if (rows_of(run.spans) == 0) break;
    if (count > 1) run.stage = torch::empty({rows_of(run.spans), x.size(1)}, x.options());
    const nn::Span piece = run.spans[rank];
    run.work = group_->all_gather_v_async(x.narrow(0, piece.begin - own().begin, piece.size),
                                          run.stage, counts_of(run.spans, x.size(1)));
    runs.push_back(std::move(run));
  }
  return runs;
}

torch::Tensor TensorExchange::gathered(const torch::Tensor& in, const Use& use) {
  if (!by_rows_) {
    use({0, rows()}, in);
    return in;
  }
  const torch::Tensor x = in.contiguous();
  const torch::Tensor whole = torch::empty({rows(), x.size(1)}, x.options());
  std::vector<Run> runs = start_gather(x, whole);
  if (chunks_ == 1) {
    for (const Run& run : runs) run.work->wait();
    use({0, rows()}, whole);
    return whole;
  }
  if (own().size > 0) use(own(), x);
  if (chunks_ > 2) at(whole, own()).copy_(x);
  for (Run& run : runs) {
    run.work->wait();
    std::int64_t staged = 0;
    for (std::size_t r = 0; r < run.spans.size(); ++r) {
      const nn::Span span = run.spans[r];
      const torch::Tensor part = run.stage.narrow(0, staged, span.size);
      staged += span.size;
      if (static_cast<int>(r) == group_->rank() || span.size == 0) continue;
      use(span, part);
      if (chunks_ > 2) at(whole, span).copy_(part);
    }
    run = {};
  }
  return whole;
}

torch::Tensor TensorExchange::summed(std::int64_t features, const torch::TensorOptions& options,
                                     const Make& make, const std::function<void()>& meanwhile) {
  const torch::Tensor out = torch::empty({by_rows_ ? own().size : rows(), features}, options);
  std::vector<Work> works;
  for (int k = 0; k < chunks_; ++k)
    works.push_back(by_rows_ ? scatter(k, out, make) : reduce(k, out, make));
  meanwhile();
  for (const Work& work : works)
    if (work) work->wait();
  return out;
}

// A chunk is made side by side in a buffer of its own: nobody needs the rest of the addends.
TensorExchange::Work TensorExchange::scatter(int chunk, const torch::Tensor& out,
                                             const Make& make) const {
  const auto spans = pieces(chunks_, chunk);
  const auto rank = static_cast<std::size_t>(group_->rank());
  if (rows_of(spans) == 0) return nullptr;
  const torch::Tensor stage = torch::empty({rows_of(spans), out.size(1)}, out.options());
  torch::Tensor share;
  std::int64_t staged = 0;
  for (std::size_t r = 0; r < spans.size(); ++r) {
    const torch::Tensor part = stage.narrow(0, staged, spans[r].size);
    staged += spans[r].size;
    if (chunks_ > 1 && spans[r].size > 0) make(spans[r], part);
    if (r == rank) share = part;
  }
  if (chunks_ == 1) make({0, rows()}, stage);
  const torch::Tensor to = out.narrow(0, spans[rank].begin - own().begin, spans[rank].size);
  if (lost_) {
    to.copy_(share);
    return nullptr;
  }
  return group_->reduce_scatter_v_async(stage, to, counts_of(spans, out.size(1)));
}

TensorExchange::Work TensorExchange::reduce(int chunk, const torch::Tensor& out,
                                            const Make& make) const {
  const Slice slice = slice_of(rows(), chunks_, chunk);
  if (slice.size == 0) return nullptr;
  const torch::Tensor part = out.narrow(0, slice.begin, slice.size);
  make({slice.begin, slice.size}, part);
  return lost_ ? nullptr : group_->all_reduce_async(part);
}

}  // namespace tutti::parallel
