#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tessera/core/dtype.h"

namespace tessera::cli {

// What a flag such as --svg names, written whole or not at all; nothing where it names nothing.
void write_file(const char* flag, const std::string& path,
                const std::function<std::string()>& text);

// A command's options, read by CLI11 under our conventions: --help ends with examples, values are
// written as core/units.h reads them, and whatever is wrong becomes a UsageError that names the
// option, shows the value and suggests the near name.
class CommandLine {
 public:
  // `examples` is shown at the end of --help, a line each.
  CommandLine(const std::string& name, const std::string& summary, const std::string& examples);

  // For whatever the helpers below do not cover: subcommands, plain flags and strings.
  CLI::App& app() { return app_; }

  // Each also takes the app of a subcommand. The default shown by --help is the present value.
  // `bound`: why it may not be more, and what to do instead.
  CLI::Option* integer(CLI::App& app, const std::string& names, int& value, int least, int most,
                       const std::string& help, const std::string& bound = "");
  CLI::Option* number(CLI::App& app, const std::string& names, double& value, double least,
                      double most, const std::string& help);
  // Bytes in a second, more than none.
  CLI::Option* rate(CLI::App& app, const std::string& names, double& value,
                    const std::string& help);
  CLI::Option* seconds(CLI::App& app, const std::string& names, double& value,
                       const std::string& help);
  CLI::Option* bytes(CLI::App& app, const std::string& names, std::int64_t& value,
                     const std::string& help);
  CLI::Option* choice(CLI::App& app, const std::string& names, std::string& value,
                      const std::vector<std::string>& choices, const std::string& help);

  // A type of elements, by any of the names that parse_dtype() takes; `value` becomes name() of it.
  // "auto" is taken too where that is the present value.
  CLI::Option* dtype(CLI::App& app, const std::string& names, std::string& value,
                     std::span<const DType> accepted, const std::string& help);

  // The command ends in a program with its arguments, after "--" or from the first word that is no
  // option; parse() leaves them in program().
  void takes_program();
  const std::vector<std::string>& program() const { return program_; }

  // Returns false when --help was asked for and printed: there is nothing more to do.
  bool parse(int argc, char** argv);
  // For a command with subcommands: parses, runs `body`, and lets errors name the subcommand, whose
  // --help has the option that was wrong.
  int run(int argc, char** argv, const std::function<int()>& body);

 private:
  void refuse_unknown(const std::vector<std::string>& unknown) const;

  CLI::App app_;
  std::vector<std::string> words_;  // as they were typed
  bool takes_program_ = false;
  std::vector<std::string> program_;
};

}  // namespace tessera::cli
