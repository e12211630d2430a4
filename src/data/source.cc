#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "data/corpus.h"
#include "data/source.h"

namespace tutti::data {
namespace {

[[noreturn]] void refuse(const std::string& where, const std::string& rule,
                         const std::string& remedy) {
  throw ConfigError({{"", where, "", rule, remedy}});
}

void check_utf8(std::string_view text, const std::string& origin) {
  std::size_t offset = 0;
  if (!valid_utf8(text, &offset))
    refuse(origin, str("is not UTF-8: bad byte at offset ", offset),
           "convert it, or use the tokenizer \"bytes\"");
}

std::string record_text(std::string_view line, const std::string& where,
                        const std::string& text_field) {
  Json record;
  try {
    record = Json::parse(line);
  } catch (const Json::exception&) {
    refuse(where, "not a JSON object", "a .jsonl file has one object a line");
  }
  if (!record.is_object())
    refuse(where, "not a JSON object", "a .jsonl file has one object a line");
  const auto field = record.find(text_field);
  if (field == record.end() || !field->is_string())
    refuse(where, str("no text field \"", text_field, "\""), "name it with data.text_field");
  return field->get<std::string>();
}

bool each_record(const fs::path& path, const std::string& content, const std::string& text_field,
                 const DocumentSink& sink) {
  bool any = false;
  std::size_t number = 0;
  for (std::size_t at = 0; at < content.size();) {
    const std::size_t end = std::min(content.find('\n', at), content.size());
    const std::string_view line = trim(std::string_view(content).substr(at, end - at));
    at = end + 1;
    ++number;
    if (line.empty()) continue;
    const std::string text = record_text(line, str(path.string(), ":", number), text_field);
    if (text.empty()) continue;
    any = true;
    sink(text);
  }
  return any;
}

bool each_in_file(const fs::path& path, const std::string& text_field, bool any_bytes,
                  const DocumentSink& sink) {
  if (path.extension() == ".tutti")
    refuse(path.string(), "is tokenized already: it holds no text", "name the text");
  if (!fs::is_regular_file(path))
    refuse(path.string(), "is not a regular file", "name a text file");
  const std::string content = read_file(path);
  const bool records = path.extension() == ".jsonl";
  if (!any_bytes || records) check_utf8(content, path.string());
  if (records) return each_record(path, content, text_field, sink);
  if (content.empty()) return false;
  sink(content);
  return true;
}

}  // namespace

std::vector<fs::path> source_files(const std::string& source) {
  std::error_code error;
  const fs::file_status status = fs::status(source, error);
  if (!fs::exists(status))
    refuse(source, str("no such file or folder", error ? ": " + error.message() : ""), "");
  if (!fs::is_directory(status)) return {source};
  std::vector<fs::path> files;
  fs::recursive_directory_iterator entry(source, fs::directory_options::follow_directory_symlink,
                                         error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    const bool hidden = entry->path().filename().string().starts_with('.');
    std::error_code gone;
    if (entry->is_directory(gone)) {
      if (hidden) entry.disable_recursion_pending();
    } else if (!hidden && entry->is_regular_file(gone)) {
      files.push_back(entry->path());
    }
  }
  if (error) throw WorldError(str("cannot list ", source, ": ", error.message()));
  if (files.empty()) refuse(source, "no files in the folder", "");
  std::sort(files.begin(), files.end(),
            [](const fs::path& a, const fs::path& b) { return a.string() < b.string(); });
  return files;
}

void for_each_document(const std::string& source, const std::string& text_field, bool any_bytes,
                       const DocumentSink& sink) {
  bool any = false;
  for (const fs::path& file : source_files(source))
    any |= each_in_file(file, text_field, any_bytes, sink);
  if (!any) refuse(source, "is empty: it holds no text", "name a file or a folder with text");
}

}  // namespace tutti::data
