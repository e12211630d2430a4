#include "data/added_tokens.h"

#include <algorithm>

#include "data/unicode.h"

namespace tutti::data {
namespace {

std::size_t last_point(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

bool stands_alone(std::string_view text, std::size_t first, std::size_t end) {
  std::size_t length = 0;
  const std::string_view before = text.substr(0, first);
  if (!before.empty() && is_word(decode_utf8(before, last_point(before), length))) return false;
  return end == text.size() || !is_word(decode_utf8(text, end, length));
}

std::size_t widen_left(std::string_view text, std::size_t first, std::size_t limit) {
  std::size_t length = 0;
  while (first > limit) {
    const std::size_t at = last_point(text.substr(0, first));
    if (!is_white_space(decode_utf8(text, at, length))) break;
    first = at;
  }
  return std::max(first, limit);
}

std::size_t widen_right(std::string_view text, std::size_t end) {
  std::size_t length = 0;
  while (end < text.size() && is_white_space(decode_utf8(text, end, length))) end += length;
  return end;
}

}  // namespace

void AddedTokens::add(AddedToken token) {
  if (token.content.empty()) return;
  auto& bucket = by_first_[static_cast<unsigned char>(token.content[0])];
  const auto longer = [&](std::size_t i) {
    return tokens_[i].content.size() >= token.content.size();
  };
  bucket.insert(std::partition_point(bucket.begin(), bucket.end(), longer), tokens_.size());
  tokens_.push_back(std::move(token));
}

const AddedToken* AddedTokens::match(std::string_view text, std::size_t at) const {
  for (const std::size_t i : by_first_[static_cast<unsigned char>(text[at])])
    if (text.substr(at).starts_with(tokens_[i].content)) return &tokens_[i];
  return nullptr;
}

void AddedTokens::cut(std::string_view text, std::vector<Stretch>& out) const {
  std::size_t done = 0;
  for (std::size_t at = 0; !tokens_.empty() && at < text.size();) {
    const AddedToken* token = match(text, at);
    if (!token) {
      ++at;
      continue;
    }
    std::size_t first = at, end = at + token->content.size();
    at = end;
    if (token->single_word && !stands_alone(text, first, end)) continue;
    if (token->lstrip) first = widen_left(text, first, done);
    if (token->rstrip) end = widen_right(text, end);
    if (first > done) out.push_back({text.substr(done, first - done), -1});
    out.push_back({text.substr(first, end - first), token->id});
    done = end;
    at = std::max(at, end);
  }
  if (done < text.size()) out.push_back({text.substr(done), -1});
}

}  // namespace tutti::data
