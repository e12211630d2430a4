// The mesh engine beside the replicated one: ZeRO stages, hybrid sharding and pipelines give the
// same bits.
#include "parallel/mesh_engine.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "parallel/replicated.h"
#include "parallel/sample_task.h"

namespace tutti::parallel {
namespace {

plan::Layout layout_of(const recipe::Recipe& recipe, int ranks) {
  const recipe::Parallel& p = recipe.parallel;
  const int pipeline = static_cast<int>(p.pipeline), context = static_cast<int>(p.context),
            tensor = static_cast<int>(p.tensor);
  const int data = ranks / (pipeline * context * tensor);
  const int shard = p.shard ? static_cast<int>(p.shard) : data;
  const int micro = static_cast<int>(recipe.batch.global / recipe.batch.micro);
  plan::Layout layout{DeviceMesh({{"pipeline", pipeline},
                                  {"replica", data / shard},
                                  {"shard", shard},
                                  {"context", context},
                                  {"tensor", tensor}},
                                 ranks),
                      DeviceMesh({{"pipeline", pipeline},
                                  {"expert_replica", data * context * tensor},
                                  {"expert", 1},
                                  {"expert_tensor", 1}},
                                 ranks),
                      plan::make_pipeline_schedule(p.pipeline_schedule, pipeline,
                                                   static_cast<int>(p.pipeline_chunks),
                                                   micro / data ? micro / data : 1),
                      {{0, 1}},
                      {{"heads", "tensor"},
                       {"kv_heads", "tensor"},
                       {"qkv", "tensor"},
                       {"mlp", "tensor"},
                       {"vocab", "tensor"}},
                      data,
                      shard,
                      data / shard};
  return layout;
}

std::unique_ptr<Engine> make_mesh(const recipe::Recipe& recipe, Task& task,
                                  std::shared_ptr<collective::Group> group) {
  const plan::Layout layout = layout_of(recipe, group->size());
  return std::make_unique<MeshEngine>(recipe, task, layout, std::move(group));
}

std::unique_ptr<Engine> make_replicated(const recipe::Recipe& recipe, Task& task,
                                        std::shared_ptr<collective::Group> group) {
  return std::make_unique<ReplicatedEngine>(recipe, task, std::move(group));
}

std::string text_of(const recipe::Recipe& recipe, int ranks) {
  const recipe::Parallel& p = recipe.parallel;
  return str(recipe.optimizer.name, ", ", ranks, " ranks, zero ", p.zero, ", shard ", p.shard,
             ", buckets of ", p.bucket_bytes, p.overlap ? ", overlap" : "");
}

TEST_CASE("mesh: every ZeRO stage and hybrid shard has the replicated engine's bits") {
  for (const char* optimizer : {"adamw", "muon", "sgd"}) {
    recipe::Recipe recipe = recipe_for();
    recipe.optimizer.name = optimizer;
    const Seen one = run(make_replicated, recipe, 1);
    for (int zero = 0; zero <= 3; ++zero)
      for (const int ranks : {1, 2, 3, 4, 7})
        for (const int shard : {0, 2}) {
          if (shard && (zero == 0 || ranks % shard)) continue;
          recipe.parallel.zero = zero;
          recipe.parallel.shard = shard;
          recipe.parallel.bucket_bytes = ranks % 2 ? 64 : 1 << 20;
          recipe.parallel.overlap = ranks < 4;
          INFO(text_of(recipe, ranks));
          check_same(one, run(make_mesh, recipe, ranks));
        }
  }
}

}  // namespace
}  // namespace tutti::parallel
