/* What the core asks of a GPU: a table of C functions that a library of its own exports, so that one build of Warren
 * serves machines with and without GPUs. libwarren_cuda.so is one implementation; the tests have another, whose device
 * memory is memory that the program cannot touch.
 *
 * The library exports `const warren_device_table* warren_device_table_7(void)`; the symbol's number is the table's
 * version, and changes whenever this file does in a way that the other side would notice.
 *
 * Every function may be called from any thread at any time, and changes nothing of the calling thread but error_text.
 * None takes anything of a device but of the one that it is told. `device` is a number from 0 on. Streams and events
 * belong to one device; a stream of NULL is the device's default one. What is queued on a stream runs in order;
 * functions that take a stream return at once, and what goes wrong later is what query() of an event behind it
 * returns. */
#ifndef WARREN_WORKER_DEVICE_DEVICE_TABLE_H_
#define WARREN_WORKER_DEVICE_DEVICE_TABLE_H_

#include <stddef.h>
#include <stdint.h>

#include "warren/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WARREN_DEVICE_TABLE_VERSION 7
#define WARREN_DEVICE_TABLE_SYMBOL "warren_device_table_7"

typedef enum warren_device_code {
  WARREN_DEVICE_OK = 0,
  WARREN_DEVICE_NONE = 1,      /* init: no GPU, or no driver for one. Not an error: programs use memory of the CPU */
  WARREN_DEVICE_NOT_READY = 2, /* query: what the event stands behind has not run yet; nccl_*: it goes on */
  WARREN_DEVICE_NO_MEMORY = 3, /* the allocation does not fit */
  WARREN_DEVICE_FAILED = 4     /* error_text says what */
} warren_device_code;

/* How the inputs of one reduce() are combined, in their order. */
typedef enum warren_device_bracketing {
  WARREN_DEVICE_CHAIN = 0, /* from left to right */
  /* A balanced binary tree over the largest power of two P of positions up to the number N of inputs: 2i and 2i + 1 for
   * i < N - P are one position, the others one each. */
  WARREN_DEVICE_BALANCED = 1
} warren_device_bracketing;

/* What one reduce() makes. */
typedef struct warren_device_reduction {
  size_t inputs;                       /* 1 .. WARREN_DEVICE_MAX_INPUTS */
  warren_type type;                    /* F32, F16 or BF16, of which the last two are accumulated in F32 */
  warren_op op;                        /* SUM, PRODUCT, MIN, MAX or AVERAGE */
  warren_device_bracketing bracketing; /* in the inputs' order */
  /* 1: the first input is what a reduction that was not finished gave, F32 whatever the type is. Of a chain. */
  int32_t first_is_partial;
  int32_t unfinished;    /* 1: out is F32, whatever the type is, and an AVERAGE is a sum. 0: rounded once, divided */
  uint32_t contributors; /* by which an AVERAGE is divided: 1 or more */
} warren_device_reduction;

/* Where a pointer leads that the CPU may read and write. */
#define WARREN_DEVICE_HOST (-1)
/* Inputs of one reduce(). */
#define WARREN_DEVICE_MAX_INPUTS 64
/* checksum() gives one number for each block of this many bytes. */
#define WARREN_DEVICE_CHECKSUM_BLOCK ((size_t)4 << 20)
/* Pieces of one pack() or unpack(): they go with the launch, whose arguments may have 4 KiB. */
#define WARREN_DEVICE_MAX_PIECES 240
/* By which ranks that make a communicator find each other: ncclUniqueId. */
#define WARREN_DEVICE_NCCL_ID_BYTES 128
/* Values that share a scale. */
#define WARREN_DEVICE_I8_VALUES 256

/* So many values as I8: value i stands for values[i] * scale. Of one size and by itself, so that any range of blocks
 * can be sent, kept and converted back alone. */
typedef struct warren_device_i8_block {
  float scale;
  int8_t values[WARREN_DEVICE_I8_VALUES];
} warren_device_i8_block;

/* Some of a device's memory. */
typedef struct warren_device_piece {
  void* data;
  size_t bytes;
} warren_device_piece;

/* One message of nccl_exchange(). */
typedef struct warren_device_message {
  void* data; /* memory of the communicator's device */
  size_t bytes;
  int32_t peer;  /* rank in the communicator */
  int32_t sends; /* 1: to the peer; 0: from there */
} warren_device_message;

typedef struct warren_device_table {
  uint32_t version; /* WARREN_DEVICE_TABLE_VERSION */
  uint32_t bytes;   /* sizeof(warren_device_table) */
  const char* name; /* "CUDA 13.0" */

  /* Why the calling thread's last function failed; valid until its next one. */
  const char* (*error_text)(void);
  /* Before anything else; may be repeated. *devices: how many there are. */
  warren_device_code (*init)(int32_t* devices);

  /* *device: that of the memory that `pointer` leads to, or WARREN_DEVICE_HOST. FAILED, too: the library does not serve
   * that device. */
  warren_device_code (*locate)(const void* pointer, int32_t* device);
  /* Memory of the CPU that copies of any device read and write at full speed. */
  warren_device_code (*allocate_pinned)(size_t bytes, void** memory);
  warren_device_code (*free_pinned)(void* memory);
  /* Memory of the device. */
  warren_device_code (*allocate)(int32_t device, size_t bytes, void** memory);
  warren_device_code (*release)(int32_t device, void* memory);
  /* Memory of the device that other processes of the host can have, too: *bytes, rounded up to what the device gives.
   * *fd, which the caller closes, and no program that is started inherits, stands for it with whom it is passed to. The
   * memory ends with the last that has it, or such a descriptor. */
  warren_device_code (*allocate_shared)(int32_t device, size_t* bytes, void** memory, int* fd);
  /* Such memory of another process, on this or another device, for what `device` runs. `bytes`: as that process was
   * told; FAILED where there are not so many. The descriptor is not needed afterwards. */
  warren_device_code (*import_shared)(int32_t device, int fd, size_t bytes, void** memory);
  /* That a function above has given; nothing that is queued uses it. */
  warren_device_code (*release_shared)(int32_t device, void* memory, size_t bytes);

  /* A stream that does not wait for the default one. What is queued on a stream that is ended still runs. */
  warren_device_code (*make_stream)(int32_t device, void** stream);
  warren_device_code (*end_stream)(int32_t device, void* stream);
  warren_device_code (*make_event)(int32_t device, void** event);
  warren_device_code (*end_event)(int32_t device, void* event);
  /* The event stands behind what is on the stream now. */
  warren_device_code (*record)(int32_t device, void* event, void* stream);
  /* What is queued on the stream from now on runs when the event has been reached. */
  warren_device_code (*wait_for)(int32_t device, void* stream, void* event);
  /* Whether the event has been reached: OK, NOT_READY, or FAILED if something before it has failed. */
  warren_device_code (*query)(int32_t device, void* event);

  /* Between pinned memory and the device's. */
  warren_device_code (*to_host)(int32_t device, void* to, const void* from, size_t bytes, void* stream);
  warren_device_code (*to_device)(int32_t device, void* to, const void* from, size_t bytes, void* stream);
  /* Within the device's memory; the two do not overlap. */
  warren_device_code (*copy)(int32_t device, void* to, const void* from, size_t bytes, void* stream);

  /* Kernels, on memory of the device. Their bits are those of the CPU: round to nearest even, denormals kept, no
   * contraction, one NaN.
   *
   * out[i] = in[0][i] (+) in[1][i] (+) ..., as `how` says. `in` itself and `how` lie on the CPU and are read before the
   * function returns; out may be one of the inputs whose elements are as wide as its own. */
  warren_device_code (*reduce)(int32_t device, void* out, const void* const* in, size_t count,
                               const warren_device_reduction* how, void* stream);
  /* F32 to F16, BF16 or I8, or back. Not in place.
   *
   * I8 stands for warren_device_i8_block: `count` values are count / WARREN_DEVICE_I8_VALUES blocks, rounded up, the
   * last one filled up with zeros. With m the largest magnitude of a block, but 127 * 2^-126 at least, its scale is m /
   * 127 and each of its values is value * (127 / m), to the nearest, ties to even: -127 .. 127, off by half a scale. So
   * a block of zeros is one of zeros, which come back as +0. A block with an infinity or NaN has the one NaN for its
   * scale and zeros for its values, and all of it comes back as that NaN. Coming back, any scale is taken, and -128. */
  warren_device_code (*convert)(int32_t device, void* out, warren_type out_type, const void* in, warren_type in_type,
                                size_t count, void* stream);
  /* out[b]: of the b-th block of WARREN_DEVICE_CHECKSUM_BLOCK bytes; the last one may be shorter. `in` may be aligned
   * in any way. All libraries of a table's version give the same numbers, which ranks compare. */
  warren_device_code (*checksum)(int32_t device, uint64_t* out, const void* in, size_t bytes, void* stream);
  /* Has all kernels on the device: the first launch of one that is not there may wait for all that the device is at,
   * what waits for other processes included. */
  warren_device_code (*load)(int32_t device);
  /* Up to WARREN_DEVICE_MAX_PIECES pieces, one behind the other without gaps, to `packed`, or from there: of any size,
   * 0 too, and alignment; fastest, 16 bytes at once, where a piece and its place in `packed` lie alike to 16 bytes. One
   * launch. `pieces` itself lies on the CPU and is read before the function returns. Nothing of it overlaps. */
  warren_device_code (*pack)(int32_t device, void* packed, const warren_device_piece* pieces, size_t count,
                             void* stream);
  warren_device_code (*unpack)(int32_t device, const void* packed, const warren_device_piece* pieces, size_t count,
                               void* stream);

  /* NCCL, which moves bytes between GPUs of several processes and hosts. NONE: there is none here, or none that serves;
   * error_text says which. *version: as NCCL counts, 22809. *file: of which it was loaded, or "", for as long as the
   * process lives. Before any function below. */
  warren_device_code (*nccl_version)(int32_t* version, const char** file);
  /* Another one for each communicator, of WARREN_DEVICE_NCCL_ID_BYTES bytes. The process that has made it must live
   * until all ranks have joined; it keeps a thread and a socket of it, and needs no GPU. */
  warren_device_code (*nccl_id)(void* id);
  /* This rank joins; it does not wait for the others. nccl_state() says when all have. */
  warren_device_code (*nccl_join)(int32_t device, const void* id, int32_t size, int32_t rank, void** communicator);
  /* OK: what was asked of it is queued, or all have joined. NOT_READY: not yet. FAILED: it is of no use any more. That
   * a peer has died it may never say. */
  warren_device_code (*nccl_state)(void* communicator);
  /* Queues messages that are carried out together on the stream; peers queue theirs in the same order. OK or NOT_READY,
   * then nccl_state() until that is OK: from then on what is recorded on the stream stands behind them. Up to then
   * nothing else is asked of it but revoke and abort. */
  warren_device_code (*nccl_exchange)(void* communicator, const warren_device_message* messages, size_t count,
                                      void* stream);
  /* What is under way ends unfinished; nccl_state() is OK when nothing is. FAILED: this NCCL cannot, and abort does. */
  warren_device_code (*nccl_revoke)(void* communicator);
  /* Ends it and what is under way, and frees it. It may wait for whatever the GPU is at, or for ever. */
  warren_device_code (*nccl_abort)(void* communicator);
} warren_device_table;

typedef const warren_device_table* (*warren_device_table_function)(void);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* WARREN_WORKER_DEVICE_DEVICE_TABLE_H_ */
