// Encodes documents on demand, in turns with the tokenizers package (compare_tokenizers.py).
//   tokenizer_bench TOKENIZER DOCUMENTS      documents end with a zero byte
// For every line of input, encodes all documents on one thread and prints the seconds and tokens.

#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

#include "tessera/data/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: tokenizer_bench TOKENIZER DOCUMENTS\n";
    return 2;
  }
  try {
    using Clock = std::chrono::steady_clock;
    const auto seconds = [](Clock::time_point since) {
      return std::chrono::duration<double>(Clock::now() - since).count();
    };
    const Clock::time_point start = Clock::now();
    const auto tokenizer = tessera::data::load_tokenizer(argv[1]);
    std::cout << seconds(start) << std::endl;
    std::ifstream in(argv[2], std::ios::binary);
    const std::string all((std::istreambuf_iterator<char>(in)), {});
    std::vector<tessera::data::TokenId> ids;
    for (std::string line; std::getline(std::cin, line);) {
      const Clock::time_point begin = Clock::now();
      std::size_t tokens = 0;
      for (std::size_t at = 0; at < all.size();) {
        const std::size_t end = all.find('\0', at);
        ids.clear();
        tokenizer->encode(std::string_view(all).substr(at, end - at), ids);
        tokens += ids.size();
        at = end + 1;
      }
      std::cout << seconds(begin) << " " << tokens << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << "tokenizer_bench: " << error.what() << "\n";
    return 1;
  }
}
