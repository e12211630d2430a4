// Tensor and context ranks sum gradients before data ranks do: by micro-batch, so that the bits do
// not depend on how many data ranks share the micro-batches out.
#include "train/layout_runs.h"

namespace tutti::train {
namespace {

TEST_CASE("under tensor and context ranks, data ranks, ZeRO, buckets and overlap change no bit") {
  for (const auto& [tensor, context] : {std::pair{2, 1}, {1, 2}, {2, 2}}) {
    recipe::Recipe recipe = base("gpt2");  // its biases are summed over the tensor axis
    recipe::Parallel& p = recipe.parallel;
    p.tensor = tensor, p.context = context;
    const auto run = [&](int data) {
      p.workers = data * tensor * context;
      return train(recipe, torch::kFloat);
    };
    const Run expected = run(1);
    for (const int data : {1, 2, 3})
      for (int zero = data - 1; zero <= (data == 2 ? 3 : data - 1); zero += data) {
        p.zero = zero;
        p.overlap = (data + zero) % 2 == 0;
        p.bucket_bytes = 4096;
        CAPTURE(text_of(recipe));
        CAPTURE(data);
        const auto [worst, name] = difference(run(data), expected);
        CAPTURE(name);
        CHECK(worst == 0);
      }
  }
}

}  // namespace
}  // namespace tutti::train
