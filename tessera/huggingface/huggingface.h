#pragma once

// The door of this room: folders of Hugging Face models, to read from and to write.
#include "tessera/huggingface/config.h"
#include "tessera/huggingface/export.h"
#include "tessera/huggingface/folder.h"
