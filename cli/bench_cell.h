// One cell of `warren bench`: one collective on one size, type and operation, timed and checked.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cli/bench_pattern.h"
#include "recovery/base/result.h"
#include "recovery/wire/frame.h"
#include "warren/c_api.h"
#include "worker/device/program_gpu.h"

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
  bool reduces;          // it takes an operation
  bool in_place;         // --inplace changes what is measured
  Collective scheduled;  // as schedules know it; kPoint: by none
};
inline constexpr std::array<CollectiveName, 11> kCollectives = {{
    {"allreduce", BenchCollective::kAllreduce, true, true, Collective::kAllreduce},
    {"reduce", BenchCollective::kReduce, true, true, Collective::kReduce},
    {"broadcast", BenchCollective::kBroadcast, false, false, Collective::kBroadcast},
    {"barrier", BenchCollective::kBarrier, false, false, Collective::kBarrier},
    {"allgather", BenchCollective::kAllgather, false, true, Collective::kAllgather},
    {"allgatherv", BenchCollective::kAllgatherv, false, true, Collective::kAllgatherv},
    {"reduce_scatter", BenchCollective::kReduceScatter, true, true, Collective::kReduceScatter},
    {"gather", BenchCollective::kGather, false, true, Collective::kGather},
    {"scatter", BenchCollective::kScatter, false, true, Collective::kScatter},
    {"all_to_all", BenchCollective::kAllToAll, false, false, Collective::kAllToAll},
    {"sendrecv", BenchCollective::kSendRecv, false, false, Collective::kPoint},
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
  worker::ProgramGpu* gpu = nullptr;  // where buffers lie, and whose stream the communicator uses; null: on the CPU
};

struct CellResult {
  std::uint64_t bytes = 0;  // as it came out: whole elements, equal shares, at least one element a rank
  std::uint64_t count = 0;  // as in the call: elements of the whole buffer or of a rank's share
  double min_us = 0, median_us = 0, max_us = 0;  // of the slowest rank in each iteration
  double algbw_gbs = 0;                          // bytes / median
  double busbw_gbs = 0;                          // that times the share of the bytes that must cross a rank's link
  std::uint64_t errors = 0;                      // wrong elements, over all ranks and iterations
  // Of this rank's timed calls: inputs that were left on the GPU for the host's other ranks, and rounds whose bytes
  // NCCL was to move.
  std::uint64_t inputs_lent = 0, rounds_exchanged = 0;
};

// Collective: every rank of `comm` runs the same cell. The times and errors agree on all ranks. Each iteration starts
// with a barrier, which is not timed, and its result is checked if the cell says so.
[[nodiscard]] Result<CellResult> run_cell(warren_comm* comm, const Cell& cell);

// A cell by several algorithms, which take turns.
struct Turns {
  std::uint64_t bytes = 0;                    // as it came out
  std::vector<std::vector<double>> times_us;  // by algorithm: of one call, in each turn, as they came
  std::uint64_t errors = 0;                   // wrong elements in the first call by each, over all ranks
};

// Collective, like run_cell(). Each algorithm ("auto", or one that serves the collective) has cell.iterations turns of
// one batch of calls in a row, and begins them with a barrier that is not timed; a turn is as long as it is for the
// slowest rank. The order is shuffled anew for every other cycle, and the cycle after it goes backwards. Results go
// beside the inputs.
[[nodiscard]] Result<Turns> run_in_turns(warren_comm* comm, const Cell& cell,
                                         const std::vector<std::string>& algorithms);

// The factor of busbw, as nccl-tests define it.
[[nodiscard]] double bus_factor(BenchCollective collective, int ranks);

}  // namespace warren::cli
