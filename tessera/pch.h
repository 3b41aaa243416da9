#pragma once

// Precompiled for every target that uses torch, which costs 15 to 27 s a source otherwise.
// Sources still include what they use: this header is never included by name.
#include <torch/torch.h>
