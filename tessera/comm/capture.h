#pragma once

#include <c10/core/Stream.h>

namespace tessera::comm {

// Returns whether the stream is being captured into a CUDA graph. Uses the CUDA runtime loaded in
// this process; returns false if there is none.
bool capturing(const c10::Stream& stream);
// Same for the current stream of a device.
bool capturing_on(c10::Device device);

// Sets the calling thread's capture mode to relaxed: it may then query events and allocate memory
// while another thread captures in any mode. For threads whose work must never be captured.
void ignore_captures_of_other_threads();

}  // namespace tessera::comm
