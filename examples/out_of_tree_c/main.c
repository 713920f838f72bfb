/* A program in C outside the tree, built against an installed Warren: two workers add [1,2,3] and [1,0,1].
 *
 *   warren run -n 2 -- ./hello */
#include <warren/c_api.h>

#include <stdio.h>
#include <stdlib.h>

static void check(warren_code code) {
  if (code == WARREN_OK) return;
  fprintf(stderr, "%s\n", warren_last_error());
  exit(EXIT_FAILURE);
}

int main(void) {
  warren_comm* comm = NULL;
  check(warren_create(NULL, &comm)); /* settings come from the environment */
  int32_t values[3] = {1, 2, 3};
  if (warren_rank(comm) != 0) {
    values[1] = 0;
    values[2] = 1;
  }
  /* In place, and without a handle: it returns when the sum is there. */
  check(warren_allreduce(comm, values, values, 3, WARREN_I32, WARREN_SUM, NULL, NULL));
  printf("rank %d of %d: [%d,%d,%d]\n", warren_rank(comm), warren_world_size(comm), values[0], values[1], values[2]);
  check(warren_finalize(comm));
  warren_destroy(comm);
  return EXIT_SUCCESS;
}
