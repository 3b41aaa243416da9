#pragma once

#include <c10/core/Stream.h>

namespace tessera::comm {

// Whether what is put on the stream goes into a CUDA graph instead of being run. Asked of the CUDA
// runtime that is in the process; without one nothing is ever captured.
bool capturing(const c10::Stream& stream);
// The same for the current stream of a device.
bool capturing_on(c10::Device device);

// From now on this thread may query events and get memory while another thread captures, whatever
// mode that one captures in. For threads that do nothing a graph should hold by accident.
void ignore_captures_of_other_threads();

}  // namespace tessera::comm
