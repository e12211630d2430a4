#include "recipe/fields.h"

#include <algorithm>

#include "recipe/quantity.h"

namespace tutti::recipe {
namespace {

using Strings = std::vector<std::string>;

// `at` is a function from Recipe& to the member; each maker builds one Field from it.
template <class At>
Field text(const char* name, const char* doc, At at) {
  return {name, Kind::text, doc, "must be text", {},
          [at](Recipe& r, const std::string& value) { at(r) = value; return true; },
          [at](const Recipe& r) { return at(const_cast<Recipe&>(r)); }, {}};
}

template <class At>
Field choice(const char* name, const char* doc, Strings choices, At at) {
  std::string rule = "must be one of ";
  for (std::size_t i = 0; i < choices.size(); ++i) rule += (i ? ", " : "") + choices[i];
  return {name, Kind::choice, doc, rule, choices,
          [at, choices](Recipe& r, const std::string& value) {
            at(r) = value;
            return std::find(choices.begin(), choices.end(), value) != choices.end();
          },
          [at](const Recipe& r) { return at(const_cast<Recipe&>(r)); }, {}};
}

template <class At>
Field count(const char* name, const char* doc, std::int64_t least, At at) {
  return {name, Kind::count, doc,
          "must be a whole number of at least " + std::to_string(least) + " (2k, 1.5m are understood)", {},
          [at, least](Recipe& r, const std::string& value) {
            const auto parsed = parse_count(value);
            if (!parsed || *parsed < least) return false;
            at(r) = static_cast<std::remove_reference_t<decltype(at(r))>>(*parsed);
            return true;
          },
          [at](const Recipe& r) { return std::to_string(at(const_cast<Recipe&>(r))); }, {}};
}

template <class At>
Field bytes(const char* name, const char* doc, std::int64_t least, At at) {
  return {name, Kind::bytes, doc, "must be a size of at least " + std::to_string(least) + " bytes, like 4mb", {},
          [at, least](Recipe& r, const std::string& value) {
            const auto parsed = parse_bytes(value);
            if (!parsed || *parsed < least) return false;
            at(r) = *parsed;
            return true;
          },
          [at](const Recipe& r) { return std::to_string(at(const_cast<Recipe&>(r))); }, {}};
}

enum class Range { positive, not_negative, fraction, below_one };

bool within(double value, Range range) {
  switch (range) {
    case Range::positive: return value > 0;
    case Range::not_negative: return value >= 0;
    case Range::fraction: return value >= 0 && value <= 1;
    default: return value >= 0 && value < 1;
  }
}

template <class At>
Field number(const char* name, const char* doc, Range range, At at) {
  const char* rules[] = {"must be a number above 0", "must be a number of at least 0",
                         "must be a number from 0 to 1", "must be a number from 0 to below 1"};
  return {name, Kind::number, doc, rules[static_cast<int>(range)], {},
          [at, range](Recipe& r, const std::string& value) {
            const auto parsed = parse_number(value);
            if (!parsed || !within(*parsed, range)) return false;
            at(r) = *parsed;
            return true;
          },
          [at](const Recipe& r) { return number_text(at(const_cast<Recipe&>(r))); }, {}};
}

template <class At>
Field onoff(const char* name, const char* doc, At at) {
  return {name, Kind::onoff, doc, "must be on or off", {},
          [at](Recipe& r, const std::string& value) {
            const auto parsed = parse_switch(value);
            if (parsed) at(r) = *parsed;
            return parsed.has_value();
          },
          [at](const Recipe& r) { return at(const_cast<Recipe&>(r)) ? "on" : "off"; }, {}};
}

template <class At>
Field duration(const char* name, const char* doc, At at) {
  return {name, Kind::duration, doc,
          "must be an amount with a unit, like 2000 steps, 10m tokens, 3 epochs, 90s, 10m, 1h", {},
          [at](Recipe& r, const std::string& value) {
            const auto parsed = parse_duration(value);
            if (parsed) at(r) = *parsed;
            return parsed.has_value();
          },
          [at](const Recipe& r) { return to_text(at(const_cast<Recipe&>(r))); }, {}};
}

template <class At>
Field source_list(const char* name, const char* doc, At at) {
  return {name, Kind::sources, doc, "must be a path or a list of {path, weight}", {}, {}, {}, at};
}

#define AT(member) [](Recipe& r) -> auto& { return r.member; }

std::vector<Field> make_fields() {
  return {
      text("name", "Names the run and its default folder.", AT(name)),
      count("seed", "Of everything random: initialisation, data order, dropout, samples.", 0, AT(seed)),
      duration("duration", "How long to train.", AT(duration)),
      choice("precision", "Of compute; weights, sums and optimizer state are fp32 in each. fp32-fast lets matrix products round their inputs to bf16 where the processor gains by it.",
             {"fp32", "fp32-fast", "bf16", "fp16"}, AT(precision)),
      choice("recompute", "Activations that backward computes again instead of keeping.",
             {"none", "full"}, AT(recompute)),
      onoff("reproducible", "The same bits for any number of workers.", AT(reproducible)),
      choice("on_nan", "At a loss or gradient that is not finite: stop and name it, or skip the update.",
             {"stop", "skip"}, AT(on_nan)),

      choice("model.family", "The architecture.", {"llama", "gpt2"}, AT(model.family)),
      text("model.from", "A Hugging Face folder to start from; its config.json sets the shape.", AT(model.from)),
      count("model.vocab", "Token ids; 0: the tokenizer's.", 0, AT(model.vocab)),
      count("model.layers", "Transformer blocks.", 1, AT(model.layers)),
      count("model.embed", "Width of the residual stream.", 1, AT(model.embed)),
      count("model.heads", "Attention heads.", 1, AT(model.heads)),
      count("model.kv_heads", "Key and value heads; 0: as many as heads.", 0, AT(model.kv_heads)),
      count("model.head_dim", "Width of a head; 0: embed / heads.", 0, AT(model.head_dim)),
      count("model.mlp", "Width of the feed-forward layer; 0: the family's rule.", 0, AT(model.mlp)),
      count("model.context", "Longest position; 0: data.sequence.", 0, AT(model.context)),
      number("model.norm_eps", "Added to the variance in norms.", Range::positive, AT(model.norm_eps)),
      number("model.rope_theta", "Base of the rotary frequencies (llama).", Range::positive, AT(model.rope_theta)),
      choice("model.rope_scaling.kind", "How rotary frequencies are stretched (llama).",
             {"none", "linear", "llama3"}, AT(model.rope_scaling.kind)),
      number("model.rope_scaling.factor", "Stretch.", Range::positive, AT(model.rope_scaling.factor)),
      number("model.rope_scaling.low_frequency_factor", "llama3: below it, stretched in full.",
             Range::positive, AT(model.rope_scaling.low_frequency_factor)),
      number("model.rope_scaling.high_frequency_factor", "llama3: above it, not stretched.",
             Range::positive, AT(model.rope_scaling.high_frequency_factor)),
      count("model.rope_scaling.original_context", "llama3: the context before stretching.", 1,
            AT(model.rope_scaling.original_context)),
      onoff("model.tied", "The head uses the embedding's weight.", AT(model.tied)),
      onoff("model.qkv_bias", "Biases on query, key and value (Qwen 2).", AT(model.qkv_bias)),
      onoff("model.qk_norm", "RMSNorm on queries and keys (Qwen 3).", AT(model.qk_norm)),
      number("model.dropout", "Probability of dropping.", Range::below_one, AT(model.dropout)),
      number("model.init_std", "Standard deviation of the initial matrices.", Range::positive, AT(model.init_std)),

      source_list("data.train", "What to learn from: files, folders, .jsonl, .tutti.",
                  [](Recipe& r) -> std::vector<Source>& { return r.data.train; }),
      source_list("data.validation", "What to evaluate on.",
                  [](Recipe& r) -> std::vector<Source>& { return r.data.validation; }),
      number("data.validation_fraction", "Part of data.train held out instead.", Range::below_one,
             AT(data.validation_fraction)),
      text("data.tokenizer", "bytes, a tokenizer.json, a SentencePiece .model, or a folder with one.", AT(data.tokenizer)),
      count("data.sequence", "Tokens a sample.", 1, AT(data.sequence)),
      choice("data.order", "Of the samples in an epoch.", {"shuffled", "sequential"}, AT(data.order)),
      onoff("data.document_mask", "Attention and loss stay within a document.", AT(data.document_mask)),
      text("data.text_field", "The field of a .jsonl record that holds the text.", AT(data.text_field)),

      count("batch.global", "Samples an optimizer step.", 1, AT(batch.global)),
      count("batch.micro", "Samples a forward and backward pass; divides batch.global.", 1, AT(batch.micro)),

      choice("optimizer.name", "The update rule.", {"adamw", "muon", "sgd"}, AT(optimizer.name)),
      number("optimizer.lr", "Peak learning rate.", Range::not_negative, AT(optimizer.lr)),
      number("optimizer.beta1", "Decay of the first moment (adamw).", Range::below_one, AT(optimizer.beta1)),
      number("optimizer.beta2", "Decay of the second moment (adamw).", Range::below_one, AT(optimizer.beta2)),
      number("optimizer.eps", "Added to the root of the second moment (adamw).", Range::positive, AT(optimizer.eps)),
      number("optimizer.weight_decay", "Decoupled, on tensors of two and more dimensions.",
             Range::not_negative, AT(optimizer.weight_decay)),
      number("optimizer.momentum", "Of muon and sgd.", Range::below_one, AT(optimizer.momentum)),
      onoff("optimizer.nesterov", "Of muon and sgd.", AT(optimizer.nesterov)),
      number("optimizer.matrix_lr", "Learning rate of the hidden matrices (muon).", Range::not_negative, AT(optimizer.matrix_lr)),
      number("optimizer.clip", "Largest global gradient norm; 0: off.", Range::not_negative, AT(optimizer.clip)),

      choice("schedule.kind", "Of the learning rate after warm-up.",
             {"constant", "linear", "cosine", "wsd"}, AT(schedule.kind)),
      duration("schedule.warmup", "Linear rise from 0.", AT(schedule.warmup)),
      duration("schedule.decay", "wsd: the last phase; 0: a fifth of the run.", AT(schedule.decay)),
      number("schedule.min_ratio", "Last learning rate / peak.", Range::fraction, AT(schedule.min_ratio)),

      count("parallel.workers", "Processes.", 1, AT(parallel.workers)),
      choice("parallel.engine", "How the model is spread.", {"replicated"}, AT(parallel.engine)),
      count("parallel.threads", "Intra-op threads a worker; 0: cores / workers.", 0, AT(parallel.threads)),
      choice("parallel.transport", "What collectives run over.", {"auto", "shm", "gloo"}, AT(parallel.transport)),
      bytes("parallel.bucket_bytes", "Gradients reduced at a time.", 1, AT(parallel.bucket_bytes)),
      onoff("parallel.overlap", "Reduce a bucket while backward goes on.", AT(parallel.overlap)),

      duration("checkpoint.every", "0: only at the end.", AT(checkpoint.every)),
      count("checkpoint.keep_last", "Newest checkpoints kept; 0: all.", 0, AT(checkpoint.keep_last)),
      duration("checkpoint.keep_every", "Checkpoints at its multiples are kept for good; 0: none.", AT(checkpoint.keep_every)),
      onoff("checkpoint.asynchronous", "Write while training goes on.", AT(checkpoint.asynchronous)),

      duration("evaluation.every", "0: only at the end.", AT(evaluation.every)),
      count("evaluation.batches", "Global batches an evaluation; 0: the whole validation set.", 0, AT(evaluation.batches)),

      duration("logging.every", "Interval of the plain lines.", AT(logging.every)),
      onoff("logging.tensorboard", "Write TensorBoard event files.", AT(logging.tensorboard)),
      onoff("logging.report", "Write report.html at the end.", AT(logging.report)),
      text("logging.sample_prompt", "What the sample in the report goes on from.", AT(logging.sample_prompt)),
      count("logging.sample_tokens", "Length of that sample; 0: none.", 0, AT(logging.sample_tokens)),
  };
}

#undef AT

}  // namespace

const std::vector<Field>& fields() {
  static const std::vector<Field> list = make_fields();
  return list;
}

const Field* find_field(const std::string& name) {
  for (const Field& field : fields())
    if (field.name == name) return &field;
  return nullptr;
}

}  // namespace tutti::recipe
