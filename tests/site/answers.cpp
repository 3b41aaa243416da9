// Answers requests as the WebAssembly module does: one "METHOD PATH BODY" per line of the input,
// one answer per line of the output. answers_test.mjs compares both.

#include <iostream>
#include <string>

#include "tessera/dashboard/module.h"

void tessera_progress(double, double) {}

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    const std::size_t path = line.find(' ') + 1, body = line.find(' ', path) + 1;
    std::cout << tessera_answer(line.substr(0, path - 1).c_str(),
                                line.substr(path, body - path - 1).c_str(), line.c_str() + body)
              << '\n';
  }
}
