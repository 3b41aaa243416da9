#include "tessera/data/prepare_state.h"

#include <nlohmann/json.hpp>

#include "tessera/checkpoint/checksum.h"
#include "tessera/core/errors.h"
#include "tessera/core/strict_json.h"
#include "tessera/core/text.h"

namespace tessera::data {
namespace {

using StateJson = nlohmann::json;

StateJson shard_json(const TokenShard& shard) {
  return {shard.name, shard.tokens, shard.documents, shard.bin_crc, shard.idx_crc, shard.mask_crc};
}

std::uint64_t state_number(const StateJson& value, std::uint64_t most) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > most) {
    throw DataError(str("a number is ",
                        value.dump(-1, ' ', true, StateJson::error_handler_t::replace),
                        ", must be at most ", most));
  }
  return value.get<std::uint64_t>();
}

TokenShard shard_of(const StateJson& value) {
  TokenShard shard;
  shard.name = value.at(0).get<std::string>();
  shard.tokens = state_number(value.at(1), kMaxTokens);
  shard.documents = state_number(value.at(2), shard.tokens);
  shard.bin_crc = static_cast<std::uint32_t>(state_number(value.at(3), UINT32_MAX));
  shard.idx_crc = static_cast<std::uint32_t>(state_number(value.at(4), UINT32_MAX));
  shard.mask_crc = static_cast<std::uint32_t>(state_number(value.at(5), UINT32_MAX));
  return shard;
}

}  // namespace

std::string to_text(const PrepareState& state) {
  const InputPosition& at = state.position;
  const DocumentCounts& counts = state.counts;
  StateJson finished = StateJson::array();
  for (const TokenShard& shard : state.writer.finished) finished.push_back(shard_json(shard));
  const StateJson all = {
      {"call", state.call},
      {"position", {at.file, at.offset, at.line, at.begun ? 1 : 0, at.empty_files, at.cuts}},
      {"finished", finished},
      {"open", shard_json(state.writer.open)},
      {"mask_rest", state.writer.mask_rest},
      {"counts",
       {counts.documents, counts.bytes_of_text, counts.learned, counts.replaced, counts.empty}}};
  const std::string body = all.dump(1, ' ', false, StateJson::error_handler_t::replace) + "\n";
  return str(checkpoint::to_hex({checkpoint::crc32c(body)}), "\n", body);
}

PrepareState parse_prepare_state(std::string_view text, const std::string& where) {
  std::vector<std::uint32_t> crc;
  if (text.size() < 9 || text[8] != '\n' || !checkpoint::from_hex(text.substr(0, 8), crc) ||
      checkpoint::crc32c(text.substr(9)) != crc[0]) {
    throw DataError(str(where, " was changed or truncated. Start over with --restart."));
  }
  const StateJson json = parse_strictly(text.substr(9), 8, where);
  constexpr std::uint64_t kMost = std::uint64_t{1} << 60;
  PrepareState state;
  try {
    state.call = json.at("call").get<std::map<std::string, std::string>>();
    const StateJson& at = json.at("position");
    state.position = {state_number(at.at(0), kMost), state_number(at.at(1), kMost),
                      state_number(at.at(2), kMost), state_number(at.at(3), 1) == 1,
                      state_number(at.at(4), kMost), state_number(at.at(5), kMost)};
    std::uint64_t tokens = 0;
    for (const StateJson& shard : json.at("finished")) {
      state.writer.finished.push_back(shard_of(shard));
      const TokenShard& last = state.writer.finished.back();
      if (last.name != shard_name(state.writer.finished.size() - 1)) {
        throw DataError(str("a shard has the unexpected name ", quote(last.name)));
      }
      tokens += last.tokens;
      if (tokens > kMaxTokens) throw DataError("too many tokens");
    }
    state.writer.open = shard_of(json.at("open"));
    state.writer.mask_rest =
        static_cast<std::uint8_t>(state_number(json.at("mask_rest"), UINT8_MAX));
    const StateJson& counts = json.at("counts");
    state.counts = {state_number(counts.at(0), kMost), state_number(counts.at(1), kMost),
                    state_number(counts.at(2), kMost), state_number(counts.at(3), kMost),
                    state_number(counts.at(4), kMost)};
  } catch (const StateJson::exception& error) {
    throw DataError(
        str(where, " was not written by prepare: ", error.what(), ". Start over with --restart."));
  } catch (const DataError& error) {
    throw DataError(str(where, ": ", error.what(), ". Start over with --restart."));
  }
  return state;
}

}  // namespace tessera::data
