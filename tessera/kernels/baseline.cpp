// The kernels for what every processor of the architecture has: NEON, SSE2.
#include "tessera/kernels/sets.h"

#define TESSERA_KERNEL_SET baseline
#define TESSERA_KERNEL_BYTES 16
#include "tessera/kernels/set_impl.h"
