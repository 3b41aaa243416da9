#pragma once

#include <dlfcn.h>

#include <initializer_list>
#include <string>

namespace tessera {

// A shared library loaded at run time: the machine may not have it, or LibTorch may have loaded it
// already. It is never unloaded, because its threads and kernels may run until the process ends.
class SharedLibrary {
 public:
  // Loads the first of these files that works. Prefers a library that is already loaded.
  explicit SharedLibrary(std::initializer_list<const char*> files, int flags = RTLD_LOCAL) {
    for (const int how : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW}) {
      for (const char* file : files) {
        if (!open()) handle_ = ::dlopen(file, how | flags);
      }
    }
    if (open()) return;
    const char* const error = ::dlerror();
    problem_ = error != nullptr ? error : "no reason given";
  }
  // Uses the process itself if it already has the symbol `name`. Otherwise loads a file as above.
  SharedLibrary(const char* name, std::initializer_list<const char*> files, int flags = RTLD_LOCAL)
      : SharedLibrary(::dlsym(RTLD_DEFAULT, name) != nullptr ? SharedLibrary()
                                                             : SharedLibrary(files, flags)) {}

  bool open() const { return in_process_ || handle_ != nullptr; }
  const std::string& problem() const { return problem_; }  // reason why it is not open

  // Sets `function` to the symbol `name`, or to null if there is none.
  template <typename Function>
  void find(const char* name, Function& function) const {
    function = nullptr;
    if (open()) {
      function = reinterpret_cast<Function>(::dlsym(in_process_ ? RTLD_DEFAULT : handle_, name));
    }
  }
  // Same as find(), and records the first missing name.
  template <typename Function>
  void need(const char* name, Function& function) {
    find(name, function);
    if (function == nullptr && missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }

 private:
  SharedLibrary() : in_process_(true) {}

  void* handle_ = nullptr;
  bool in_process_ = false;
  std::string problem_, missing_;
};

}  // namespace tessera
