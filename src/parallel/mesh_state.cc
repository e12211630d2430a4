// MeshEngine: what a rank holds of the run, in pieces.
#include <set>
#include <unordered_set>

#include "base/error.h"
#include "base/json.h"
#include "collective/text.h"
#include "parallel/mesh_engine.h"

namespace tutti::parallel {

// Replicas take turns.
void MeshEngine::add_pieces(LocalState& to, const OwnStage& own,
                            const std::vector<StageParameters::Held>& pieces) const {
  const DataRanks& ranks = own.parameters->ranks();
  for (const StageParameters::Held& held : pieces) {
    const Cut& cut = cuts_[own.cuts[held.piece]];
    const int turn = static_cast<int>(own.cuts[held.piece]) % ranks.replicas();
    to.add(held.name, cut, held.first, held.values,
           answers_for(cut) && turn == DataRanks::rank_of(ranks.replica));
  }
}

// What data ranks have not sent of their sums. The factors of a matrix that is cut are of its
// parts.
void MeshEngine::add_unsent(const OwnStage& own) {
  for (const StageParameters::Held& held : own.parameters->unsent()) {
    const Cut& cut = cuts_[own.cuts[held.piece]];
    state_.add(held.name, cut, held.first, held.values, answers_for(cut));
  }
  for (const Reducer::Factor& factor : own.parameters->factors()) {
    const Cut& cut = cuts_[own.cuts[factor.piece]];
    const int part = part_of(cut, cut_ranks_, cut_place_);
    const std::string of_part =
        parts_of(cut, cut_ranks_) > 1 ? str("tensor.", part, "/") : std::string();
    const auto shape = factor.values.sizes().vec();
    state_.tensors().push_back({of_part + "compress.factor/" + cut.name, factor.values, shape,
                                whole(shape),
                                answers_for(cut) && own.parameters->ranks().rank() == 0});
  }
}

std::vector<StateTensor> MeshEngine::gradients() {
  LocalState local;
  for (const OwnStage& own : own_) add_pieces(local, own, own.parameters->gradients());
  return local.tensors();
}

std::vector<StateTensor> MeshEngine::state() {
  state_ = {};
  for (OwnStage& own : own_) {
    add_pieces(state_, own, own.parameters->state());
    add_unsent(own);
  }
  std::vector<StateTensor> all = state_.tensors();
  for (const auto* tensors : {&fixed_, &moving_, &elsewhere_})
    all.insert(all.end(), tensors->begin(), tensors->end());
  return all;
}

// Of weights that are not views of the state. With zero 3 the passes' are gone again.
std::vector<StateTensor> MeshEngine::copies() {
  LocalState local;
  for (const OwnStage& own : own_) {
    std::vector<StageParameters::Held> pieces;
    for (const StageParameters::Held& held : own.parameters->state()) {
      const Piece& piece = own.parameters->pieces()[held.piece];
      if (!held.name.starts_with("model/") || recipe_.parallel.zero == 3 ||
          held.values.is_alias_of(piece.parameter))
        continue;
      pieces.push_back(
          {"compute/" + piece.name, held.piece, 0, piece.parameter.detach().view({-1})});
    }
    add_pieces(local, own, pieces);
  }
  return local.tensors();
}

// Every rank's state names all tensors of the run, so that a checkpoint of another run is noticed
// by all.
void MeshEngine::learn_others() {
  std::set<std::string> mine, others;
  Json told = Json::array();
  for (const StateTensor& tensor : state())
    if (tensor.box && mine.insert(tensor.name).second)
      told.push_back({tensor.name, tensor.shape, static_cast<int>(tensor.value.scalar_type())});
  for (const std::string& text : collective::all_gather_text(*groups_.world, told.dump()))
    for (const Json& tensor : parse_json(text, "a rank's state")) {
      const auto name = tensor[0].get<std::string>();
      const auto shape = tensor[1].get<std::vector<std::int64_t>>();
      if (mine.contains(name) || !others.insert(name).second) continue;
      const std::vector<std::int64_t> none(shape.size(), 0);
      elsewhere_.push_back(
          {name, torch::zeros(none, static_cast<torch::ScalarType>(tensor[2].get<int>())), shape,
           Box{none, none}, false});
    }
}

void MeshEngine::restored() {
  state_.write_back();
  for (OwnStage& own : own_) own.parameters->restored();
}

std::string MeshEngine::scalars() const {
  return Json{
      {"updates", updates_}, {"loss_scale", scaler_.scale()}, {"good_steps", scaler_.good_steps()}}
      .dump();
}

void MeshEngine::set_scalars(const std::string& json) {
  const Json values = parse_json(json, "checkpoint state");
  updates_ = values.at("updates").get<std::int64_t>();
  scaler_.restore(values.at("loss_scale").get<double>(),
                  values.at("good_steps").get<std::int64_t>());
}

StageParameters::Memory MeshEngine::memory() const {
  StageParameters::Memory sum;
  for (const OwnStage& own : own_) {
    const StageParameters::Memory one = own.parameters->memory();
    sum.parameters += one.parameters;
    sum.gradients += one.gradients;
    sum.optimizer += one.optimizer;
  }
  return sum;
}

// An operation that takes a parameter without asking how it is cut computes with a slice as if it
// were the whole.
void MeshEngine::refuse_unasked() {
  if (spread_.context_ranks() > 1 && !ids_.empty() && !spread_.asked_for_positions())
    throw ConfigError({{"parallel.context", "", str(spread_.context_ranks()),
                        "cuts sequences, but the model does not ask which of their tokens are here",
                        "set it to 1, or ask nn::Spread::positions"}});
  for (const OwnStage& own : own_) {
    std::unordered_set<std::string> used;
    for (const StageParameters::Held& held : own.parameters->gradients())
      if (held.values.count_nonzero().item<std::int64_t>() > 0) used.insert(held.name);
    for (const std::size_t p : own.cuts) {
      const bool cut = cuts_[p].type.kind == nn::Type::Kind::shard;
      if (!cut || !used.contains(cuts_[p].name) || spread_.asked_for(parameters_[p])) continue;
      throw ConfigError({{"parallel.rules", "", recipe_.parallel.rules,
                          str("cuts ", cuts_[p].name, " along dimension ", cuts_[p].dim,
                              ", but what the model computes with it does not ask how it is cut"),
                          "let its axis be none, or use operations that ask (nn/spread.h)"}});
    }
  }
}

}  // namespace tutti::parallel
