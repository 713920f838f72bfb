// `warren chaos`: real processes under faults.
#include <gflags/gflags.h>

#include "chaos/process/worker.h"
#include "cli/table.h"

DEFINE_string(worker_of, "", "be a worker of the run in this folder (`warren chaos` itself starts these)");
DEFINE_uint32(first_worker, 0, "with --worker_of: added to the number that the launcher gives");

namespace warren::cli {
namespace {

int chaos_command(const std::vector<std::string>&) {
  if (!FLAGS_worker_of.empty()) return chaos::process::run_worker(FLAGS_worker_of, FLAGS_first_worker);
  return usage_error(kChaosCommand, "--worker_of is missing");
}

}  // namespace

const Command kChaosCommand = {
    .name = "chaos",
    .summary = "runs a job of real processes under faults, and judges every result",
    .usage = "",
    .text = "",
    .flags = {"worker_of", "first_worker"},
    .run = chaos_command,
};

}  // namespace warren::cli
