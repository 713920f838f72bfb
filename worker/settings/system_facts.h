// Facts that the system tells of this process, and the defaults that are made of them.
#pragma once

#include <cstdint>
#include <string>

namespace warren::worker {

// A fact that the system does not tell is empty or 0.
struct SystemFacts {
  std::string boot_id;          // of this start of the machine, shared by its containers
  std::string mount_namespace;  // inode numbers: equal for processes that see the same files and processes
  std::string pid_namespace;
  std::string network_namespace;  // ranks find each other's logs by sockets that show in one alone
  std::string user;               // effective; processes of two users share no memory
  std::string host_name;
  std::uint64_t memory_bytes = 0;  // of the machine, or what the control groups of this process allow
};

// Reads /proc; never fails, fields may be empty.
[[nodiscard]] SystemFacts read_system_facts();

// The failure domain: the machine since its start.
[[nodiscard]] std::string domain_of(const SystemFacts& facts);

// "node7-8c1f03d2a96b": for people the machine's name; what follows is unique to this start of the machine, to these
// namespaces and to this user. Processes share memory through /proc and Unix sockets: they must see each other's
// processes and files, and be the same user's.
[[nodiscard]] std::string host_of(const SystemFacts& facts);

}  // namespace warren::worker
