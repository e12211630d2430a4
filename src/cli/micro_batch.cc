#include "cli/micro_batch.h"

#include <iostream>

#include "base/fs.h"
#include "data/tokenizer.h"
#include "plan/micro_batch.h"
#include "recipe/parse.h"

namespace tutti::cli {
namespace {

// A tokenizer that is not here (recipe show, on another machine) counts as nothing.
std::int64_t vocab_of(const recipe::Data& data) {
  if (recipe::learnt_vocab(data.tokenizer)) return 0;  // plan knows it
  if (data.tokenizer != "bytes" && !fs::exists(data.tokenizer)) return 0;
  return data::open_tokenizer(data.tokenizer)->vocab_size();
}

}  // namespace

void choose_micro_batch(recipe::Recipe& recipe, bool tell) {
  if (recipe.batch.micro > 0) return;
  recipe::Recipe sized = recipe;
  if (sized.model.vocab == 0) sized.model.vocab = vocab_of(recipe.data);
  const plan::MicroBatch chosen = plan::choose_micro_batch(sized);
  if (tell) std::cerr << "note: " << chosen.why << "\n";
  recipe.batch.micro = chosen.samples;
}

}  // namespace tutti::cli
