// One run of `warren chaos`: its options, and the report of it.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chaos/process/program.h"
#include "chaos/process/weather.h"

namespace warren::chaos::process {

enum class FaultKind : std::uint8_t {
  kKill,     // SIGKILL of a worker
  kStop,     // SIGSTOP, and SIGCONT after a part or a multiple of the round timeout
  kCut,      // a host is cut off from the network, for as long
  kTracker,  // kill -9 of the tracker, started again later
  kDisk,     // a host dies and comes back without its data directory
  kAll,      // everything dies and is started again
  kPair,     // SIGKILL of two workers, one right after the other
  kDrain,    // SIGTERM of a worker, which finishes its calls and leaves: its place is needed elsewhere
};
inline constexpr std::array<std::string_view, 8> kFaultNames = {"kill", "stop", "cut",  "tracker",
                                                                "disk", "all",  "pair", "drain"};

struct ChaosOptions {
  std::string program;  // the path of `warren`
  std::uint32_t ranks = 4, hosts = 2;
  // Beside the ranks, dealt out over the hosts; faults are kills, stops and the tracker's then. Killed workers come
  // back at once, or while a spare may be called, or after that.
  std::uint32_t spares = 0;
  int replicas = 2;
  double seconds = 60;
  std::vector<FaultKind> faults;  // none: a calm run
  // With `planned` these are all faults, one after the other in an order that is drawn, spread over the run: each
  // strikes at a random moment of its share, once those before have been recovered from.
  bool planned = false;
  std::uint64_t seed = 1;
  std::int64_t round_timeout_ms = 10'000;
  std::int64_t interval_ms = 1000;  // mean time from the end of a recovery to the next fault
  bool goodput = false;             // a calm run before, to compare with
  bool disk_log = false;            // also where no fault needs it (disk and all do)
  std::string timeline;             // a file for a Chrome trace of all workers; empty: none
  Mix mix = Mix::kMixed;
  std::size_t round_bytes = std::size_t{4} << 20;  // of the biggest call
  std::uint32_t compute_ms = 0;                    // before each iteration
  bool on_gpus = false;                            // buffers lie on GPUs, which the workers take in turn
  // Mode shrink, with the grace time: the job goes on with so many. 0: mode wait. Killed workers come back at once, or
  // after the grace time, or much later; `mix` may shrink, there are no spares, and no faults of kind all.
  std::uint32_t min_workers = 0;
  std::int64_t grace_ms = 0;
  // Of all cables: hosts are network namespaces then, whatever the faults are.
  Forecast weather;
};

struct ChaosReport {
  std::array<std::map<std::string, std::uint64_t>, kFaultNames.size()> faults;  // by phase of the victim
  std::uint64_t fault_count = 0, during_recovery = 0;
  std::vector<std::string> unavailable;  // faults that this system does not allow
  std::uint64_t rounds = 0, replayed = 0, lives = 0, rollbacks = 0, divergences = 0, hangs = 0, failures = 0;
  double rounds_per_second = 0, big_share = 0;
  double goodput = -1;  // not measured
  // Plans with fewer workers than the one before, and with more.
  std::uint64_t shrinks = 0, growths = 0;
  // Over all workers and lives, of buffers on GPUs: warren_inputs_lent, and so on.
  std::uint64_t inputs_lent = 0, finals_from_gpus = 0, rounds_exchanged = 0;
  // Lives whose calls failed: with an error that a fault explains, too.
  std::uint64_t failed_lives = 0;
  // Lives that a drain has ended, as their launchers saw it, and from SIGTERM to the end of each process.
  std::uint64_t drained = 0;
  std::vector<double> drains_ms;
  std::vector<double> stalls_ms;
  std::vector<double> shrink_stalls_ms;  // of them, those of kills after which the job went on without the victim
  // Of them, those of kills after which a spare took the victim's place; and less the spare's replay, from the end of
  // its load to the last result that the victim had had.
  std::vector<double> takeovers_ms, takeovers_without_replay_ms;
  std::array<std::vector<double>, kFaultNames.size()> noticed_ms;  // until the tracker has ended the generation
  bool disk_log = false;                                           // hosts had data directories
  bool interrupted = false;

  // Where copies in another domain always remained, no rollback is called for.
  [[nodiscard]] std::uint64_t unexplained_rollbacks() const;
  [[nodiscard]] bool good() const;
  [[nodiscard]] std::string json(const ChaosOptions& options) const;
};

}  // namespace warren::chaos::process
