#pragma once

// Tensor and sequence parallelism for any LibTorch model: see [Note: tensor parallelism].
#include "tessera/tensor_parallel/collectives.h"
#include "tessera/tensor_parallel/layers.h"
#include "tessera/tensor_parallel/sharded.h"
