#pragma once

namespace tessera {

// Every rank is a process that knows every other one: more of them than any machine has cores are a
// slip of the finger, which would take the machine's memory and processes before anybody sees it.
inline constexpr int kMostRanks = 4096;
inline constexpr const char* kMostRanksWhy =
    "each rank is a process with a connection to every other one, and no machine that is known has "
    "cores for more; tessera plan tells of larger runs, and tessera run --nodes starts ranks on "
    "several machines";

}  // namespace tessera
