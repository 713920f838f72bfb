// Flags that several subcommands take.
#include <gflags/gflags.h>

DEFINE_bool(json, false, "JSON instead of text for people");
DEFINE_string(job, "", "the name of the job");
DEFINE_string(secret_file, "", "the file of mode 0600 that holds the secret; see `warren help keygen`");
DEFINE_string(data_dir, "", "a folder on a local disk: for a tracker's journal, or for a host's log and checkpoints");
DEFINE_bool(insecure_no_auth, false, "no authentication: only where nobody else can connect");
DEFINE_string(memory, "cpu", "where the buffers of calls lie: cpu or gpu");
