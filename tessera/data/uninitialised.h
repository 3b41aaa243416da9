#pragma once

#include <memory>
#include <utility>
#include <vector>

namespace tessera::data {

// An allocator whose resize() leaves new elements as memory is: setting megabytes to zero that are
// written at once takes as long as writing them.
template <typename T>
struct LeaveAsItIs : std::allocator<T> {
  template <typename U>
  struct rebind {
    using other = LeaveAsItIs<U>;
  };
  template <typename U>
  void construct(U* at) noexcept {
    ::new (static_cast<void*>(at)) U;
  }
  template <typename U, typename... Args>
  void construct(U* at, Args&&... args) {
    ::new (static_cast<void*>(at)) U(std::forward<Args>(args)...);
  }
};
template <typename T>
using Uninitialised = std::vector<T, LeaveAsItIs<T>>;

}  // namespace tessera::data
