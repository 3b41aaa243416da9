// Completion scripts. The script contains the names of commands; the options of a command are read
// from its --help on completion, so the script is never out of date.

#include <string>
#include <vector>

#include "tessera/cli/command_line.h"
#include "tessera/cli/commands.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"

namespace tessera::cli {
namespace {

constexpr const char* kBash = R"sh(_tessera() {
  local word="${COMP_WORDS[COMP_CWORD]}" command="${COMP_WORDS[1]}" below="" help="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [[ ${COMP_WORDS[i]} == -- ]]; then
      COMPREPLY=($(compgen -f -- "$word"))
      return
    fi
  done
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W "@COMMANDS@ --help --version" -- "$word"))
    return
  fi
  if ((COMP_CWORD > 2)) && [[ $command != run && ${COMP_WORDS[2]} =~ ^[a-z-]+$ ]]; then
    below="${COMP_WORDS[2]}"
  fi
  if [[ $word == -* ]]; then
    help=$("${COMP_WORDS[0]}" "$command" ${below:+"$below"} --help 2>/dev/null)
    COMPREPLY=($(compgen -W "$(grep -oE -- '--[a-z][a-z0-9-]*' <<< "$help")" -- "$word"))
  elif ((COMP_CWORD == 2)); then
    help=$("${COMP_WORDS[0]}" "$command" --help 2>/dev/null)
    COMPREPLY=($(compgen -W "$(sed -n \
      -e '/^Subcommands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p' \
      -e '/^Positionals:/,/^$/s/^  [a-z]* \([a-z|-]*|[a-z|-]*\).*/\1/p' <<< "$help" | tr '|' ' ')" -- "$word"))
  fi
  if ((${#COMPREPLY[@]} == 0)); then COMPREPLY=($(compgen -f -- "$word")); fi
}
complete -o filenames -F _tessera tessera
)sh";

}  // namespace

int completion_command(int argc, char** argv) {
  CommandLine line("completion", "Prints a shell script that completes commands and options.",
                   "  source <(tessera completion bash)\n"
                   "  tessera completion zsh >> ~/.zshrc");
  std::string shell;
  line.choice(line.app(), "shell", shell, {"bash", "zsh"}, "shell to complete in")->required();
  if (!line.parse(argc, argv)) return 0;
  std::string script = kBash;
  const std::string mark = "@COMMANDS@";
  script.replace(script.find(mark), mark.size(), join(command_names(), " "));
  if (shell == "zsh") script = "autoload -U +X bashcompinit && bashcompinit\n" + script;
  return print_out(script);
}

}  // namespace tessera::cli
