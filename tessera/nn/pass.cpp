#include "tessera/nn/pass.h"

#include <utility>

namespace tessera::nn {
namespace {

thread_local std::shared_ptr<const Pass> current;  // [Note: pass]

}  // namespace

std::shared_ptr<const Pass> current_pass() { return current; }

PassScope::PassScope(std::shared_ptr<const Pass> pass)
    : before_(std::exchange(current, std::move(pass))) {}
PassScope::~PassScope() { current = std::move(before_); }

}  // namespace tessera::nn
