/* rabit's C interface, on Warren: as rabit.h, whose rules hold here. A call that cannot be done ends the process with a
 * line on standard error. */
#ifndef RABIT_C_API_H_
#define RABIT_C_API_H_

#ifdef __cplusplus
#include <cstddef>
#include <cstdio>
#define RABIT_EXTERN_C extern "C"
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#define RABIT_EXTERN_C
#endif
#define RABIT_DLL RABIT_EXTERN_C __attribute__((visibility("default")))

typedef unsigned long rbt_ulong; /* rabit's unsigned long */

/* Types: 0 char, 1 unsigned char, 2 int, 3 unsigned int, 4 long, 5 unsigned long, 6 float, 7 double, 8 long long,
 * 9 unsigned long long. Operations: 0 max, 1 min, 2 sum, 3 bitwise or. */

RABIT_DLL bool RabitInit(int argc, char* argv[]);
RABIT_DLL bool RabitFinalize(void);
RABIT_DLL int RabitGetRingPrevRank(void);
RABIT_DLL int RabitGetRank(void);
RABIT_DLL int RabitGetWorldSize(void);
RABIT_DLL int RabitIsDistributed(void);
RABIT_DLL void RabitTrackerPrint(const char* msg);
/* Writes at most max_len bytes, the last one 0; *out_len: without that. */
RABIT_DLL void RabitGetProcessorName(char* out_name, rbt_ulong* out_len, rbt_ulong max_len);
RABIT_DLL void RabitBroadcast(void* sendrecv_data, rbt_ulong size, int root);
/* Sizes are in elements. */
RABIT_DLL void RabitAllgather(void* sendrecvbuf, size_t total_size, size_t begin_index, size_t size_node_slice,
                              size_t size_prev_slice, int enum_dtype);
RABIT_DLL void RabitAllreduce(void* sendrecvbuf, size_t count, int enum_dtype, int enum_op, void (*prepare_fun)(void*),
                              void* prepare_arg);
/* Models are bytes, which stay valid until the next call of this function. out_local_model may be NULL. */
RABIT_DLL int RabitLoadCheckPoint(char** out_global_model, rbt_ulong* out_global_len, char** out_local_model,
                                  rbt_ulong* out_local_len);
/* local_model may be NULL. */
RABIT_DLL void RabitCheckPoint(const char* global_model, rbt_ulong global_len, const char* local_model,
                               rbt_ulong local_len);
RABIT_DLL int RabitVersionNumber(void);
/* Does nothing: a program that is to have this library calls it, so that the linker keeps it. */
RABIT_DLL int RabitLinkTag(void);

#endif /* RABIT_C_API_H_ */
