#include "recipe/fields.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "recipe/field_makers.h"

namespace tutti::recipe {

namespace {

using namespace makers;  // NOLINT(google-build-using-namespace): the table is their words

constexpr double huge = 1e9;  // keeps products of two counts within 64 bits
const Limits any_count{0, {}, huge, {}}, some{1, {}, huge, {}};
// Above these a model is a slip of the pen: no machine would begin it.
const Limits blocks{1, {}, 1e4, {}}, width{1, {}, 1e6, {}}, any_width{0, {}, 1e7, {}};
const Limits positive{{}, 0, {}, {}}, not_negative{0, {}, {}, {}}, ratio{0, {}, 1, {}},
    below_one{0, {}, {}, 1};

void append(std::vector<Field>& all, std::vector<Field> more) {
  std::move(more.begin(), more.end(), std::back_inserter(all));
}

#define AT(member) [](auto& r) -> auto& { return r.member; }  // NOLINT(bugprone-macro-parentheses)

std::vector<Field> run_fields() {
  return {
      file_name("name", "Names the run and its default folder.", AT(name)),
      seed("seed", "Key of everything random: initial weights, data order, dropout, samples.",
           AT(seed)),
      duration("duration", "How long to train.", AT(duration)),
      choice("precision",
             "What matrix products compute in; weights, sums and optimizer state are fp32 in each. "
             "fp32-fast may round the inputs of products to bf16 where the processor gains by it.",
             {"fp32", "fp32-fast", "bf16", "fp16"}, AT(precision)),
      word_or_count(
          "recompute",
          "Activations that backward computes again instead of keeping: selective, norms and "
          "what products of the feed-forward layer take; full, whole layers; a number, so many "
          "layers of each stage; auto, the least that fits memory_budget.",
          {"none", "selective", "full", "auto"}, AT(recompute)),
      bytes("memory_budget",
            "What a worker may hold, for recompute and batch.micro auto (an estimate); 0: none.",
            Limits{0, {}, 0x1p50, {}}, AT(memory_budget)),
      onoff("reproducible", "Give the same bits for any number of workers.", AT(reproducible)),
      choice("on_nan",
             "At a loss or gradient that is not finite: stop and name it, or skip the update.",
             {"stop", "skip"}, AT(on_nan)),
  };
}

std::vector<Field> model_fields() {
  return {
      choice("model.family", "The architecture.", {"llama", "gpt2"}, AT(model.family)),
      text("model.from", "A Hugging Face folder to start from; its config.json sets the shape.",
           AT(model.from)),
      count("model.vocab", "Number of token ids; 0: the tokenizer's.", any_count, AT(model.vocab)),
      count("model.layers", "Number of transformer blocks.", blocks, AT(model.layers)),
      count("model.embed", "Width of the residual stream.", width, AT(model.embed)),
      count("model.heads", "Number of attention heads; divides embed.", width, AT(model.heads)),
      count("model.kv_heads", "Number of key and value heads; divides heads; 0: as many as heads.",
            any_count, AT(model.kv_heads)),
      count("model.head_dim", "Width of a head; 0: embed / heads.", any_count, AT(model.head_dim)),
      count("model.mlp",
            "Width of the feed-forward layer; 0: 4 x embed (gpt2), 8/3 x embed rounded up to a "
            "multiple of 8 (llama).",
            any_width, AT(model.mlp)),
      count("model.context", "Longest position; 0: data.sequence.", any_count, AT(model.context)),
      number("model.norm_eps", "Added to the variance in norms.", positive, AT(model.norm_eps)),
      number("model.rope_theta", "Base of the rotary frequencies (llama).", positive,
             AT(model.rope_theta)),
      choice("model.rope_scaling.kind", "How rotary frequencies are stretched (llama).",
             {"none", "linear", "llama3"}, AT(model.rope_scaling.kind)),
      number("model.rope_scaling.factor", "By how much they are stretched.", positive,
             AT(model.rope_scaling.factor)),
      number("model.rope_scaling.low_frequency_factor", "llama3: stretched in full below it.",
             positive, AT(model.rope_scaling.low_frequency_factor)),
      number("model.rope_scaling.high_frequency_factor", "llama3: not stretched above it.",
             positive, AT(model.rope_scaling.high_frequency_factor)),
      count("model.rope_scaling.original_context", "llama3: the context before stretching.", some,
            AT(model.rope_scaling.original_context)),
      onoff("model.tied", "Let the head use the embedding's weight.", AT(model.tied)),
      onoff("model.qkv_bias", "Biases on query, key and value (Qwen 2).", AT(model.qkv_bias)),
      onoff("model.qk_norm", "RMSNorm on queries and keys (Qwen 3).", AT(model.qk_norm)),
      onoff("model.qk_norm_whole", "qk_norm over all heads together, not each (OLMoE).",
            AT(model.qk_norm_whole)),
      number("model.dropout", "Probability of dropping an activation.", below_one,
             AT(model.dropout)),
      number("model.init_std", "Standard deviation of the initial matrices.", positive,
             AT(model.init_std)),
  };
}

std::vector<Field> moe_fields() {
  return {
      count("model.moe.experts", "Number of experts of a layer (llama); 0: no mixture.",
            Limits{0, {}, 1e5, {}}, AT(model.moe.experts)),
      count("model.moe.experts_per_token", "How many of them a token goes to.",
            Limits{1, {}, 1e5, {}}, AT(model.moe.experts_per_token)),
      count("model.moe.expert_mlp", "Width of an expert; 0: model.mlp.", any_width,
            AT(model.moe.expert_mlp)),
      count("model.moe.shared_experts",
            "Experts that every token goes to; together one layer of shared_experts x expert_mlp.",
            Limits{0, {}, 1e5, {}}, AT(model.moe.shared_experts)),
      onoff("model.moe.shared_gate", "Scale the shared experts by a sigmoid of the token (Qwen 2).",
            AT(model.moe.shared_gate)),
      count("model.moe.dense_layers", "The first layers, which have no experts.",
            Limits{0, {}, 1e4, {}}, AT(model.moe.dense_layers)),
      choice("model.moe.router",
             "What turns a token's scores into weights; sigmoid has a bias for balance "
             "(DeepSeek-V3).",
             {"softmax", "sigmoid"}, AT(model.moe.router)),
      onoff("model.moe.normalise", "Let the weights of a token's experts sum to 1.",
            AT(model.moe.normalise)),
      number("model.moe.router_scale", "Multiplies those weights.", positive,
             AT(model.moe.router_scale)),
      count("model.moe.groups", "Groups of experts; divides experts.", Limits{1, {}, 1e5, {}},
            AT(model.moe.groups)),
      count("model.moe.groups_per_token", "A token's experts are in this many of the groups.",
            Limits{1, {}, 1e5, {}}, AT(model.moe.groups_per_token)),
      number("model.moe.balance_bias_rate",
             "Step of the bias that balances the experts without a loss; 0: off.", not_negative,
             AT(model.moe.balance_bias_rate)),
      number("model.moe.aux_loss", "Weight of the load-balancing loss; 0: off.", not_negative,
             AT(model.moe.aux_loss)),
      choice("model.moe.aux_scope",
             "Whose load that loss looks at: the micro-batch's, or the last global batch's.",
             {"micro", "global"}, AT(model.moe.aux_scope)),
      number("model.moe.z_loss", "Weight of the loss on large router scores; 0: off.", not_negative,
             AT(model.moe.z_loss)),
      number("model.moe.capacity_factor",
             "An expert takes at most this times its even share of a micro-batch in training; "
             "0: all.",
             not_negative, AT(model.moe.capacity_factor)),
  };
}

std::vector<Field> data_fields() {
  return {
      source_list("data.train", "What to learn from: files, folders, .jsonl, .tutti.",
                  AT(data.train)),
      source_list("data.validation", "What to evaluate on.", AT(data.validation)),
      number("data.validation_fraction", "Part of data.train to hold out instead.", below_one,
             AT(data.validation_fraction)),
      text("data.tokenizer",
           "bytes, bpe-N (N tokens, learnt from data.train at the start), a tokenizer.json, a "
           "SentencePiece .model, or a folder with one.",
           AT(data.tokenizer)),
      count("data.sequence", "Tokens a sample.", some, AT(data.sequence)),
      choice("data.order", "Order of the samples in an epoch.", {"shuffled", "sequential"},
             AT(data.order)),
      onoff("data.document_mask", "Keep attention and loss within a document.",
            AT(data.document_mask)),
      text("data.text_field", "The field of a .jsonl record that holds the text.",
           AT(data.text_field)),
      count("batch.global", "Samples an optimizer step.", some, AT(batch.global)),
      auto_or_count("batch.micro",
                    "Samples a forward and backward pass; divides batch.global; auto, what "
                    "memory_budget allows.",
                    some, AT(batch.micro)),
  };
}

std::vector<Field> optimizer_fields() {
  return {
      choice("optimizer.name", "The update rule.", {"adamw", "muon", "sgd"}, AT(optimizer.name)),
      number("optimizer.lr", "Peak learning rate.", not_negative, AT(optimizer.lr)),
      number("optimizer.beta1", "Decay of the first moment (adamw, muon).", below_one,
             AT(optimizer.beta1)),
      number("optimizer.beta2", "Decay of the second moment (adamw, muon).", below_one,
             AT(optimizer.beta2)),
      number("optimizer.eps", "Added to the root of the second moment (adamw, muon).", positive,
             AT(optimizer.eps)),
      number("optimizer.weight_decay", "Decoupled decay of tensors of two and more dimensions.",
             not_negative, AT(optimizer.weight_decay)),
      number("optimizer.momentum", "Momentum of muon and sgd.", below_one, AT(optimizer.momentum)),
      onoff("optimizer.nesterov", "Nesterov's momentum in muon and sgd.", AT(optimizer.nesterov)),
      number("optimizer.matrix_lr", "Peak learning rate of the hidden matrices (muon).",
             not_negative, AT(optimizer.matrix_lr)),
      number("optimizer.clip", "Largest global gradient norm; 0: off.", not_negative,
             AT(optimizer.clip)),
      choice("optimizer.state",
             "What the optimizer's moments are kept in; bf16 halves them, rounded by chance.",
             {"fp32", "bf16"}, AT(optimizer.state)),
      number("optimizer.outer_lr", "Rate of the step towards the mean of islands (DiLoCo).",
             not_negative, AT(optimizer.outer_lr)),
      number("optimizer.outer_momentum", "Nesterov's momentum of the outer step.", below_one,
             AT(optimizer.outer_momentum)),
      choice(
          "optimizer.outer_type",
          "What islands send: their weights (fp32), or how these changed, rounded; what rounding "
          "took away is sent with the next change.",
          {"fp32", "bf16", "int8", "int4"}, AT(optimizer.outer_type)),
      number("optimizer.outer_mix",
             "How much an island keeps of its own weights when a mean that was under way comes.",
             below_one, AT(optimizer.outer_mix)),
      choice("schedule.kind", "Course of the learning rate after warm-up.",
             {"constant", "linear", "cosine", "wsd"}, AT(schedule.kind)),
      duration("schedule.warmup", "Length of the linear rise from 0.", AT(schedule.warmup)),
      duration("schedule.decay", "wsd: length of the last phase; 0: a fifth of the run.",
               AT(schedule.decay)),
      number("schedule.min_ratio", "Last learning rate / peak.", ratio, AT(schedule.min_ratio)),
  };
}

const Limits ranks{1, {}, 65536, {}}, any_ranks{0, {}, 65536, {}};

std::vector<Field> parallel_fields() {
  return {
      count("parallel.workers",
            "Number of processes: data x context x tensor x pipeline ranks. The data ranks divide "
            "the micro-batches of a step.",
            ranks, AT(parallel.workers)),
      engine("parallel.engine",
             "How the model is spread: copies, shards of the state (ZeRO), or a mesh of any "
             "degrees.",
             {"replicated", "sharded", "mesh"}, AT(parallel.engine)),
      count("parallel.threads", "Intra-op threads a worker; 0: cores / workers.", any_ranks,
            AT(parallel.threads)),
      choice("parallel.transport",
             "What collectives run over; auto: the memory of a host, and tcp between hosts.",
             {"auto", "shm", "tcp", "gloo"}, AT(parallel.transport)),
      onoff("parallel.encrypt", "Encrypt what goes between hosts (auto, tcp).",
            AT(parallel.encrypt)),
      bytes("parallel.bucket_bytes", "Gradients reduced at a time.", Limits{1, {}, 0x1p40, {}},
            AT(parallel.bucket_bytes)),
      onoff("parallel.overlap", "Reduce a bucket while backward goes on.", AT(parallel.overlap)),
      count("parallel.zero",
            "ZeRO stage (sharded, mesh): data ranks share 1 the optimizer's state, 2 also the "
            "gradients, 3 also the parameters; 0: nothing.",
            Limits{0, {}, 3, {}}, AT(parallel.zero)),
      count("parallel.shard",
            "Data ranks that share one copy of that; divides the data ranks; 0: all of them.",
            any_ranks, AT(parallel.shard)),
      onoff("parallel.prefetch", "zero 3: gather the next unit while one is computed.",
            AT(parallel.prefetch)),
      onoff("parallel.reshard_after_forward",
            "zero 3: let go of a unit between its forward and its backward pass.",
            AT(parallel.reshard_after_forward)),
      count("parallel.tensor", "Ranks over which heads, mlp and vocab are cut (mesh).", ranks,
            AT(parallel.tensor)),
      onoff("parallel.sequence_parallel",
            "Cut tokens over the tensor ranks between matrix products.",
            AT(parallel.sequence_parallel)),
      count("parallel.tensor_chunks",
            "Runs of rows in which such a product is computed while others are on their way; 1: "
            "whole.",
            Limits{1, {}, 64, {}}, AT(parallel.tensor_chunks)),
      count("parallel.context", "Ranks over which a sequence is cut (mesh).", ranks,
            AT(parallel.context)),
      choice("parallel.context_kind",
             "What attention does then: keys go round a ring, are gathered, tokens are exchanged "
             "for heads, or rings of such exchanges.",
             {"ring", "gather", "ulysses", "mixed"}, AT(parallel.context_kind)),
      count("parallel.ulysses",
            "mixed: context ranks that exchange heads; divides context; the others form rings.",
            any_ranks, AT(parallel.ulysses)),
      count("parallel.pipeline", "Ranks over which layers are dealt (mesh).", ranks,
            AT(parallel.pipeline)),
      choice("parallel.pipeline_schedule", "The order of its passes (plan/pipeline_schedule.h).",
             {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"},
             AT(parallel.pipeline_schedule)),
      count("parallel.pipeline_chunks",
            "Stages a pipeline rank: 2 for zb-v and dualpipe-v, more than 1 for interleaved.",
            Limits{1, {}, 1e4, {}}, AT(parallel.pipeline_chunks)),
      cut("parallel.pipeline_cut", "Layers of each stage, first to last, or even.",
          AT(parallel.pipeline_cut)),
      count("parallel.expert", "Ranks over which the experts of a layer are dealt (mesh).", ranks,
            AT(parallel.expert)),
      count("parallel.expert_tensor", "Ranks over which each expert is cut (mesh).", ranks,
            AT(parallel.expert_tensor)),
      text("parallel.rules",
           "Logical axes cut otherwise than by default, like mlp=none vocab=none (mesh).",
           AT(parallel.rules)),
      count("parallel.watch_divergence",
            "Steps between comparisons of the state that ranks hold alike; 0: off.", any_count,
            AT(parallel.watch_divergence)),
      count("parallel.islands",
            "Groups of workers that train apart between means of their weights.", ranks,
            AT(parallel.islands)),
      count("parallel.local_steps",
            "Steps between means of islands; 0: gradients are summed in each.", any_count,
            AT(parallel.local_steps)),
      count(
          "parallel.fragments",
          "Parts of the weights that islands send one after the other (streaming DiLoCo); divides "
          "local_steps.",
          ranks, AT(parallel.fragments)),
      count("parallel.overlap_steps",
            "Steps that an island trains on while what it sent is under way; below local_steps / "
            "fragments.",
            any_count, AT(parallel.overlap_steps)),
      choice("parallel.compress",
             "What data ranks send of their gradients, with what is left out sent later: rounded "
             "numbers, signs, the largest elements, or factors of low rank. Needs reproducible: "
             "off.",
             {"none", "bf16", "fp16", "int8", "int4", "sign", "topk", "powersgd"},
             AT(parallel.compress)),
      count("parallel.compress_rank", "powersgd: rank of the factors.", Limits{1, {}, 1024, {}},
            AT(parallel.compress_rank)),
      number("parallel.compress_ratio", "topk: share of the elements of a tensor that is sent.",
             Limits{{}, 0, 1, {}}, AT(parallel.compress_ratio)),
      count("parallel.compress_after",
            "Updates with plain sums before; sign then freezes adamw's second moment.", any_count,
            AT(parallel.compress_after)),
      number("parallel.timeout", "Seconds that ranks wait for each other before the run ends.",
             Limits{1, {}, 1e6, {}}, AT(parallel.timeout)),
  };
}

std::vector<Field> output_fields() {
  return {
      duration("checkpoint.every", "Time between checkpoints; 0: only at the end.",
               AT(checkpoint.every)),
      count("checkpoint.keep_last", "How many of the newest are kept; 0: all.", any_count,
            AT(checkpoint.keep_last)),
      duration("checkpoint.keep_every", "Checkpoints at its multiples are kept for good; 0: none.",
               AT(checkpoint.keep_every)),
      onoff("checkpoint.asynchronous", "Write while training goes on.",
            AT(checkpoint.asynchronous)),
      duration("evaluation.every", "Time between evaluations; 0: only at the end.",
               AT(evaluation.every)),
      count("evaluation.batches", "Global batches an evaluation; 0: the whole validation set.",
            any_count, AT(evaluation.batches)),
      duration("logging.every", "Time between the plain lines.", AT(logging.every)),
      onoff("logging.tensorboard", "Write TensorBoard event files.", AT(logging.tensorboard)),
      onoff("logging.report", "Write report.html at the end.", AT(logging.report)),
      text("logging.sample_prompt", "What the sample in the report goes on from.",
           AT(logging.sample_prompt)),
      count("logging.sample_tokens", "Length of that sample in tokens; 0: none.", any_count,
            AT(logging.sample_tokens)),
  };
}

#undef AT

}  // namespace

std::vector<Field> make_fields() {
  std::vector<Field> all;
  for (auto group : {run_fields, model_fields, moe_fields, data_fields, optimizer_fields,
                     parallel_fields, output_fields})
    append(all, group());
  return all;
}

}  // namespace tutti::recipe
