#include "nn/discard.h"

#include <memory>
#include <utility>

#include "base/error.h"

namespace tutti::nn {
namespace {

struct Discarded {
  c10::Storage storage;  // that of x and of whoever saved x
  std::function<torch::Tensor()> again;

  void refill() {
    if (!again) return;
    torch::NoGradGuard no_grad;
    const torch::Tensor values = std::exchange(again, nullptr)();
    c10::StorageImpl& from = *values.storage().unsafeGetStorageImpl();
    c10::StorageImpl& to = *storage.unsafeGetStorageImpl();
    TUTTI_ASSERT(values.storage_offset() == 0 && to.nbytes() == 0);
    to.set_nbytes(from.nbytes());
    to.set_data_ptr_noswap(
        from.set_data_ptr(at::DataPtr(nullptr, from.device())));  // ours from here on
    from.set_nbytes(0);
    storage = {};
  }
};

}  // namespace

void discard(const torch::Tensor& x, const Tensors& readers, std::function<torch::Tensor()> again) {
  if (!wants_gradient(readers)) return;
  c10::StorageImpl& held = *x.storage().unsafeGetStorageImpl();
  if (!x.is_contiguous() || x.storage_offset() != 0 || held.nbytes() != x.nbytes()) return;
  const auto state = std::make_shared<Discarded>(Discarded{x.storage(), std::move(again)});
  for (const auto& reader : readers)
    if (reader.defined() && reader.requires_grad())
      reader.register_hook([state](const torch::Tensor&) { state->refill(); });
  held.set_data_ptr_noswap(at::DataPtr(nullptr, held.device()));
  held.set_nbytes(0);
}

}  // namespace tutti::nn
