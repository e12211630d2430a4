// tokenize, tokenizer train | encode | decode.
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/verbs.h"
#include "data/corpus.h"
#include "data/tokenizer.h"
#include "data/tokenizer_trainer.h"

namespace tutti::cli {
namespace {

struct Options {
  std::vector<std::string> sources;
  std::string tokenizer = "bytes", out, text_field = "text";
  data::TrainerOptions trainer;
  bool json = false, special = false;
};

std::string standard_input() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

int tokenize(const Options& options) {
  const auto tokenizer = data::open_tokenizer(options.tokenizer);
  data::TokenizeOptions how;
  how.text_field = options.text_field;
  const auto total = data::tokenize_to_file(options.sources, *tokenizer, options.out, how);
  std::cout << options.out << ": " << total.tokens << " tokens, " << total.documents
            << " documents, " << human_bytes(static_cast<double>(total.bytes)) << " of text\n";
  return 0;
}

int train(const Options& options) {
  const auto vocab =
      data::train_tokenizer(options.sources, options.text_field, options.trainer, options.out);
  std::cout << options.out << ": " << vocab << " tokens\n";
  return 0;
}

int encode(const Options& options) {
  const auto tokenizer = data::open_tokenizer(options.tokenizer);
  const std::string text = standard_input();
  const auto ids = options.special ? tokenizer->encode_with_special(text) : tokenizer->encode(text);
  if (options.json) {
    std::cout << Json(ids).dump() << "\n";
    return 0;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) std::cout << (i ? " " : "") << ids[i];
  std::cout << "\n";
  return 0;
}

// "[1, 2]" or "1 2" or "1,2".
std::vector<std::int32_t> parse_ids(std::string text) {
  for (char& c : text) {
    if (c == '[' || c == ']' || c == ',') c = ' ';
  }
  std::istringstream in(text);
  std::vector<std::int32_t> ids;
  for (std::string word; in >> word;) {
    char* end = nullptr;
    errno = 0;
    const long id = std::strtol(word.c_str(), &end, 10);
    if (*end != '\0' || errno != 0 || id != static_cast<std::int32_t>(id)) {
      throw ConfigError({{"ids", "standard input", word, "must be integers", ""}});
    }
    ids.push_back(static_cast<std::int32_t>(id));
  }
  return ids;
}

int decode(const Options& options) {
  std::cout << data::open_tokenizer(options.tokenizer)->decode(parse_ids(standard_input()));
  return 0;
}

void add_sources(CLI::App& verb, Options& options) {
  verb.add_option("SOURCES", options.sources, "text files, folders, .jsonl files")->required();
  verb.add_option("--out", options.out, "the file to write")->required()->type_name("FILE");
  verb.add_option("--text-field", options.text_field, "of a .jsonl record")->type_name("NAME");
}

void add_tokenizer_option(CLI::App& verb, Options& options) {
  verb.add_option("--tokenizer", options.tokenizer,
                  "bytes, a tokenizer.json, a SentencePiece .model, or a folder with one")
      ->type_name("T");
}

void choose(CLI::App& verb, Action& chosen, const std::shared_ptr<Options>& options,
            int (*action)(const Options&)) {
  verb.callback([=, &chosen] { chosen = [=] { return action(*options); }; });
}

}  // namespace

void add_tokenize(CLI::App& app, Action& chosen) {
  const auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("tokenize", "turn text into a file of token ids (.tutti)");
  add_sources(*verb, *options);
  add_tokenizer_option(*verb, *options);
  verb->footer(example("tutti tokenize README.md --tokenizer bytes --out readme.tutti"));
  choose(*verb, chosen, options, tokenize);
}

void add_tokenizer(CLI::App& app, Action& chosen) {
  const auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("tokenizer", "make and use tokenizers");
  verb->require_subcommand(1);

  CLI::App* make = verb->add_subcommand("train", "learn a byte-level BPE (a tokenizer.json)");
  add_sources(*make, *options);
  make->add_option("--vocab", options->trainer.vocab, "how many tokens in all")
      ->type_name("N")
      ->capture_default_str();
  make->add_option("--split", options->trainer.split, "the pattern that cuts words")
      ->check(CLI::IsMember({"gpt2", "llama3", "qwen"}))
      ->capture_default_str();
  make->footer(example("tutti tokenizer train README.md --vocab 300 --out tokenizer.json"));
  choose(*make, chosen, options, train);

  CLI::App* enc = verb->add_subcommand("encode", "text on standard input to ids");
  add_tokenizer_option(*enc, *options);
  enc->add_flag("--json", options->json, "a JSON array");
  enc->add_flag("--special", options->special, "with what the tokenizer puts around a text");
  enc->footer(example("echo hello | tutti tokenizer encode --tokenizer bytes --json"));
  choose(*enc, chosen, options, encode);

  CLI::App* dec = verb->add_subcommand("decode", "ids on standard input to text");
  add_tokenizer_option(*dec, *options);
  dec->footer(example("echo '[104, 105]' | tutti tokenizer decode --tokenizer bytes"));
  choose(*dec, chosen, options, decode);
}

}  // namespace tutti::cli
