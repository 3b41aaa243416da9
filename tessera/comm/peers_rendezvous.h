#pragma once

#include <vector>

#include "tessera/comm/dialer.h"
#include "tessera/comm/socket_peers.h"
#include "tessera/core/fd.h"

namespace tessera::comm {

// Addresses of all ranks, and the sockets at which this one accepts connections.
struct PeerContacts {
  std::vector<bool> same_host;         // by rank
  std::vector<PeerAddress> addresses;  // by rank
  std::vector<Fd> listeners;
};

// [Note: contacts] Each rank writes its contact to the store. Rank 0 reads all of them and writes
// tables, which every rank reads: about 4 operations per rank in all on one host, and 7 on several.
// Values that do not have the form below are refused with a DataError.
//
//   peers/R       by rank R: token of its Unix socket and key of its host
//   peers/hosts   by rank 0: number of its host for each rank
//   peers/host/H  by rank 0: tokens of the ranks of host H, which only they read
//   peers/tcp/R   by rank R, if there are several hosts: its port and address
//   peers/tcp     by rank 0: port@address of each rank; a port alone repeats the address before it
//
// Tables are split into values that every store takes, see write_table().

// Collective over the job. Throws an Error that names a missing rank after options.timeout.
PeerContacts exchange_contacts(Store& store, int rank, int size, const PeersOptions& options);

// Writes fields, none of them with a blank, under a key and as many keys below it as it takes.
void write_table(Store& store, const std::string& key, const std::vector<std::string>& fields);

}  // namespace tessera::comm
