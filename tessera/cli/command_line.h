#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tessera/core/dtype.h"

namespace tessera::cli {

// Writes the output file of a flag such as --svg atomically. Does nothing if `path` is empty.
void write_file(const char* flag, const std::string& path,
                const std::function<std::string()>& text);

// Options of a command, parsed by CLI11 with these conventions: --help ends with examples, values
// have the units of core/units.h, and errors become a UsageError that names the option, shows the
// value and suggests a similar name.
class CommandLine {
 public:
  // `examples` is shown at the end of --help, one per line.
  CommandLine(const std::string& name, const std::string& summary, const std::string& examples);

  // For options that the helpers below do not cover: subcommands, plain flags and strings.
  CLI::App& app() { return app_; }

  // Each adds an option to `app`, which may be a subcommand. --help shows the current value as the
  // default. `bound` explains the upper limit and what to do instead.
  CLI::Option* integer(CLI::App& app, const std::string& names, int& value, int least, int most,
                       const std::string& help, const std::string& bound = "");
  CLI::Option* number(CLI::App& app, const std::string& names, double& value, double least,
                      double most, const std::string& help);
  // Bytes per second, greater than 0.
  CLI::Option* rate(CLI::App& app, const std::string& names, double& value,
                    const std::string& help);
  CLI::Option* seconds(CLI::App& app, const std::string& names, double& value,
                       const std::string& help);
  CLI::Option* bytes(CLI::App& app, const std::string& names, std::int64_t& value,
                     const std::string& help);
  CLI::Option* choice(CLI::App& app, const std::string& names, std::string& value,
                      const std::vector<std::string>& choices, const std::string& help);

  // An element type by any name that parse_dtype() accepts; `value` is set to its name(). "auto" is
  // accepted if it is the current value.
  CLI::Option* dtype(CLI::App& app, const std::string& names, std::string& value,
                     std::span<const DType> accepted, const std::string& help);

  // Accepts a program and its arguments at the end, after "--" or from the first word that is not
  // an option. parse() stores them in program().
  void takes_program();
  const std::vector<std::string>& program() const { return program_; }

  // Parses the arguments. Returns false if it printed --help and the command is done.
  bool parse(int argc, char** argv);
  // For a command with subcommands: parses, runs `body`, and names the subcommand in errors, so
  // that they refer to its --help.
  int run(int argc, char** argv, const std::function<int()>& body);

 private:
  void refuse_unknown(const std::vector<std::string>& unknown) const;

  CLI::App app_;
  std::vector<std::string> words_;  // arguments as typed
  bool takes_program_ = false;
  std::vector<std::string> program_;
};

}  // namespace tessera::cli
