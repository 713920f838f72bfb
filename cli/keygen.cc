// `warren keygen`: makes secret files.
#include <gflags/gflags.h>

#include <cstdio>

#include "cli/table.h"
#include "storage/secret.h"

DEFINE_string(out, "", "the file to write; it must not exist, and gets mode 0600");
DEFINE_string(from, "", "the tracker's secret file, to make the file of one job from it");
DECLARE_string(job);

namespace warren::cli {
namespace {

int keygen(const std::vector<std::string>&) {
  if (FLAGS_out.empty()) return usage_error(kKeygenCommand, "give --out, the file to write");
  if (FLAGS_from.empty() != FLAGS_job.empty()) {
    return usage_error(kKeygenCommand, "--job and --from belong together: the job, and the tracker's secret file");
  }
  if (FLAGS_from.empty()) {
    if (const Status s = storage::Secret::generate(FLAGS_out); !s.ok()) return failure(s.describe());
    std::printf(
        "wrote %s, a tracker's secret: it opens every job of that tracker.\n"
        "For the workers of one job: warren keygen --job NAME --from %s --out FILE\n",
        FLAGS_out.c_str(), FLAGS_out.c_str());
    return kExitOk;
  }
  const auto root = storage::Secret::load(FLAGS_from);
  if (!root.ok()) return failure(root.status().describe());
  if (!root.value().is_root()) {
    return failure(FLAGS_from + " is the secret of one job; only from the tracker's secret others can be made");
  }
  if (const Status s = root.value().write_job_secret(FLAGS_job, FLAGS_out); !s.ok()) return failure(s.describe());
  std::printf("wrote %s, the secret of the job %s: it opens no other job.\n", FLAGS_out.c_str(), FLAGS_job.c_str());
  return kExitOk;
}

}  // namespace

const Command kKeygenCommand = {
    .name = "keygen",
    .summary = "makes a secret file, for a tracker or for one of its jobs",
    .usage = "--out=FILE [--job=NAME --from=FILE]",
    .text =
        "A tracker has one secret file. The file of a job is made from it and opens this job alone, so that who runs "
        "one job cannot disturb another. Copy the job's file, mode 0600, to its workers' machines and name it by "
        "WARREN_SECRET_FILE. Keys are never printed and never on a command line.",
    .flags = {"out", "job", "from"},
    .run = keygen,
};

}  // namespace warren::cli
