// PowerSGD (Vogels et al., "PowerSGD: practical low-rank gradient compression for distributed
// optimization", 2019, algorithms 1 and 2). With M_i [n, m] = g_i + e_i of rank i, Q [m, r]:
//
//   P = sum_i M_i Q     P <- an orthonormal basis of its columns     Q_i = M_i^T P
//   c_i = P Q_i^T       the sum is P Q^T, Q = sum_i Q_i
//
// The next step begins with this Q (its columns of length 1), the first with random numbers by
// name. Tensors of one dimension, and those that factors would not make smaller, are sent as they
// are.
#include <cmath>

#include "base/rng.h"
#include "parallel/reducer.h"

namespace tutti::parallel {
namespace {

class FactorReducer : public Reducer {
 public:
  explicit FactorReducer(Setup setup) : Reducer(std::move(setup)) {
    for (const Piece& piece : setup_.pieces) {
      const std::int64_t rows = piece.shape.empty() ? 1 : piece.shape[0];
      const std::int64_t columns = rows > 0 ? piece.size / rows : 0;
      const std::int64_t rank = setup_.compress.rank;
      const bool smaller = piece.shape.size() > 1 && rank * (rows + columns) < rows * columns;
      matrices_.push_back({rows, columns, smaller ? first_basis(piece.name, columns) : none()});
      matrices_.back().next = matrices_.back().basis.clone();
    }
  }

  void commit() override {
    Reducer::commit();
    for (Matrix& matrix : matrices_) std::swap(matrix.basis, matrix.next);
  }

  std::vector<Factor> factors() override {
    std::vector<Factor> all;
    for (std::size_t p = 0; p < matrices_.size(); ++p)
      if (matrices_[p].factored()) all.push_back({p, matrices_[p].basis});
    return all;
  }

 private:
  struct Matrix {
    std::int64_t rows, columns;
    torch::Tensor basis;  // Q; empty: it is sent as it is
    torch::Tensor next = {};
    bool factored() const { return basis.numel() > 0; }
  };

  torch::Tensor none() const { return torch::empty({0, 0}, setup_.type); }

  torch::Tensor first_basis(const std::string& name, std::int64_t columns) const {
    const RandomStream stream(setup_.seed, "powersgd/" + name);
    torch::Tensor basis = torch::empty({columns, setup_.compress.rank}, torch::kDouble);
    for (std::int64_t i = 0; i < basis.numel(); ++i)
      basis.data_ptr<double>()[i] = stream.normal(static_cast<std::uint64_t>(i));
    return basis.to(setup_.type);
  }

  // One buffer of what is sent of each piece of a region. Places are multiples of 16, so that what
  // is computed of them has the same bits wherever the piece lies.
  template <class Size>
  std::pair<torch::Tensor, std::vector<torch::Tensor>> buffers(std::size_t at,
                                                               const Size& size) const {
    const Bucket& bucket = region(at).bucket;
    std::int64_t total = 0;
    for (std::size_t p = bucket.first_piece; p < bucket.end_piece; ++p) total += aligned(size(p));
    torch::Tensor all = torch::zeros({total}, setup_.type);
    std::vector<torch::Tensor> parts;
    std::int64_t first = 0;
    for (std::size_t p = bucket.first_piece; p < bucket.end_piece; ++p) {
      parts.push_back(all.narrow(0, first, size(p)));
      first += aligned(size(p));
    }
    return {all, parts};
  }

  torch::Tensor matrix_of(const torch::Tensor& values, std::size_t at, std::size_t p) const {
    return piece_of(values, at, p).view({matrices_[p].rows, matrices_[p].columns});
  }

  std::shared_ptr<collective::Work> begin(std::size_t at, torch::Tensor input,
                                          torch::Tensor sum) override {
    const std::int64_t rank = setup_.compress.rank;
    const auto [all, parts] = buffers(at, [&](std::size_t p) {
      return matrices_[p].factored() ? matrices_[p].rows * rank : setup_.pieces[p].size;
    });
    const Bucket& bucket = region(at).bucket;
    for (std::size_t p = bucket.first_piece; p < bucket.end_piece; ++p) {
      torch::Tensor part = parts[p - bucket.first_piece];
      if (matrices_[p].factored()) {
        torch::Tensor product = part.view({-1, rank});
        torch::mm_out(product, matrix_of(input, at, p), matrices_[p].basis);
      } else {
        torch::Tensor plain = piece_of(input, at, p);
        part.copy_(plain);
        plain.zero_();
      }
    }
    return std::make_shared<Steps>(
        setup_.group->all_reduce_async(all),
        [this, at, input, sum, parts = parts] { finish(at, input, sum, parts); });
  }

  void finish(std::size_t at, const torch::Tensor& input, torch::Tensor sum,
              const std::vector<torch::Tensor>& parts) {
    const Bucket& bucket = region(at).bucket;
    const std::int64_t rank = setup_.compress.rank;
    const auto [all, bases] = buffers(at, [&](std::size_t p) {
      return matrices_[p].factored() ? matrices_[p].columns * rank : 0;
    });
    std::vector<torch::Tensor> columns;  // P; undefined: sent as it is
    for (std::size_t p = bucket.first_piece; p < bucket.end_piece; ++p) {
      const std::size_t i = p - bucket.first_piece;
      columns.emplace_back();
      if (!matrices_[p].factored()) {
        piece_of(sum, at, p).copy_(parts[i]);
        continue;
      }
      columns.back() = std::get<0>(torch::linalg_qr(parts[i].view({-1, rank}), "reduced"));
      torch::Tensor matrix = matrix_of(input, at, p), basis = bases[i].view({-1, rank});
      torch::mm_out(basis, matrix.t(), columns.back());
      matrix.addmm_(columns.back(), basis.t(), 1, -1);
    }
    if (all.numel() == 0) return;
    setup_.group->all_reduce(all);
    for (std::size_t p = bucket.first_piece; p < bucket.end_piece; ++p) {
      const std::size_t i = p - bucket.first_piece;
      if (!columns[i].defined()) continue;
      const torch::Tensor basis = bases[i].view({-1, rank});
      torch::Tensor matrix = matrix_of(sum, at, p);
      torch::mm_out(matrix, columns[i], basis.t());
      // A column of zeros (a weight that was not used) would stay one: the old one goes on.
      const torch::Tensor length = basis.norm(2, 0, true);
      matrices_[p].next.copy_(torch::where(length > 0, basis / length, matrices_[p].basis));
    }
  }

  std::vector<Matrix> matrices_;  // by piece
};

}  // namespace

std::unique_ptr<Reducer> make_factor_reducer(Reducer::Setup setup) {
  return std::make_unique<FactorReducer>(std::move(setup));
}

}  // namespace tutti::parallel
