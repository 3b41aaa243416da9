#pragma once

#include <dlfcn.h>

#include <initializer_list>
#include <string>

namespace tessera {

// A shared library that is looked for when the program runs: the machine may lack it, or LibTorch
// may have brought it. It stays loaded: threads and kernels of it may be there until the end.
class SharedLibrary {
 public:
  // The first of these files that loads; one that the process has already comes first.
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
  // Where the process has `name` already, from whatever file, that library; else as above.
  SharedLibrary(const char* name, std::initializer_list<const char*> files, int flags = RTLD_LOCAL)
      : SharedLibrary(::dlsym(RTLD_DEFAULT, name) != nullptr ? SharedLibrary()
                                                             : SharedLibrary(files, flags)) {}

  bool open() const { return in_process_ || handle_ != nullptr; }
  const std::string& problem() const { return problem_; }  // why it is not open

  // Null where it has no such name.
  template <typename Function>
  void find(const char* name, Function& function) const {
    function = nullptr;
    if (open()) {
      function = reinterpret_cast<Function>(::dlsym(in_process_ ? RTLD_DEFAULT : handle_, name));
    }
  }
  // The same, and notes the first name that is not there.
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
