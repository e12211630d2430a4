#include "parallel/compression.h"

#include <doctest/doctest.h>

#include <cmath>

namespace tutti::parallel {
namespace {

constexpr Compression kinds[] = {Compression::bf16, Compression::int8, Compression::int4};

TEST_CASE("compression: sizes, shapes, and no number further off than half a step") {
  for (const Compression kind : kinds)
    for (const std::int64_t count : {0, 1, 2, 7, 255, 256, 257, 5000})
      for (const auto type : {torch::kFloat, torch::kDouble}) {
        const int which = static_cast<int>(kind);
        CAPTURE(which);
        CAPTURE(count);
        const torch::Tensor values = torch::randn({count, 1}, type) * 3;
        const torch::Tensor bytes = compressed(kind, values);
        const std::int64_t blocks = (count + 255) / 256;
        const std::int64_t pairs = (count + 1) / 2;
        const std::int64_t wanted = kind == Compression::bf16   ? 2 * count
                                    : kind == Compression::int8 ? 4 * blocks + 2 * pairs
                                                                : 4 * blocks + pairs;
        CHECK(bytes.numel() == wanted);
        const torch::Tensor back = expanded(kind, bytes, values);
        CHECK(back.sizes() == values.sizes());
        CHECK((back.scalar_type() == type));
        for (std::int64_t at = 0; at < count; at += 256) {
          const std::int64_t size = std::min<std::int64_t>(256, count - at);
          const torch::Tensor part = values.narrow(0, at, size);
          const double most = part.abs().max().item<double>();
          const double step = kind == Compression::bf16   ? most / 128
                              : kind == Compression::int8 ? most / 127
                                                          : most / 7;
          const double off = (back.narrow(0, at, size) - part).abs().max().item<double>();
          CHECK(off <= 0.5001 * step);
        }
      }
}

TEST_CASE("compression: whole numbers of the type come back as they were, and zeros") {
  const torch::Tensor sevens = torch::arange(-7, 8).to(torch::kFloat).repeat({40});
  for (const Compression kind : kinds) {
    const torch::Tensor whole = kind == Compression::int8 ? torch::round(sevens * 127 / 7) : sevens;
    CHECK(expanded(kind, compressed(kind, whole), whole).allclose(whole, 0, 1e-5));
    const torch::Tensor zeros = torch::zeros({300});
    CHECK(expanded(kind, compressed(kind, zeros), zeros).equal(zeros));
  }
}

TEST_CASE("compression: what is not finite stays so, in its block") {
  for (const Compression kind : kinds)
    for (const float bad : {NAN, INFINITY}) {
      torch::Tensor values = torch::ones({600});
      values[300] = bad;
      const torch::Tensor back = expanded(kind, compressed(kind, values), values);
      CHECK(!std::isfinite(back[300].item<double>()));
      CHECK(back.narrow(0, 0, 256).isfinite().all().item<bool>());
    }
}

TEST_CASE("compression: with error feedback, what was sent and what is left is what there was") {
  for (const Compression kind : kinds) {
    torch::Tensor error = torch::zeros({1000}), sent = torch::zeros({1000}), all = error.clone();
    for (int round = 0; round < 20; ++round) {
      const torch::Tensor change = torch::randn({1000}) * 0.01;
      all += change;
      const torch::Tensor wanted = change + error;
      const torch::Tensor got = expanded(kind, compressed(kind, wanted), wanted);
      error = wanted - got;
      sent += got;
    }
    CHECK((sent + error - all).abs().max().item<double>() < 1e-6);
    CHECK(error.abs().max().item<double>() > 0);
  }
}

}  // namespace
}  // namespace tutti::parallel
