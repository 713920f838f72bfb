// What RocksDB says, as a Status.
#pragma once

#include <rocksdb/status.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "recovery/base/result.h"

namespace warren::storage {

// RocksDB knows a full disk, and takes a quota that is used up for any other error: only the text tells.
inline bool is_no_space(const rocksdb::Status& status) {
  return status.IsNoSpace() ||
         (status.IsIOError() && status.ToString().find(std::generic_category().message(EDQUOT)) != std::string::npos);
}

inline Status from_rocks(const rocksdb::Status& status, std::string message) {
  Code code = Code::kUnavailable;
  if (is_no_space(status)) code = Code::kExhausted;
  if (status.IsCorruption()) code = Code::kCorrupt;
  return Status(code, status.ToString()).because_of_this(std::move(message));
}

}  // namespace warren::storage
