#include "parallel/local_state.h"

#include "mesh/box.h"

namespace tutti::parallel {

void LocalState::add(const std::string& name, const Cut& cut, std::int64_t first,
                     const torch::Tensor& values, bool owned) {
  std::int64_t at = 0;
  for (const Box& run : boxes_of_range(whole(cut.local_shape()), first, values.numel())) {
    const std::int64_t count = element_count(run);
    add_run(name, cut, run, values.narrow(0, at, count).view(run.size), owned);
    at += count;
  }
}

// `run` is a box of the local tensor, whose parts lie side by side along the cut dimension.
void LocalState::add_run(const std::string& name, const Cut& cut, const Box& run,
                         const torch::Tensor& values, bool owned) {
  const auto d = static_cast<std::size_t>(cut.dim);
  std::int64_t begin = 0;
  for (const Box& part : cut.boxes) {
    if (run.size.empty()) return add_piece(name, cut, run, values, owned);
    const std::int64_t from = std::max(begin, run.offset[d]);
    const std::int64_t to = std::min(begin + part.size[d], run.offset[d] + run.size[d]);
    if (from < to) {
      Box box = run;
      for (std::size_t other = 0; other < run.size.size(); ++other)
        box.offset[other] += part.offset[other];
      box.offset[d] = part.offset[d] + from - begin;
      box.size[d] = to - from;
      add_piece(name, cut, box, values.narrow(cut.dim, from - run.offset[d], to - from), owned);
    }
    begin += part.size[d];
  }
}

void LocalState::add_piece(const std::string& name, const Cut& cut, Box box, torch::Tensor values,
                           bool owned) {
  if (!values.is_contiguous()) {
    copies_.emplace_back(values, values.contiguous());
    values = copies_.back().second;
  }
  tensors_.push_back({name, std::move(values), cut.shape, std::move(box), owned});
}

void LocalState::write_back() {
  const torch::NoGradGuard no_grad;
  for (auto& [place, copy] : copies_) place.copy_(copy);
}

}  // namespace tutti::parallel
