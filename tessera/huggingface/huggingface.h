#pragma once

// Public header of this module: reading and writing folders of Hugging Face models.
#include "tessera/huggingface/config.h"
#include "tessera/huggingface/export.h"
#include "tessera/huggingface/folder.h"
