// encode|decode TOKENIZER: the filters of tokenizer_lines.h over standard input; time measures a
// whole text. Also the parity test's program where `tutti` itself is not built.
#include <chrono>
#include <cstring>
#include <iostream>
#include <iterator>

#include "data/tokenizer_lines.h"

int main(int count, char** arguments) {
  if (count != 3) return std::cerr << "encode|decode|time TOKENIZER\n", 2;
  try {
    std::ios::sync_with_stdio(false);
    const auto tokenizer = tutti::data::open_tokenizer(arguments[2]);
    if (!std::strcmp(arguments[1], "encode"))
      tutti::data::encode_lines(*tokenizer, std::cin, std::cout);
    else if (!std::strcmp(arguments[1], "decode"))
      tutti::data::decode_lines(*tokenizer, std::cin, std::cout);
    else {
      const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
      const auto start = std::chrono::steady_clock::now();
      const std::size_t tokens = tokenizer->encode(text).size();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      std::cout << tokens << " tokens, " << static_cast<double>(text.size()) / took.count() / 1e6
                << " MB/s\n";
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
