/* rabit's C interface: a model of more than 64 KiB, as bytes, and an Allgather of equal shares. */
#include <rabit/c_api.h>
#include <stdlib.h>
#include <string.h>

#define MODEL 100000
#define VERSIONS 3

static char* argument(int argc, char** argv, const char* key) {
  int i;
  for (i = 1; i < argc; ++i) {
    if (strncmp(argv[i], key, strlen(key)) == 0) return argv[i] + strlen(key);
  }
  return NULL;
}

static void fail(const char* why) {
  fprintf(stderr, "%s\n", why);
  exit(1);
}

static void prepare(void* buffer) {
  ((int*)buffer)[0] = RabitGetRank() + 1;
}

int main(int argc, char* argv[]) {
  static char model[MODEL];
  char name[64], *global = NULL, *local = NULL, local_model[8];
  rbt_ulong length = 0, global_length = 0, local_length = 0;
  int version, rank, size, i;
  char* folder;
  if (!RabitInit(argc, argv)) fail("RabitInit");
  rank = RabitGetRank();
  size = RabitGetWorldSize();
  if (RabitLinkTag() != 0 || !RabitIsDistributed() || RabitGetRingPrevRank() != (rank + size - 1) % size) fail("state");
  RabitGetProcessorName(name, &length, sizeof name);
  if (length == 0 || strlen(name) != length) fail("RabitGetProcessorName");
  version = RabitLoadCheckPoint(&global, &global_length, &local, &local_length);
  if (version != RabitVersionNumber()) fail("RabitVersionNumber");
  if (version != 0) {
    if (global_length != MODEL || local_length != sizeof local_model) fail("sizes of models");
    memcpy(model, global, MODEL);
    memcpy(local_model, local, sizeof local_model);
    for (i = 0; i < (int)sizeof local_model; ++i) {
      if (local_model[i] != (char)(rank + version)) fail("local model");
    }
  }
  for (; version < VERSIONS; ++version) {
    int sum = 0;
    long* shares = malloc((size_t)size * 10 * sizeof(long));
    for (i = 0; i < 10; ++i) shares[rank * 10 + i] = rank * 1000 + i + version;
    RabitAllreduce(&sum, 1, 2, 2, prepare, &sum);
    if (sum != size * (size + 1) / 2) fail("RabitAllreduce");
    RabitAllgather(shares, (size_t)size * 10, (size_t)rank * 10, 10, 10, 4);
    for (i = 0; i < size * 10; ++i) {
      if (shares[i] != i / 10 * 1000 + i % 10 + version) fail("RabitAllgather");
    }
    if (rank == version % size) memset(model, 'a' + version, MODEL / 2);
    RabitBroadcast(model, MODEL, version % size);
    free(shares);
    memset(local_model, rank + version + 1, sizeof local_model);
    RabitCheckPoint(model, MODEL, local_model, sizeof local_model);
  }
  folder = argument(argc, argv, "out=");
  if (folder != NULL) {
    char path[4096];
    FILE* file;
    snprintf(path, sizeof path, "%s/%d", folder, rank);
    file = fopen(path, "wb");
    if (file == NULL || fwrite(model, 1, MODEL, file) != MODEL) fail("result");
    fclose(file);
  }
  RabitTrackerPrint("done\n");
  if (!RabitFinalize()) fail("RabitFinalize");
  return 0;
}
