#include <algorithm>

#include "recipe/show.h"

namespace tutti::recipe {

void resolve(Recipe& recipe, int cores) {
  if (recipe.parallel.threads == 0)
    recipe.parallel.threads = std::max<std::int64_t>(1, cores / recipe.parallel.workers);
}

void resolve(Recipe& recipe, std::int64_t vocab, int cores) {
  resolve(recipe, cores);
  Model& m = recipe.model;
  if (!m.from.empty()) return;
  if (m.vocab == 0) m.vocab = vocab;
  if (m.kv_heads == 0) m.kv_heads = m.heads;
  if (m.head_dim == 0) m.head_dim = m.embed / m.heads;
  if (m.mlp == 0) m.mlp = m.family == "gpt2" ? 4 * m.embed : (8 * m.embed + 23) / 24 * 8;
  if (m.moe.experts > 0 && m.moe.expert_mlp == 0) m.moe.expert_mlp = m.mlp;
  if (m.context == 0) m.context = recipe.data.sequence;
}

}  // namespace tutti::recipe
