#include "tessera/experts/layer.h"
