// Flags that several subcommands take.
#include <gflags/gflags.h>

DEFINE_bool(json, false, "JSON instead of text for people");
DEFINE_string(job, "", "the name of the job");
DEFINE_string(secret_file, "", "the file of mode 0600 that holds the secret; see `warren help keygen`");
DEFINE_string(data_dir, "", "a folder on a local disk: for a tracker's journal, or for a host's log and checkpoints");
DEFINE_string(memory, "cpu", "where the buffers of calls lie: cpu or gpu");

// Settings of a worker; empty: left to its environment.
DEFINE_string(host_id, "", "equal for workers that can share memory (default: this machine and container)");
DEFINE_string(domain_id, "", "equal for what dies together (default: this machine)");
DEFINE_string(
    port_range, "",
    "LOW:HIGH: the ports that workers may listen on, two each of those on a machine (default: any free ones)");
DEFINE_string(replicas, "", "copies of what is logged, in distinct failure domains; 0: no fault tolerance (default 2)");
DEFINE_string(log, "", "memory, async or sync: when results are written to --data_dir");
DEFINE_string(log_memory_bytes, "", "a worker's part of the log in memory");
DEFINE_string(log_lag_ms, "", "--log=async writes what is older, in milliseconds (default 10000)");
DEFINE_string(log_lag_bytes, "", "--log=async writes what is more (default 256M)");
DEFINE_string(log_disk_bytes, "", "budget of the log in --data_dir (default 64G)");
DEFINE_string(log_full, "",
              "suspend: a full log gives up its oldest results, and a loss undoes what is not committed (default); "
              "error: calls fail");
DEFINE_string(checkpoint_mirror, "", "a folder that gets a copy of each committed checkpoint");
DEFINE_string(on_rollback, "",
              "exit: workers are started again when rounds are lost (default); error: their calls fail");
