// What a run is asked to be. A Recipe is one complete value: parse.h makes it from YAML and reports
// every mistake; the defaults below are the recipe's defaults; show.h writes it back. The fields'
// documentation, rules and defaults are told once, in fields.h, which parser, writer, JSON Schema
// and docs/formats/recipe.md all read.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tutti::recipe {

// A length of training or an interval: exactly one unit.
struct Duration {
  enum class Unit { steps, tokens, epochs, seconds };
  double amount = 0;
  Unit unit = Unit::steps;
  bool operator==(const Duration&) const = default;
};

// What a layer computes again in backward instead of keeping it.
enum class Recompute { none, selective, full };

struct RopeScaling {  // Llama 3's (kind "llama3") or linear ("linear"); "none" otherwise.
  std::string kind = "none";
  double factor = 8;
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  std::int64_t original_context = 8192;
  bool operator==(const RopeScaling&) const = default;
};

// A mixture of experts in place of the feed-forward layer (llama); experts = 0: none.
struct Moe {
  std::int64_t experts = 0;
  std::int64_t experts_per_token = 2;
  std::int64_t expert_mlp = 0;      // width of one; 0: mlp
  std::int64_t shared_experts = 0;  // every token's; one layer of shared_experts x expert_mlp
  bool shared_gate = false;         // Qwen 2: a sigmoid of the token scales the shared experts
  std::int64_t dense_layers = 0;    // the first layers, without experts
  std::string router = "softmax";   // softmax | sigmoid
  bool normalise = true;            // the chosen experts' weights sum to 1 (before router_scale)
  double router_scale = 1;
  std::int64_t groups = 1;            // of experts, side by side
  std::int64_t groups_per_token = 1;  // a token's experts are in its best groups
  double balance_bias_rate = 0;       // DeepSeek-V3's balance without a loss; 0: off
  double aux_loss = 0;                // weight of the load-balancing loss; 0: off
  std::string aux_scope = "micro";    // micro | global: whose load it looks at
  double z_loss = 0;                  // weight of the router's z-loss; 0: off
  double capacity_factor = 0;         // 0: dropless
};

struct Model {
  std::string family = "llama";  // llama | gpt2
  std::string from;              // a Hugging Face folder to start from; it then sets the shape
  std::int64_t vocab = 0;        // 0: the tokenizer's
  std::int64_t layers = 4;
  std::int64_t embed = 256;
  std::int64_t heads = 8;
  std::int64_t kv_heads = 0;  // 0: heads
  std::int64_t head_dim = 0;  // 0: embed / heads
  std::int64_t mlp = 0;       // 0: 4 x embed (gpt2); 8/3 x embed rounded up to 8 (llama)
  std::int64_t context = 0;   // longest position; 0: data.sequence
  double norm_eps = 1e-5;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool tied = false;           // head shares the embedding's weight
  bool qkv_bias = false;       // Qwen 2
  bool qk_norm = false;        // Qwen 3
  bool qk_norm_whole = false;  // OLMoE: over all heads together
  double dropout = 0;
  double init_std = 0.02;
  Moe moe;
  // No field of recipes: the model is a program's own, and of all this only `layers` is true.
  bool own = false;
};

struct Source {
  std::string path;  // file, folder, .jsonl, or a tokenized corpus (.tutti)
  double weight = 1;
};

struct Data {
  std::vector<Source> train;
  std::vector<Source> validation;  // empty: validation_fraction of train is held out
  double validation_fraction = 0;
  std::string tokenizer = "bytes";  // bytes | bpe-N | tokenizer.json | *.model | a folder
  std::int64_t sequence = 256;      // tokens a sample
  std::string order = "shuffled";   // shuffled | sequential
  bool document_mask = false;       // attention and loss stay within a document
  std::string text_field = "text";  // of a .jsonl record
};

struct Batch {
  std::int64_t global = 8;  // samples an optimizer step
  std::int64_t micro = 4;   // samples a forward and backward pass, a divisor of global; 0: auto
};

struct Optimizer {
  std::string name = "adamw";  // adamw | muon | sgd
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double momentum = 0.95;      // muon and sgd
  bool nesterov = true;        // muon and sgd
  double matrix_lr = 0.02;     // muon: for the hidden matrices; lr serves the rest, by adamw
  double clip = 1.0;           // global gradient norm; 0: off
  std::string state = "fp32";  // fp32 | bf16: what moments are kept in
  // Of the mean of islands (parallel.local_steps): Nesterov's momentum; rate 1 without it is the
  // mean.
  double outer_lr = 0.7;
  double outer_momentum = 0.9;
  std::string outer_type = "fp32";  // fp32 | bf16 | int8 | int4: what islands send
  double outer_mix = 0.5;  // of an island's weights that moved on while the mean was under way
};

struct Schedule {
  std::string kind = "cosine";  // constant | linear | cosine | wsd
  Duration warmup{10, Duration::Unit::steps};
  Duration decay{0, Duration::Unit::steps};  // wsd: length of the last phase; 0: a fifth of the run
  double min_ratio = 0.1;                    // last lr / lr
};

struct Parallel {
  std::int64_t workers = 1;           // processes: data x context x tensor x pipeline ranks
  std::string engine = "replicated";  // replicated | sharded | mesh, or a registered one
  std::int64_t threads = 0;           // intra-op threads a worker; 0: cores / workers, then fixed
  std::string transport = "auto";     // auto | shm | tcp | gloo
  bool encrypt = false;               // what goes between hosts (auto and tcp)
  std::int64_t bucket_bytes = 4 << 20;
  bool overlap = true;  // reduce a bucket while backward goes on
  // sharded and mesh
  std::int64_t zero = 0;              // ZeRO stage, 0 to 3
  std::int64_t shard = 0;             // data ranks that share one copy of the state; 0: all
  bool prefetch = true;               // zero 3: gather the next unit while one is computed
  bool reshard_after_forward = true;  // zero 3: let go of a unit between forward and backward
  // mesh
  std::int64_t tensor = 1;
  bool sequence_parallel = true;
  std::int64_t tensor_chunks = 1;  // runs of rows of a product that overlap with their collective
  std::int64_t context = 1;
  std::string context_kind = "ring";  // ring | gather | ulysses | mixed
  std::int64_t ulysses = 0;  // mixed: context ranks that exchange heads; the others form rings
  std::int64_t pipeline = 1;
  std::string pipeline_schedule = "1f1b";  // plan/pipeline_schedule.h
  std::int64_t pipeline_chunks = 1;        // stages a rank
  std::string pipeline_cut = "even";       // even, or the layers of each stage: "3 2 2 1"
  std::int64_t expert = 1;                 // ranks over which experts are dealt
  std::int64_t expert_tensor = 1;          // ranks over which each expert is cut
  std::string rules;                       // "mlp=none vocab=none": other than the default table
  std::int64_t watch_divergence = 0;       // steps between hashes of replicated state; 0: off
  std::int64_t islands = 1;                // groups of workers that train apart between their means
  std::int64_t local_steps =
      0;                       // steps between means; 0: no islands, gradients are summed each step
  std::int64_t fragments = 1;  // of the weights, whose means are taken one after the other
  std::int64_t overlap_steps = 0;  // that an island trains on while a mean is under way
  // What data ranks send of their gradients: none | bf16 | fp16 | int8 | int4 | sign | topk |
  // powersgd (parallel/reducer.h)
  std::string compress = "none";
  std::int64_t compress_rank = 4;   // powersgd: of the factors
  double compress_ratio = 0.01;     // topk: elements sent / elements
  std::int64_t compress_after = 0;  // updates with plain sums before
  double timeout = 300;             // seconds that ranks wait for each other
};

// Workers that compute one data rank's part of a batch together.
constexpr std::int64_t model_ranks(const Parallel& p) { return p.tensor * p.context * p.pipeline; }

struct Checkpoint {
  Duration every{0, Duration::Unit::steps};  // 0: only at the end
  std::int64_t keep_last = 2;                // 0: all
  Duration keep_every{0, Duration::Unit::steps};
  bool asynchronous = true;
};

struct Evaluation {
  Duration every{0, Duration::Unit::steps};  // 0: only at the end
  std::int64_t batches = 0;  // global batches each time; 0: all of the validation set
};

struct Logging {
  Duration every{1, Duration::Unit::steps};  // of the plain lines
  bool tensorboard = true;
  bool report = true;
  std::string sample_prompt = "\n";  // the report shows what the model writes after it
  std::int64_t sample_tokens = 256;  // 0: none
};

struct Recipe {
  std::string name = "run";
  std::uint64_t seed = 1;
  Duration duration{100, Duration::Unit::steps};
  std::string precision = "fp32";  // fp32 | bf16 | fp16
  std::string recompute = "none";  // none | selective | full | auto | N: layers a stage
  std::int64_t memory_budget = 0;  // bytes a worker may hold, for what is auto; 0: none
  bool reproducible = true;        // promise 3: same bits for any number of workers
  std::string on_nan = "stop";     // stop | skip
  Model model;
  Data data;
  Batch batch;
  Optimizer optimizer;
  Schedule schedule;
  Parallel parallel;
  Checkpoint checkpoint;
  Evaluation evaluation;
  Logging logging;
};

}  // namespace tutti::recipe
