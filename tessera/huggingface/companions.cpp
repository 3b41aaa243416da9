// [Note: companions]

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/config.h"
#include "tessera/huggingface/export.h"
#include "tessera/huggingface/folder.h"

namespace tessera::huggingface {
namespace {

constexpr std::int64_t kMostCompanionBytes = std::int64_t{512} << 20;

}  // namespace

const std::vector<std::string>& companion_names() {
  static const std::vector<std::string> names = {"generation_config.json",
                                                 "tokenizer.json",
                                                 "tokenizer_config.json",
                                                 "special_tokens_map.json",
                                                 "added_tokens.json",
                                                 "tokenizer.model",
                                                 "vocab.json",
                                                 "merges.txt",
                                                 "chat_template.jinja",
                                                 "chat_template.json"};
  return names;
}

void keep_companions(const std::string& from, const std::string& dir) {
  const auto files = checkpoint::local_files();
  files->make_folder(dir);
  const std::string draft = str(dir, "/.tmp-", kCompanionsName),
                    place = str(dir, "/", kCompanionsName),
                    away = str(dir, "/.old-", kCompanionsName);
  for (const std::string& left : {draft, away}) checkpoint::remove_tree(*files, left);
  files->make_folder(draft);
  std::vector<std::string> names = companion_names();
  names.push_back(kConfigName);
  for (const std::string& name : names) {
    if (kind_of_file(from + "/" + name) != "a regular file") continue;
    checkpoint::write_text(*files, draft + "/" + name,
                           checkpoint::read_text(*files, file_in(from, name), kMostCompanionBytes));
  }
  files->sync_folder(draft);
  const std::string old = checkpoint::put_in_place(*files, draft, place, away);
  files->sync_folder(dir);
  if (!old.empty()) checkpoint::remove_tree(*files, old);
}

std::string companions_of(const std::string& checkpoint_folder) {
  const std::string path = checkpoint_folder + "/../" + kCompanionsName;
  return kind_of_file(path) == "a folder" ? path : "";
}

}  // namespace tessera::huggingface
