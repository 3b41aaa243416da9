#pragma once

namespace tessera {

// Maximum number of ranks. A larger number is most likely a typing error. Starting that many
// processes would exhaust the memory and the process limit of the machine.
inline constexpr int kMaxRanks = 4096;
inline constexpr const char* kMaxRanksWhy =
    "each rank is a process of this machine. Use tessera plan to plan larger runs, and tessera run "
    "--nodes to start ranks on several machines";

}  // namespace tessera
