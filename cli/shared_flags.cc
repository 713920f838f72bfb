// Flags that several subcommands take.
#include <gflags/gflags.h>

DEFINE_bool(json, false, "JSON instead of text for people");
DEFINE_string(job, "", "the name of the job");
DEFINE_string(secret_file, "", "the file of mode 0600 that holds the secret; see `warren help keygen`");
DEFINE_string(data_dir, "", "the folder of the tracker's journal");
