#include "tessera/cli/command_line.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <memory>
#include <sstream>
#include <utility>

#include "tessera/cli/commands.h"
#include "tessera/core/errors.h"
#include "tessera/core/publish.h"
#include "tessera/core/run_options.h"
#include "tessera/core/table.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::cli {
namespace {

bool is_option(const std::string& word) { return word.size() > 1 && word[0] == '-'; }

// Collects candidates for a suggestion: the options of the command and of the subcommands given, or
// the names of subcommands.
void collect_names(const CLI::App& app, bool options, std::vector<std::string>& names) {
  if (options) {
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_group().empty()) continue;  // hidden: exists only for a better error
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
      for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    }
  } else {
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(sub->get_name());
    }
  }
  for (const CLI::App* sub : app.get_subcommands()) collect_names(*sub, options, names);
}

std::vector<std::string> subcommands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(sub->get_name());
  }
  return names;
}

// Adds the description of the missing option, because "DIR is required" alone is not clear.
std::string describe_missing(const CLI::App& app, const std::string& message) {
  const CLI::App* inner = &app;
  while (!inner->get_subcommands().empty()) inner = inner->get_subcommands().front();
  const std::vector<std::string> commands = subcommands_of(*inner);
  if (!commands.empty() && message.find("ubcommand") != std::string::npos)
    return (commands.size() == 1 ? "a command is missing; must be "
                                 : "a command is missing; must be one of ") +
           join(commands, ", ");
  for (const CLI::Option* option : inner->get_options()) {
    const std::string name = option->get_name();
    if (message.starts_with(name + " ")) return message + ": " + option->get_description();
  }
  return message;
}

constexpr std::size_t kHelpColumns = 100;

// Wraps text at spaces into lines of at most `most` columns. Keeps its own line breaks.
std::vector<std::string> folded(const std::string& text, std::size_t most) {
  std::vector<std::string> lines;
  std::istringstream all(text);
  for (std::string line; std::getline(all, line);) {
    lines.emplace_back();
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      std::string& last = lines.back();
      if (last.empty()) {
        last = word;
      } else if (columns_of(last) + 1 + columns_of(word) <= most) {
        last += " " + word;
      } else {
        lines.push_back(word);
      }
    }
  }
  return lines;
}

// CLI11's help formatter with three fixes. CLI11 shows a pair as --x, --no-x{false}, which reads
// like a default; it counts bytes instead of columns and never wraps lines; and it puts two empty
// lines between groups.
class Formatter final : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, positional);
    for (const std::string_view mark : {"{false}", "{true}"}) {
      if (const std::size_t at = name.find(mark); at != std::string::npos) {
        name.erase(at, mark.size());
      }
    }
    return name;
  }

  std::string make_option(const CLI::Option* option, bool positional) const override {
    return entry(make_option_name(option, positional) + make_option_opts(option),
                 make_option_desc(option));
  }

  std::string make_subcommand(const CLI::App* sub) const override {
    return entry(sub->get_display_name(true), sub->get_description());
  }

  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    std::string help = CLI::Formatter::make_help(app, std::move(name), mode);
    for (std::size_t at = 0; (at = help.find("\n\n\n", at)) != std::string::npos;) {
      help.erase(at, 1);
    }
    help.erase(help.find_last_not_of('\n') + 1);
    return help + "\n";
  }

 private:
  // Formats a name with its description beside it, or below it if the name is long.
  std::string entry(const std::string& name, const std::string& description) const {
    std::string text = "  " + name;
    std::size_t at = columns_of(text);
    for (const std::string& line : folded(description, kHelpColumns - column_width_)) {
      if (at >= column_width_) {
        text += "\n";
        at = 0;
      }
      text += std::string(column_width_ - at, ' ') + line;
      at = column_width_;
    }
    return text + "\n";
  }
};

// Returns the long name of an option ("-n,--ranks") that was typed, otherwise its first long name.
std::string typed_name(const std::string& names, const std::vector<std::string>& words) {
  std::string first;
  std::istringstream all(names);
  for (std::string name; std::getline(all, name, ',');) {
    if (!name.starts_with("--")) continue;
    for (const std::string& word : words) {
      if (word == name || word.starts_with(name + "=")) return name;
    }
    if (first.empty()) first = name;
  }
  return first.empty() ? names : first;
}

// Adds an option whose text is parsed by `read`. Its errors are prefixed with the option's name.
CLI::Option* converted(CLI::App& app, const std::vector<std::string>& words,
                       const std::string& names, const std::string& help, const std::string& type,
                       const std::string& shown, std::function<void(const std::string&)> read) {
  CLI::Option* option = app.add_option_function<std::string>(
      names,
      [names, &words, read = std::move(read)](const std::string& text) {
        try {
          read(text);
        } catch (const UsageError& error) {
          throw UsageError(typed_name(names, words) + ": " + error.what());
        }
      },
      help);
  return option->type_name(type)->default_str(shown);
}

}  // namespace

void write_file(const char* flag, const std::string& path,
                const std::function<std::string()>& text) {
  if (path.empty()) return;
  try {
    publish(path, text());
  } catch (const Error& error) {
    throw UsageError(str(flag, ": ", error.what()));
  }
}

CommandLine::CommandLine(const std::string& name, const std::string& summary,
                         const std::string& examples)
    : app_(summary, "tessera " + name) {
  app_.footer("Examples:\n" + examples);
  app_.formatter(std::make_shared<Formatter>());
  // parse() rejects extra arguments itself, with suggestions.
  app_.allow_extras();
  app_.fallthrough();  // an option of the command may also stand after its subcommand
  app_.set_help_flag("-h,--help", "print this help and exit");
}

CLI::Option* CommandLine::integer(CLI::App& app, const std::string& names, int& value, int least,
                                  int most, const std::string& help, const std::string& bound) {
  return converted(app, words_, names, help, "INT", std::to_string(value), [=, &value](auto& text) {
    std::int64_t number = 0;
    try {
      number = parse_count(text);
    } catch (const UsageError&) {
      throw UsageError(str("got ", quote(text), "; must be an integer from ", least, " to ", most));
    }
    if (number < least || number > most) {
      throw UsageError(str("got ", number, "; must be ", least, " to ", most,
                           number > most && !bound.empty() ? ": " + bound : std::string()));
    }
    value = static_cast<int>(number);
  });
}

CLI::Option* CommandLine::number(CLI::App& app, const std::string& names, double& value,
                                 double least, double most, const std::string& help) {
  return converted(app, words_, names, help, "NUMBER", str(value), [=, &value](auto& text) {
    double number = 0;
    const char* const last = text.data() + text.size();
    const auto [end, problem] = std::from_chars(text.data(), last, number);
    // The negated comparison rejects NaN too.
    if (problem != std::errc() || end != last || !(number >= least && number <= most)) {
      throw UsageError(str("got ", quote(text), "; must be ", least, " to ", most));
    }
    value = number;
  });
}

CLI::Option* CommandLine::rate(CLI::App& app, const std::string& names, double& value,
                               const std::string& help) {
  return converted(app, words_, names, help, "RATE", value > 0 ? format_rate(value) : "",
                   [&value](auto& text) {
                     const double rate = parse_rate(text);
                     if (!(rate > 0)) {
                       throw UsageError(str("got ", quote(text), "; must be greater than 0"));
                     }
                     value = rate;
                   });
}

CLI::Option* CommandLine::seconds(CLI::App& app, const std::string& names, double& value,
                                  const std::string& help) {
  return converted(app, words_, names, help, "TIME", format_time(value),
                   [&value](auto& text) { value = parse_time(text); });
}

CLI::Option* CommandLine::bytes(CLI::App& app, const std::string& names, std::int64_t& value,
                                const std::string& help) {
  // Shows the default in the unit that is exact: 256 MB is not 244 MiB.
  std::string shown = format_bytes(value);
  if (parse_bytes(shown) != value) shown = format_bytes(value, ByteUnits::kBinary);
  return converted(app, words_, names, help, "SIZE", shown,
                   [&value](auto& text) { value = parse_bytes(text); });
}

CLI::Option* CommandLine::choice(CLI::App& app, const std::string& names, std::string& value,
                                 const std::vector<std::string>& choices, const std::string& help) {
  return converted(app, words_, names, help, join(choices, "|"), value,
                   [&value, choices](auto& text) {
                     if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
                       throw UsageError(str("got ", quote(text), "; must be ",
                                            join(choices, " or "), did_you_mean(text, choices)));
                     }
                     value = text;
                   });
}

CLI::Option* CommandLine::dtype(CLI::App& app, const std::string& names, std::string& value,
                                std::span<const DType> accepted, const std::string& help) {
  const bool automatic = value == "auto";
  const std::vector<DType> types(accepted.begin(), accepted.end());
  std::vector<std::string> words;
  if (automatic) words.emplace_back("auto");
  for (const DType type : types) words.emplace_back(name(type));
  return converted(app, words_, names, help, join(words, "|"), value,
                   [&value, automatic, types](auto& text) {
                     value = automatic && text == "auto" ? "auto" : name(parse_dtype(text, types));
                   });
}

void CommandLine::takes_program() {
  takes_program_ = true;
  app_.prefix_command();
}

void CommandLine::refuse_unknown(const std::vector<std::string>& unknown) const {
  if (unknown.empty()) return;
  // The value of a mistyped option is left over too. Report the option.
  const auto option = std::find_if(unknown.begin(), unknown.end(), is_option);
  std::string word = option != unknown.end() ? *option : unknown.front();
  word = word.substr(0, word.find('='));
  std::vector<std::string> names;
  collect_names(app_, is_option(word), names);
  const std::string_view moved = why_removed(word);
  const std::string suggestion = moved.empty() ? did_you_mean(word, names) : str(". ", moved);
  if (is_option(word) || !suggestion.empty()) throw UsageError(word + ": unknown" + suggestion);
  const bool chosen = !app_.get_subcommands().empty();
  const std::vector<std::string> commands = subcommands_of(app_);
  throw UsageError(chosen || commands.empty()
                       ? word + ": unexpected argument"
                       : word + ": unknown; must be one of " + join(commands, ", "));
}

bool CommandLine::parse(int argc, char** argv) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  bool separated = false;
  if (takes_program_) {
    const auto mark = std::find(words.begin(), words.end(), "--");
    separated = mark != words.end();
    if (separated) {
      program_.assign(mark + 1, words.end());
      words.erase(mark, words.end());
    }
  }
  words_ = words;
  std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
  const auto left_over = [&] {
    std::vector<std::string> rest = app_.remaining(true);
    if (takes_program_ && !separated && !rest.empty() && !is_option(rest.front())) {
      program_ = std::exchange(rest, {});
    }
    return rest;
  };
  try {
    app_.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    print_out(app_.help());
    return false;
  } catch (const CLI::ParseError& error) {
    // A mistyped option often makes a required one appear missing: report the cause.
    refuse_unknown(left_over());
    const bool missing = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
    throw UsageError(missing ? describe_missing(app_, error.what()) : error.what());
  }
  refuse_unknown(left_over());
  return true;
}

int CommandLine::run(int argc, char** argv, const std::function<int()>& body) {
  bool parsed = false;
  std::exception_ptr error;
  try {
    parsed = parse(argc, argv);
  } catch (...) {
    error = std::current_exception();
  }
  std::string name = app_.get_name();
  for (const CLI::App* sub : app_.get_subcommands()) name += " " + sub->get_name();
  return guarded(name, [&] {
    if (error) std::rethrow_exception(error);
    return parsed ? body() : 0;
  });
}

}  // namespace tessera::cli
