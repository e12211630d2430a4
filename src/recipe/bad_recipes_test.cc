// Bad recipes, each with the parts that its message must hold. All are r.yaml unless told else.
#include <doctest/doctest.h>

#include "recipe/parse.h"

using namespace tutti;

namespace {

struct Bad {
  std::string yaml;
  std::vector<std::string> parts;  // of the error, "!" before a part that must not be there
  std::vector<std::string> overrides = {};
};

const std::string data = "data: {train: a.txt}\n";  // line 1

const std::vector<Bad>& bad_recipes() {
  static const std::vector<Bad> all = {
      // Not a recipe at all.
      {"", {"data.train: is missing; name a file or a folder"}},
      {"hello", {"r.yaml:1: must be a map of fields; like duration"}},
      {"- a\n- b\n", {"r.yaml:1: must be a map of fields"}},
      {"a: [1\nb: 2\n", {"r.yaml:", "is not valid YAML"}},
      {data + "\tbatch: 1\n", {"r.yaml:2: is not valid YAML"}},
      {data + "name: a\n---\nname: b\n",
       {"r.yaml:3: is not valid YAML: the recipe ended before this (a second document?)"}},
      {",", {"is not valid YAML"}},  // yaml-cpp's LoadAll does not end on these two
      {"# A:\n  ,b\ndat!2B:\n  t/r: c: 4\b", {"is not valid YAML"}},
      {data + "name: \xff\n", {"r.yaml:2: is not UTF-8 at byte 27; save it as UTF-8"}},
      {data + "? [a, b]\n: 1\n", {"r.yaml:2", "is no name of a field"}},

      // Names.
      {data + "duratoin: 10 steps\n",
       {"r.yaml:2: duratoin: is not a field", "did you mean duration?"}},
      {data + "optimizer:\n  lrr: 1\n",
       {"r.yaml:3: optimizer.lrr: is not", "did you mean optimizer.lr?"}},
      {data + "optimiser: {lr: 1}\n", {"r.yaml:2: optimiser: is not", "did you mean optimizer?"}},
      {data + "optimizer:\n  learning_rate: 1\n", {"r.yaml:3", "did you mean optimizer.lr?"}},
      {data + "lr: 1\n", {"r.yaml:2: lr: is not", "did you mean optimizer.lr?"}},
      {data + "batch_size: 8\n", {"did you mean batch.global?"}},
      {data + "model: {layer: 2}\n", {"model.layer: is not", "did you mean model.layers?"}},
      {data + "model: {rope_scaling: {kinds: linear}}\n",
       {"did you mean model.rope_scaling.kind?"}},
      {data + "batch: {wonderful: 2}\n", {"known in batch: global, micro"}},
      {data + "zzzzzzzz: 2\n", {"zzzzzzzz: is not", "known here: name, seed"}},
      {data + "batch:\n  micro: 2\n  global: 4\n  micro: 4\n",
       {"r.yaml:5: batch.micro: appears twice, first at r.yaml:3; keep one"}},
      {data + "batch: {micro: 2}\nbatch: {global: 4}\n",
       {"r.yaml:3: batch: appears twice, first at r.yaml:2"}},
      {data + "batch: 8\n",
       {"r.yaml:2: batch = 8: must be a map of fields; known in batch: global"}},
      {data + "batch: [8]\n", {"batch = a list: must be a map of fields"}},
      {data + "seed: {a: 1}\n", {"seed = a map: must be a whole number (64 bits) of at least 0"}},

      // Values.
      {data + "name: ''\n", {"name = \"\": must be a name"}},
      {data + "name: ../up\n", {"name = ../up: must be a name of 1 to 100 bytes without '/'"}},
      {data + "name:\n", {"r.yaml:2: name = nothing: must be a name"}},
      {"data: {train: a.txt, tokenizer: bpe-100}\n",
       {"r.yaml:1: data.tokenizer = bpe-100: must learn more than the 256 bytes", "bpe-257"}},
      {data + "seed: -1\n", {"seed = -1: must be a whole number (64 bits) of at least 0"}},
      {data + "seed: 1.5\n", {"seed = 1.5: must be a whole number (64"}},
      {data + "seed: 18446744073709551616\n", {"seed = 18446744073709551616: must be"}},
      {data + "duration: 10\n",
       {"duration = 10: must be an amount with a unit", "did you mean 10 steps?"}},
      {data + "duration: 2k\n", {"did you mean 2k steps?"}},
      {data + "duration: 10 stepps\n", {"duration = 10 stepps: must be an amount with a unit"}},
      {data + "duration: -5 steps\n", {"duration = -5 steps: must be an amount"}},
      {data + "duration: 1.5 steps\n", {"duration = 1.5 steps: must be an amount"}},
      {data + "duration: 1e300 d\n", {"duration = 1e300 d: must be an amount"}},
      {data + "duration: 5q tokens\n", {"duration = 5q tokens: must be an amount"}},
      {data + "duration: ten steps\n", {"duration = ten steps", "the default is 100 steps"}},
      {data + "duration: 0\n", {"r.yaml:2: duration = 0: must be above 0"}},
      {data + "precision: fp23\n", {"must be one of fp32,", "bf16", "did you mean fp32?"}},
      {data + "precision: double\n", {"precision = double: must be one of", "the default is fp32"}},
      {data + "recompute: al\n",
       {"recompute = al: must be one of none, selective, full, auto, or a whole number"}},
      {data + "recompute: auto\n", {"recompute = auto: needs memory_budget", "like 2gb"}},
      {data + "batch: {micro: auto}\n",
       {"r.yaml:2: batch.micro = auto: needs memory_budget", "like 2gb"}},
      {data + "batch: {micro: automatic}\n",
       {"r.yaml:2: batch.micro = automatic: must be a whole number from 1 to 1000000000, or auto"}},
      {data + "optimizer: {state: fp16}\n",
       {"r.yaml:2: optimizer.state = fp16: must be one of fp32, bf16"}},
      {data + "recompute: -1\n", {"recompute = -1: must be one of none"}},
      {data + "reproducible: maybe\n",
       {"reproducible = maybe: must be on or off; the default is on"}},
      {data + "on_nan: skp\n", {"did you mean skip?"}},
      {data + "model: {family: lama}\n", {"model.family = lama", "did you mean llama?"}},
      {data + "model: {layers: 0}\n",
       {"model.layers = 0: must be a whole number from 1 to 10000; the nearest is 1"}},
      {data + "model: {layers: 2e12}\n", {"the nearest is 10000"}},
      {data + "model: {layers: four}\n", {"model.layers = four", "the default is 4"}},
      {data + "model: {layers: [4]}\n", {"model.layers = a list: must be a whole number"}},
      {data + "model: {embed: 64.5}\n", {"model.embed = 64.5: must be a whole number"}},
      {data + "model: {dropout: 1}\n", {"model.dropout = 1: must be a number from 0 to below 1"}},
      {data + "model: {norm_eps: 0}\n",
       {"model.norm_eps = 0: must be a number above 0", "the default is 1e-05"}},
      {data + "optimizer: {lr: fast}\n",
       {"r.yaml:2: optimizer.lr = fast: must be a number of at least 0"}},
      {data + "optimizer: {lr: .nan}\n", {"optimizer.lr = .nan: must be"}},
      {data + "optimizer: {lr: 1e999}\n", {"optimizer.lr = 1e999: must be"}},
      {data + "optimizer: {lr: 0.1x}\n", {"optimizer.lr = 0.1x: must be"}},
      {data + "optimizer: {lr: -1}\n", {"optimizer.lr = -1", "the nearest is 0"}},
      {data + "schedule: {min_ratio: 2}\n", {"must be a number from 0 to 1; the nearest is 1"}},
      {data + "schedule: {kind: cosin}\n", {"did you mean cosine?"}},
      {data + "parallel: {bucket_bytes: 4 parsecs}\n",
       {"parallel.bucket_bytes = 4 parsecs: must be a size in bytes", "the default is 4194304"}},
      {data + "parallel: {engine: fsdp}\n",
       {"parallel.engine = fsdp: must be one of replicated, sharded, mesh",
        "did you mean sharded?"}},
      {data + "parallel: {zero: 4}\n", {"whole number from 0 to 3; the nearest is 3"}},
      {data + "parallel: {context_kind: a2a}\n", {"did you mean ulysses?"}},
      {data + "parallel: {pipeline_schedule: zbv}\n", {"did you mean zb-v?"}},
      {data + "parallel: {pipeline_cut: 3 2 x}\n",
       {"parallel.pipeline_cut = 3 2 x: must be even, or the layers of each stage, like 3 2 2 1"}},
      {data + "parallel: {tp: 2}\n", {"did you mean parallel.tensor?"}},
      {data + "tensor_parallel_size: 2\n", {"did you mean parallel.tensor?"}},
      {data + "parallel: {pp: 2, cp: 2, ep: 2}\n",
       {"did you mean parallel.pipeline?", "did you mean parallel.context?",
        "did you mean parallel.expert?"}},
      {data + "fsdp: on\n", {"did you mean parallel.engine?"}},

      // Sources.
      {"data: {train: []}\n", {"r.yaml:1: data.train: is missing"}},
      {"data: {train: ''}\n", {"data.train = \"\": must be a path or a list"}},
      {"data:\n  train:\n    - a\n    - {weight: 2}\n",
       {"r.yaml:4: data.train = a map: must be a path"}},
      {"data:\n  train:\n    - {path: a, weight: 0}\n",
       {"r.yaml:3: data.train = 0: weight must be a number above 0"}},
      {"data:\n  train:\n    - {path: a, wieght: 1}\n",
       {"data.train = wieght: is not a field of a source; known are path and weight"}},
      {"data: {train: [[a]]}\n", {"data.train = a list: must be a path", "!is missing"}},

      // Contradictions.
      {data + "batch: {global: 10, micro: 4}\n",
       {"r.yaml:2: batch.micro = 4: must divide batch.global = 10",
        "batch.micro = 2 or 5, or batch.global = 8 or 12"}},
      {data + "batch: {global: 6}\n", {"r.yaml:2: batch.micro = 4: must divide batch.global = 6"}},
      {data + "batch: {global: six, micro: 3}\n", {"batch.global = six", "!must divide"}},
      {data + "batch: {global: 24, micro: 2}\nparallel: {workers: 5}\n",
       {"r.yaml:3: parallel.workers = 5: must divide the 12 micro-batches of a step",
        "parallel.workers = 4 or 6, or batch.global = 20 or 30"}},
      {data + "batch: {global: 8, micro: 8}\nparallel: {workers: 2}\n",
       {"must divide the 1 micro-batches",
        "parallel.workers = 1, or batch.global = 16, or batch.micro = 4"}},
      {data + "batch: {global: 12, micro: 2}\nparallel: {engine: mesh, workers: 16, tensor: 4}\n",
       {"parallel.workers = 16: is 4 data ranks of 4 workers; their number must divide the 6 "
        "micro-batches of a step",
        "nearest are parallel.workers = 12 or 24, or batch.global = 8 or 16, or batch.micro = 1 or "
        "3"}},
      {data + "model: {embed: 100, heads: 8}\n",
       {"model.heads = 8: must divide model.embed = 100; nearest are 5 or 10, or set "
        "model.head_dim"}},
      {data + "model: {heads: 8, kv_heads: 3}\n",
       {"model.kv_heads = 3: must divide model.heads = 8; nearest are 2 or 4"}},
      {data + "model: {embed: 24, heads: 8}\n",
       {"model.head_dim = 3: must be even", "nearest are 2 or 4"}},
      {data + "model: {family: gpt2, kv_heads: 4}\n",
       {"must equal model.heads = 8 in the gpt2 family"}},
      {data + "model: {family: gpt2, head_dim: 8}\n",
       {"must be model.embed / model.heads in the gpt2"}},
      {data + "model: {context: 100}\n",
       {"model.context = 100: must not be below data.sequence = 256"}},
      {data + "model: {vocab: 100}\n",
       {"model.vocab = 100: must hold the 256 ids", "the nearest is 256"}},
      {data + "model: {rope_scaling: {kind: llama3, low_frequency_factor: 5}}\n",
       {"must be above low_frequency_factor = 5"}},
      {data + "model: {moe: {experts: 4, experts_per_token: 5}}\n",
       {"model.moe.experts_per_token = 5: must not be above the 4 experts that a token may go to"}},
      {data + "model: {moe: {experts: 12, groups: 5}}\n",
       {"model.moe.groups = 5: must divide model.moe.experts = 12; nearest are 4 or 6"}},
      {data + "model: {moe: {experts: 8, groups: 4, groups_per_token: 5}}\n",
       {"model.moe.groups_per_token = 5: must not be above model.moe.groups = 4"}},
      {data + "model: {moe: {experts: 8, groups: 8, experts_per_token: 1}}\n",
       {"model.moe.groups = 8: must leave at least two experts a group", "nearest are 4"}},
      {data + "model: {moe: {experts: 8, groups: 4, groups_per_token: 1, experts_per_token: 3}}\n",
       {"model.moe.experts_per_token = 3: must not be above the 2 experts"}},
      {data + "model: {layers: 3, moe: {experts: 8, dense_layers: 3}}\n",
       {"model.moe.dense_layers = 3: must be below model.layers = 3"}},
      {data + "model: {moe: {experts: 8, shared_gate: on}}\n",
       {"model.moe.shared_gate = on: needs model.moe.shared_experts"}},
      {data + "model: {family: gpt2, moe: {experts: 8}}\n",
       {"model.moe.experts = 8: must be 0 in the gpt2 family"}},
      {data + "model: {qk_norm_whole: on}\n", {"model.qk_norm_whole = on: needs model.qk_norm"}},
      {data + "model: {moe: {router: tanh}}\n", {"must be one of softmax, sigmoid"}},
      {data + "model:\n  from: hf\n  layers: 4\n  mlp: 8\n",
       {"r.yaml:4: model.layers: contradicts model.from", "r.yaml:5: model.mlp: contradicts"}},
      {data + "duration: 5 steps\nschedule: {warmup: 10 steps}\n",
       {"schedule.warmup = 10 steps: must not be longer than the run (duration = 5 steps)"}},
      {data + "duration: 8k tokens\nschedule: {warmup: 100 steps}\n",
       {"schedule.warmup = 100 steps: must not be longer than the run (duration = 8000 tokens)"}},
      {data + "schedule: {kind: wsd, warmup: 60 steps, decay: 50 steps}\n",
       {"schedule.decay = 50 steps: must fit into the run", "the nearest is 40 steps"}},
      {data + "checkpoint: {every: 10m}\n",
       {"checkpoint.every = 600s: must be in steps, tokens or epochs", "a bare m is minutes"}},
      {data + "checkpoint: {every: 20 steps, keep_every: 50 steps}\n",
       {"checkpoint.keep_every = 50 steps: must be a multiple of checkpoint.every = 20 steps",
        "nearest are 40 or 60 steps"}},
      {"data: {train: a, validation: b, validation_fraction: 0.1}\n",
       {"data.validation_fraction = 0.1: contradicts data.validation"}},

      // Bases and overrides.
      {"base: gone.yaml\n" + data, {"r.yaml:1: base = gone.yaml: is not a file"}},
      {"base: .\n" + data, {"base = .: is not a file"}},
      {"base: [a]\n" + data, {"base = a list: must be the path of a recipe"}},
      {data,
       {"--set: batch.mirco: is not a field", "did you mean batch.micro?"},
       {"batch.mirco=2"}},
      {data, {"nonsense: must have the form a.b=c"}, {"nonsense"}},
      {data, {"--set: batch.micro = x: must be a whole number"}, {"batch.micro=x"}},
      {data, {"--set: batch: is a group of fields; known in batch: global"}, {"batch=2"}},
      {data, {"--set: data.train = [a] b: is not valid YAML"}, {"data.train=[a] b"}},
      {data, {"--set: data.train = [a: is not valid YAML", "!is missing"}, {"data.train=[a"}},

      // Several at once.
      {"nmae: x\nseed: no\nbatch: {micro: 3}\n",
       {"r.yaml:1: nmae", "r.yaml:2: seed = no", "batch.micro = 3", "data.train: is missing"}},
  };
  return all;
}

std::string error_of(const Bad& bad) {
  try {
    recipe::parse(bad.yaml, "r.yaml", bad.overrides, ".", recipe::Inputs::none);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("bad recipes: each is refused with place, field, value, rule and remedy") {
  CHECK(bad_recipes().size() >= 60);
  for (const Bad& bad : bad_recipes()) {
    const std::string error = error_of(bad);
    CAPTURE(bad.yaml);
    CAPTURE(error);
    for (const std::string& part : bad.parts) {
      CAPTURE(part);
      const bool wanted = part[0] != '!';
      CHECK((error.find(part.substr(wanted ? 0 : 1)) != std::string::npos) == wanted);
    }
  }
}
