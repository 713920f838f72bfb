// Descriptions of results, as logs have them.
#pragma once

#include <cstdint>

#include "storage/host_log.h"

namespace warren {

// Describes the result of an allreduce.
inline RecordInfo record_info(std::uint64_t total_bytes, std::uint64_t count, DataType type, ReduceOp op) {
  RecordInfo info;
  info.fingerprint.collective = Collective::kAllreduce;
  info.fingerprint.type = type;
  info.fingerprint.op = op;
  info.fingerprint.count = count;
  info.total_bytes = total_bytes;
  return info;
}

}  // namespace warren
