#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Names of an enum's values in flags, files and JSON, in the order of the values. Each enum that a
// user can write has a specialization beside it, with a static constexpr std::array `kNames`.
template <typename E>
struct EnumNames;

template <typename E>
concept NamedEnum = requires {
  EnumNames<E>::kNames.size();
};

// Returns the name of a value.
template <NamedEnum E>
constexpr std::string_view name(E value) {
  return EnumNames<E>::kNames[static_cast<std::size_t>(value)];
}

// Returns the value with this name, or nullopt.
template <NamedEnum E>
constexpr std::optional<E> find_named(std::string_view text) {
  for (std::size_t i = 0; i < EnumNames<E>::kNames.size(); ++i) {
    if (EnumNames<E>::kNames[i] == text) return static_cast<E>(i);
  }
  return std::nullopt;
}

// Returns the names of all values.
template <NamedEnum E>
std::vector<std::string> names_of() {
  return {EnumNames<E>::kNames.begin(), EnumNames<E>::kNames.end()};
}

}  // namespace tessera
