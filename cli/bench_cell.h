// One cell of `warren bench`: one collective on one size, type and operation, timed and checked.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "cli/bench_pattern.h"
#include "recovery/result.h"
#include "warren/c_api.h"

namespace warren::cli {

enum class BenchCollective {
  kAllreduce,
  kReduce,
  kBroadcast,
  kBarrier,
  kAllgather,
  kAllgatherv,
  kReduceScatter,
  kGather,
  kScatter,
  kAllToAll,
  kSendRecv,
};

struct CollectiveName {
  std::string_view name;
  BenchCollective collective;
  bool reduces;   // it takes an operation
  bool in_place;  // --inplace changes what is measured
};
inline constexpr std::array<CollectiveName, 11> kCollectives = {{
    {"allreduce", BenchCollective::kAllreduce, true, true},
    {"reduce", BenchCollective::kReduce, true, true},
    {"broadcast", BenchCollective::kBroadcast, false, false},
    {"barrier", BenchCollective::kBarrier, false, false},
    {"allgather", BenchCollective::kAllgather, false, true},
    {"allgatherv", BenchCollective::kAllgatherv, false, true},
    {"reduce_scatter", BenchCollective::kReduceScatter, true, true},
    {"gather", BenchCollective::kGather, false, true},
    {"scatter", BenchCollective::kScatter, false, true},
    {"all_to_all", BenchCollective::kAllToAll, false, false},
    {"sendrecv", BenchCollective::kSendRecv, false, false},
}};

struct Cell {
  CollectiveName collective;
  TypeName type;
  OpName op;                // meaningless unless the collective reduces
  std::uint64_t bytes = 0;  // wished for: of the larger of a rank's two buffers
  bool in_place = false;
  int warmup = 0;
  int iterations = 1;
  bool check = true;
};

struct CellResult {
  std::uint64_t bytes = 0;  // as it came out: whole elements, equal shares, at least one element a rank
  std::uint64_t count = 0;  // as in the call: elements of the whole buffer or of a rank's share
  double min_us = 0, median_us = 0, max_us = 0;  // of the slowest rank in each iteration
  double algbw_gbs = 0;                          // bytes / median
  double busbw_gbs = 0;                          // that times the share of the bytes that must cross a rank's link
  std::uint64_t errors = 0;                      // wrong elements, over all ranks and iterations
};

// Collective: every rank of `comm` runs the same cell. The results agree on all ranks. Each iteration starts with a
// barrier, which is not timed, and its result is checked if the cell says so.
[[nodiscard]] Result<CellResult> run_cell(warren_comm* comm, const Cell& cell);

// The factor of busbw, as nccl-tests define it.
[[nodiscard]] double bus_factor(BenchCollective collective, int ranks);

}  // namespace warren::cli
