#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "data/corpus.h"
#include "data/corpus_format.h"
#include "data/source.h"

namespace tutti::data {
namespace {

// A file that appears under its name only when whole and durable.
class CorpusWriter {
 public:
  CorpusWriter(const fs::path& path, const Tokenizer& tokenizer) : path_(path), beside_(path) {
    beside_ += str(".tmp-", ::getpid());
    header_.vocab = static_cast<std::uint64_t>(tokenizer.vocab_size());
    header_.token_bytes = header_.vocab <= 256 ? 1 : header_.vocab <= 65536 ? 2 : 4;
    header_.tokenizer_hash = tokenizer.hash();
    const std::string& name = tokenizer.name();
    std::memcpy(header_.tokenizer_name.data(), name.data(),
                std::min(name.size(), header_.tokenizer_name.size() - 1));
    fd_ = ::open(beside_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd_ < 0) fail("write");
    put(&header_, sizeof header_);
  }
  CorpusWriter(const CorpusWriter&) = delete;
  CorpusWriter& operator=(const CorpusWriter&) = delete;
  ~CorpusWriter() {
    if (fd_ >= 0) ::close(fd_);
    if (!named_) ::unlink(beside_.c_str());
  }

  void add(std::span<const std::int32_t> ids, std::uint64_t text_bytes) {
    for (const std::int32_t id : ids) {
      const auto* raw = reinterpret_cast<const std::byte*>(&id);  // Little-endian: the low bytes.
      pending_.insert(pending_.end(), raw, raw + header_.token_bytes);
    }
    header_.tokens += ids.size();
    header_.text_bytes += text_bytes;
    offsets_.push_back(header_.tokens);
    std::size_t at = 0;
    for (; pending_.size() - at >= checksum_block; at += checksum_block)
      put_tokens({pending_.data() + at, checksum_block});
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  void finish() {
    if (!pending_.empty()) put_tokens(pending_);
    const std::uint64_t padding =
        offsets_at(header_) - sizeof header_ - header_.tokens * header_.token_bytes;
    const std::uint64_t zero = 0;
    put(&zero, padding);
    put(offsets_.data(), offsets_.size() * 8);
    header_.documents = offsets_.size() - 1;
    header_.offset_checksum = chained_hash(std::as_bytes(std::span(offsets_)));
    header_.header_checksum = header_hash(header_);
    if (::lseek(fd_, 0, SEEK_SET) != 0) fail("write");
    put(&header_, sizeof header_);
    if (::fsync(fd_) != 0) fail("make durable");
    if (::rename(beside_.c_str(), path_.c_str()) != 0) fail("name");
    named_ = true;
    make_durable(path_.has_parent_path() ? path_.parent_path() : fs::path("."));
  }

  std::uint64_t tokens() const { return header_.tokens; }

 private:
  [[noreturn]] void fail(const char* what) {
    throw WorldError(str("cannot ", what, " ", path_.string(), ": ", errno_text()));
  }
  void put(const void* data, std::size_t size) {
    const char* from = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t count = ::write(fd_, from, size);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail("write");
      from += count;
      size -= static_cast<std::size_t>(count);
    }
  }
  void put_tokens(std::span<const std::byte> block) {
    header_.token_checksum = hash64(block, header_.token_checksum);
    put(block.data(), block.size());
  }

  fs::path path_, beside_;
  int fd_ = -1;
  bool named_ = false;
  CorpusHeader header_;
  std::vector<std::byte> pending_;
  std::vector<std::uint64_t> offsets_ = {0};
};

fs::path default_cache() {
  if (const char* set = std::getenv("TUTTI_CACHE"); set && *set) return set;
  if (const char* set = std::getenv("XDG_CACHE_HOME"); set && *set) return fs::path(set) / "tutti";
  if (const char* home = std::getenv("HOME"); home && *home) return fs::path(home) / ".cache/tutti";
  return fs::temp_directory_path() / "tutti-cache";
}

std::uint64_t source_key(const std::string& source, const Tokenizer& tokenizer,
                         const std::string& text_field) {
  std::string key = str(corpus_version, " ", hex64(tokenizer.hash()), " ", text_field, "\n");
  for (const fs::path& file : source_files(source)) {
    std::error_code error;
    const auto size = fs::file_size(file, error);
    const auto time = fs::last_write_time(file, error).time_since_epoch().count();
    key += str(fs::absolute(file).lexically_normal().string(), " ", size, " ", time, "\n");
  }
  return hash64(key);
}

Corpus open_tokenized(const std::string& source, const Tokenizer& tokenizer) {
  Corpus corpus = Corpus::open(source);
  if (corpus.tokenizer_hash() != tokenizer.hash())
    throw ConfigError({{"", source, "",
                        str("was made by another tokenizer (", corpus.tokenizer_name(), ", ",
                            hex64(corpus.tokenizer_hash()), ") than ", tokenizer.name(), " (",
                            hex64(tokenizer.hash()), ")"),
                        "tokenize it anew or set data.tokenizer"}});
  return corpus;
}

bool writable_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  return !error && ::access(folder.c_str(), W_OK) == 0;
}

}  // namespace

TokenizeProgress tokenize_to_file(const std::vector<std::string>& sources,
                                  const Tokenizer& tokenizer, const fs::path& out,
                                  const TokenizeOptions& options) {
  constexpr std::uint64_t report_every = 4 << 20;
  CorpusWriter writer(out, tokenizer);
  TokenizeProgress total;
  std::uint64_t reported = 0;
  const bool any_bytes = tokenizer.name() == "bytes";
  const auto take = [&](std::string_view text) {
    std::vector<std::int32_t> ids = tokenizer.encode(text);
    if (const auto end = tokenizer.end_of_document()) ids.push_back(*end);
    writer.add(ids, text.size());
    ++total.documents;
    total.bytes += text.size();
    total.tokens = writer.tokens();
    if (!options.progress || total.bytes - reported < report_every) return;
    reported = total.bytes;
    options.progress(total);
  };
  for (const std::string& source : sources)
    for_each_document(source, options.text_field, any_bytes, take);
  writer.finish();
  if (options.progress) options.progress(total);
  return total;
}

Corpus open_source(const std::string& source, const Tokenizer& tokenizer,
                   const TokenizeOptions& options, const fs::path& cache) {
  if (fs::path(source).extension() == ".tutti") return open_tokenized(source, tokenizer);
  const std::string name = hex64(source_key(source, tokenizer, options.text_field)) + ".tutti";
  const fs::path folder = cache.empty() ? default_cache() : cache;
  if (!writable_folder(folder)) {  // No cache, then: the mapping outlives the removed file.
    const TempFolder temporary("tutti-corpus");
    tokenize_to_file({source}, tokenizer, temporary.path() / name, options);
    return Corpus::open(temporary.path() / name);
  }
  const fs::path file = folder / name;
  if (fs::exists(file)) {
    try {
      return Corpus::open(file, true);
    } catch (const WorldError&) {  // Damaged: made anew below.
    }
  }
  tokenize_to_file({source}, tokenizer, file, options);
  return Corpus::open(file);
}

}  // namespace tutti::data
