#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera::nn {

// Calls f for every tensor inside a value: a tensor, or an optional, pair, tuple, array or vector
// of such values. Other types contain none.
template <typename F>
void each_tensor(at::Tensor& tensor, F&& f) {
  f(tensor);
}
// Visits its value, if there is one.
template <typename T, typename F>
void each_tensor(std::optional<T>& value, F&& f);
// Visits each element in order.
template <typename T, typename F>
void each_tensor(std::vector<T>& values, F&& f);
// Visits each element in order.
template <typename T, std::size_t N, typename F>
void each_tensor(std::array<T, N>& values, F&& f);
// Visits the first, then the second.
template <typename A, typename B, typename F>
void each_tensor(std::pair<A, B>& pair, F&& f);
// Visits each element in order.
template <typename... T, typename F>
void each_tensor(std::tuple<T...>& values, F&& f);
// Visits nothing: other types contain no tensors.
template <typename T, typename F>
void each_tensor(T&, F&&) requires(!std::is_convertible_v<T&, at::Tensor&>) {}

template <typename T, typename F>
void each_tensor(std::optional<T>& value, F&& f) {
  if (value) each_tensor(*value, f);
}
template <typename T, typename F>
void each_tensor(std::vector<T>& values, F&& f) {
  for (T& value : values) each_tensor(value, f);
}
template <typename T, std::size_t N, typename F>
void each_tensor(std::array<T, N>& values, F&& f) {
  for (T& value : values) each_tensor(value, f);
}
template <typename A, typename B, typename F>
void each_tensor(std::pair<A, B>& pair, F&& f) {
  each_tensor(pair.first, f);
  each_tensor(pair.second, f);
}
template <typename... T, typename F>
void each_tensor(std::tuple<T...>& values, F&& f) {
  std::apply([&](T&... value) { (each_tensor(value, f), ...); }, values);
}

// Trait: values of the type can hold tensors that each_tensor finds.
template <typename T>
struct HoldsTensors : std::is_convertible<T&, at::Tensor&> {};
template <typename T>
struct HoldsTensors<std::optional<T>> : HoldsTensors<T> {};
template <typename T>
struct HoldsTensors<std::vector<T>> : HoldsTensors<T> {};
template <typename T, std::size_t N>
struct HoldsTensors<std::array<T, N>> : HoldsTensors<T> {};
template <typename A, typename B>
struct HoldsTensors<std::pair<A, B>> : std::disjunction<HoldsTensors<A>, HoldsTensors<B>> {};
template <typename... T>
struct HoldsTensors<std::tuple<T...>> : std::disjunction<HoldsTensors<T>...> {};

// Replaces all tensors of a value by f(tensors).
template <typename T, typename F>
void map_tensors(T& value, F&& f) {
  std::vector<at::Tensor> tensors;
  each_tensor(value, [&](at::Tensor& tensor) { tensors.push_back(tensor); });
  if (tensors.empty()) return;
  tensors = f(std::move(tensors));
  std::size_t next = 0;
  each_tensor(value, [&](at::Tensor& tensor) { tensor = std::move(tensors[next++]); });
}

// Returns whether a tensor inside the value requires a gradient.
template <typename T>
bool any_requires_grad(T& value) {
  bool any = false;
  each_tensor(value, [&](const at::Tensor& t) { any = any || (t.defined() && t.requires_grad()); });
  return any;
}

}  // namespace tessera::nn
