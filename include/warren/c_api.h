/* Warren's C interface. <warren/warren.h> is the C++ interface on top of it.
 *
 * Every function returns a warren_code; on failure warren_last_error() holds the text for the calling thread, with the
 * chain of causes. No function throws. The library ends the process only where a setting, or warren_drain, says so.
 * With on_rollback "exit", the default, a life that is over ends with code 75 to 78; with "error" calls fail. With
 * hang_timeout_ms a life that hangs outside of calls ends with 79. docs/errors.md says which codes are started again.
 * The library handles no signal but SIGTERM, if the setting on_sigterm says so.
 *
 * Threads: one thread at a time may call functions of one communicator and of those split from it (another thread may
 * take over if the two synchronize); a call that finds another one inside fails with WARREN_INVALID_ARGUMENT.
 * Different communicators made by warren_create are independent.
 *
 * Functions of the program's: the library calls them in the middle of a call, and they should not throw. A prepare
 * function, a reduction, or the function of a lazy checkpoint returns 0, or anything else where it has failed: that, or
 * what it throws, ends this worker's life in the job. The call that it was run for fails with WARREN_INTERNAL, and so
 * do all that follow; the other ranks wait for its next life, and nothing of what the function had written reaches
 * them. Callbacks must not throw.
 *
 * Fork: a child process must not use a communicator that its parent made; calls there fail with WARREN_CLOSED. The
 * parent's links, sockets and shared memory are closed in the child before its own code runs. So the other ranks notice
 * the parent's death at once while its children live. A child process, by fork or exec, that calls warren_create under
 * its parent's worker id while the parent is in the job gets WARREN_INVALID_ARGUMENT.
 */
#ifndef WARREN_C_API_H_
#define WARREN_C_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WARREN_API __attribute__((visibility("default")))

typedef enum warren_code {
  WARREN_OK = 0,
  WARREN_INVALID_ARGUMENT = 1, /* change the call or the setting */
  WARREN_UNAVAILABLE = 2,      /* nobody answers, or a resource is missing */
  WARREN_REFUSED = 3,          /* the tracker or a peer said no: secret, job, version, world size */
  WARREN_TIMEOUT = 4,
  WARREN_PEER_LOST = 5, /* a rank is gone; destroy the communicator and create a new one to join again */
  WARREN_DESYNC = 6,    /* ranks called different things */
  WARREN_CLOSED = 7,    /* finalized, destroyed, forked or fenced */
  WARREN_EXHAUSTED = 8, /* a limit was reached */
  WARREN_CORRUPT = 9,   /* bytes do not match their checksum or format */
  WARREN_INTERNAL = 10,
  WARREN_ROLLED_BACK = 11, /* the job starts again from its newest checkpoint: destroy the communicator, make another
                              and load; see on_rollback */
  WARREN_FINISHED = 12     /* the job has ended well: there is nothing left to do */
} warren_code;

typedef enum warren_type {
  WARREN_I8 = 1,
  WARREN_U8 = 2,
  WARREN_I32 = 3,
  WARREN_U32 = 4,
  WARREN_I64 = 5,
  WARREN_U64 = 6,
  WARREN_F16 = 7,
  WARREN_BF16 = 8,
  WARREN_F32 = 9,
  WARREN_F64 = 10,
  WARREN_I16 = 15,
  WARREN_U16 = 16,
  WARREN_BOOL = 17 /* a byte: any but 0 is true. Reductions give 0 or 1: SUM, MAX and BIT_OR are the logical or,
                      PRODUCT, MIN and BIT_AND the logical and, BIT_XOR the exclusive or; there is no AVERAGE. What only
                      moves bytes leaves them as they are. */
} warren_type;

typedef enum warren_op {
  WARREN_SUM = 1,
  WARREN_PRODUCT = 2,
  WARREN_MIN = 3,
  WARREN_MAX = 4,
  WARREN_BIT_AND = 5,
  WARREN_BIT_OR = 6,
  WARREN_BIT_XOR = 7,
  WARREN_AVERAGE = 8
} warren_op;

typedef struct warren_comm warren_comm;     /* a communicator */
typedef struct warren_handle warren_handle; /* an asynchronous call */
typedef struct warren_log_queue warren_log_queue;

typedef enum warren_log_level { WARREN_LOG_INFO = 0, WARREN_LOG_WARNING = 1, WARREN_LOG_ERROR = 2 } warren_log_level;
/* Called from any thread of the library, and from several at once, a line each; `text` is valid during the call. It may
 * be called until the communicator, those split from it and their handles are gone. The thread that talks to the
 * tracker waits for it: a sink that blocks, as on an interpreter's lock, holds up recoveries. A log queue does not. */
typedef void (*warren_log_sink)(warren_log_level level, const char* text, void* context);
/* Asked about ten times a second by a thread of the program's that waits in a call, or in warren_create. 0: it waits
 * on. Anything else: it does not, and this worker's life in the job is over, as by warren_abort. The function may take
 * long, and must not call the communicator's functions, except warren_abort. */
typedef int32_t (*warren_interrupt)(void* context);
/* Called once when the call has finished, from the thread that finished it, which may be the library's. It must not
 * call the communicator's functions. */
typedef void (*warren_callback)(warren_code code, const char* error, void* context);
/* for i in [0, n): inout[i] = a[i] (+) inout[i]; associative and commutative; must not block. 0: it has succeeded. */
typedef int32_t (*warren_custom_reduce)(const void* a, void* inout, size_t n, void* context);

/* One setting by its name in docs/settings.md, as text. */
typedef struct warren_setting {
  const char* name;
  const char* value;
} warren_setting;
enum { WARREN_MOST_SETTINGS = 64 };

/* What is NULL, 0 or negative here is taken from WARREN_* variables, the file named by WARREN_CONFIG, the launcher's
 * variables, or the default, in this order. Fill with warren_options_init first. */
typedef struct warren_options {
  size_t struct_size;    /* set by warren_options_init */
  const char* tracker;   /* "host:port" or "[v6]:port" */
  const char* job;       /* name of the job */
  const char* worker_id; /* stable identity of this worker over its lives, unique in the job */
  int32_t world_size;
  const char* secret_file;       /* a file of mode 0600, made by `warren keygen` */
  int32_t insecure_no_auth;      /* 1: no authentication, for machines where nobody else can connect */
  const char* host_id;           /* equal for ranks that share memory; default: this machine and container */
  const char* bind_address;      /* where data links are accepted; default: the interface of the route to the tracker */
  const char* advertise_address; /* what peers are told to connect to; default: bind_address */
  int64_t round_timeout_ms;
  const char* transport;   /* "auto": shared memory within a host; "tcp" */
  int64_t join_timeout_ms; /* how long to wait until world_size workers are there */
  const char* algorithm;   /* "auto", "star", "tree", "butterfly", "ring", "direct" */
  int64_t chunk_bytes;
  int32_t streams;          /* TCP connections a link */
  int32_t no_checksums;     /* 1: payload on TCP links, and what NCCL moves, is not checksummed */
  int32_t check_call_sites; /* 1: ranks must make a collective from the same place of the program */
  warren_log_sink log_sink; /* NULL: standard error */
  void* log_context;
  int32_t log_level;             /* least level that is logged, a warren_log_level; -1: taken from the settings */
  const char* domain_id;         /* equal for what dies together; default: this machine */
  int32_t replicas;              /* of what is logged, in distinct failure domains; 0: no fault tolerance;
                                    -1: taken from the settings */
  const char* log;               /* "memory", "async" or "sync": when results are written to data_dir */
  int64_t log_memory_bytes;      /* this rank's part of the log in memory */
  const char* data_dir;          /* directory for this host's log and checkpoints */
  int64_t log_lag_ms;            /* async: what is older is written */
  int64_t log_lag_bytes;         /* async: what is more is written */
  int64_t log_disk_bytes;        /* budget in data_dir */
  const char* checkpoint_mirror; /* directory that gets a copy of each committed checkpoint */
  const char* on_rollback;       /* "exit": the process exits with code 77; "error": calls fail */
  int64_t fusion_bytes;     /* of a round that small asynchronous allreduces share, see warren_fusion_begin; -1: taken
                               from the settings; 0: none */
  const char* timeline;     /* a file that gets a Chrome trace of calls, rounds and recoveries */
  int64_t replace_after_ms; /* a rank that holds up the others for so long is left to a spare; 0: never;
                               -1: taken from the settings */
  const char* mode;         /* "wait": the job waits for workers that were lost; "shrink": it continues without them */
  int32_t min_workers;      /* mode shrink: with how few; 0: taken from the settings */
  int64_t grace_ms;         /* mode shrink: for how long it waits for them before; -1: taken from the settings */
  int32_t no_rewire;        /* 1: bytes never go by way of other workers around a slow link */
  int32_t max_workers;      /* mode shrink: how many workers the job may have, in place of world_size: it begins with
                               fewer if no more come; 0: taken from the settings */
  int32_t nondeterministic; /* 1: the ring may go around a slow link in another order, from a checkpoint on: results may
                               be rounded otherwise than in a run without it, alike on all workers */
  const char* log_full; /* what a full log does: "suspend": it gives up its oldest results, and a loss undoes what is
                           not committed; "error": calls fail */
  warren_setting settings[WARREN_MOST_SETTINGS]; /* by warren_options_set; they come before the members above */
  size_t settings_count;
  warren_interrupt interrupt; /* NULL: nobody is asked */
  void* interrupt_context;
  warren_log_queue* log_queue; /* log lines wait there, see below; not together with log_sink */
} warren_options;

/* `size`: of the struct as the program knows it, which an older header may have made smaller than this library's. */
WARREN_API void warren_options_init_sized(warren_options* options, size_t size);
static inline void warren_options_init(warren_options* options) {
  warren_options_init_sized(options, sizeof *options);
}
/* Gives a setting by its name in docs/settings.md, also one that has no member above, or a switch that is to be off
 * whatever the variables say ("0"). The strings are kept as they are: they must be there until warren_create has
 * returned. Again: the newer value counts. WARREN_INVALID_ARGUMENT: there is no setting of this name. */
WARREN_API warren_code warren_options_set(warren_options* options, const char* name, const char* value);
WARREN_API const char* warren_version(void);
WARREN_API const char* warren_last_error(void);

/* The calling thread's newest failure, in fields. */
typedef struct warren_failure {
  warren_code code;  /* WARREN_OK: there was none */
  int32_t rank;      /* this worker's in its job; -1: it had none yet */
  int32_t peer;      /* the other rank that it concerns, in the job; -1: nobody can tell, or it concerns none */
  const char* round; /* as texts name it, "5.3", or "p.0" before load_checkpoint; "": it happened in none */
  const char* text;  /* that of warren_last_error */
} warren_failure;
/* `size`: of the struct as the program knows it. The texts are valid until the thread's next failure. */
WARREN_API void warren_last_failure_sized(warren_failure* failure, size_t size);
static inline warren_failure warren_last_failure(void) {
  warren_failure failure;
  warren_last_failure_sized(&failure, sizeof failure);
  return failure;
}
/* A log queue holds log lines until the program takes them, so that no thread of the library waits for the program. It
 * is given to warren_create (warren_options.log_queue), and keeps up to `lines` (1 to 65,536) of 4 MiB in all. Where it
 * is full the oldest line is dropped, and the next one that is taken says how many were. Lines that the library writes
 * before it ends the process (on_rollback "exit"), and those still in the queue then, go to standard error. */
WARREN_API warren_code warren_log_queue_create(size_t lines, warren_log_queue** queue);
/* Takes the oldest line, from any thread, also beside calls and while warren_create runs; one thread at a time. *text
 * is valid until the next call for this queue. Waits for at most timeout_ms, without end if that is negative:
 * WARREN_TIMEOUT. WARREN_CLOSED: the queue is empty, and stays so, as all communicators that it was given to are
 * destroyed, or were not made. A queue that was given to none waits for the first. */
WARREN_API warren_code warren_next_log(warren_log_queue* queue, int64_t timeout_ms, warren_log_level* level,
                                       const char** text);
/* Lines that come later go to standard error. No other thread may be in warren_next_log. NULL is allowed. */
WARREN_API void warren_log_queue_free(warren_log_queue* queue);

/* Joins the job and waits until all of it is there. NULL options: everything from the environment. */
WARREN_API warren_code warren_create(const warren_options* options, warren_comm** comm);
/* The collective end of the job: returns when all ranks have entered it. Outstanding calls are completed first. Only on
 * what warren_create made. */
WARREN_API warren_code warren_finalize(warren_comm* comm);
/* This worker is to leave, because its machine is about to be taken away. Returns at once; what is under way is
 * finished, and no other call begins. Within `within_ms` the worker leaves, and its process ends with exit code 75. The
 * job keeps its rank for its next life. With on_rollback "error" calls fail with WARREN_CLOSED instead. From any
 * thread, not from a signal handler; the setting on_sigterm does it for SIGTERM, `warren run` for its workers. Only on
 * what warren_create made. */
WARREN_API warren_code warren_drain(warren_comm* comm, int64_t within_ms);
/* Gives this worker's life in the job up: calls that are under way, and all that follow, fail with WARREN_CLOSED and
 * `reason` within moments; the other ranks wait for its next life. From any thread, beside calls and in callbacks; not
 * from a signal handler. Returns at once. What is left to do is warren_destroy. NULL: no reason is given. */
WARREN_API warren_code warren_abort(warren_comm* comm, const char* reason);
/* Frees the communicator and those split from it that were not destroyed. Without finalize, the other ranks learn that
 * this one has gone. NULL is allowed. */
WARREN_API void warren_destroy(warren_comm* comm);

WARREN_API int32_t warren_rank(const warren_comm* comm);
WARREN_API int32_t warren_world_size(const warren_comm* comm);
/* Position among the ranks of this communicator on the same host, and how many they are. */
WARREN_API int32_t warren_local_rank(const warren_comm* comm);
WARREN_API int32_t warren_local_size(const warren_comm* comm);
/* Mode shrink: the least number of workers that the job continues with. Its ranks stay as they are, and world_size is
 * how many there are. 0: the job waits for workers that are lost. */
WARREN_API int32_t warren_min_workers(const warren_comm* comm);
/* Whose inputs are in a result: the ranks that took part, rising, the same on all ranks and in all lives. All of them,
 * but in mode shrink, where an average is over them too. Of the collective of this communicator whose blocking call, or
 * whose warren_wait, was the last to return well; WARREN_INVALID_ARGUMENT: there is none. *count: how many they are; as
 * many of them as `capacity` says are written to `ranks`, which is NULL only if that is 0. */
WARREN_API warren_code warren_contributors(warren_comm* comm, int32_t* ranks, size_t capacity, size_t* count);
/* Rounds and bytes of payload sent since the communicator's job was joined. */
WARREN_API uint64_t warren_rounds_finished(const warren_comm* comm);
WARREN_API uint64_t warren_bytes_sent(const warren_comm* comm);
/* What ranks of this host do for each other on their GPUs (docs/gpu.md), in this life: how many read this one's memory
 * at present, each of which has made a large allreduce on its GPU; inputs of this rank that were left there for them;
 * and pieces of results that came from another rank's GPU instead of by way of the CPU. */
WARREN_API uint64_t warren_gpu_readers(const warren_comm* comm);
WARREN_API uint64_t warren_inputs_lent(const warren_comm* comm);
WARREN_API uint64_t warren_finals_from_gpus(const warren_comm* comm);
/* Rounds whose bytes NCCL was to move among GPUs, in this life. */
WARREN_API uint64_t warren_rounds_exchanged(const warren_comm* comm);

/* Collective. Ranks with the same color make a new communicator, ordered by (key, rank); color -1: none (*out = NULL).
 */
WARREN_API warren_code warren_split(warren_comm* comm, int32_t color, int32_t key, warren_comm** out);

/* Checkpoints and recovery (replicas >= 1). A program makes its collectives in this order: first those that every life
 * needs (the preamble), then warren_load_checkpoint once, then rounds and checkpoints in turn. A worker that is killed
 * and started again runs its program from the beginning: the preamble's results come from the log, load_checkpoint
 * gives the newest committed state, and the rounds after it that others have done already come from the log as well,
 * bit for bit, until it has caught up. So a program must compute the same calls from the same state in each of its
 * lives: same collectives, same counts, same order. Groups are split before the load, or in the version that uses them.
 *
 * load_checkpoint: *version: how many checkpoints the program had taken; 0: none, it starts from the beginning. The
 * states' memory belongs to the communicator and is valid until it is released or destroyed. Pointers may be NULL.
 * checkpoint: returns when a snapshot of the states is taken; the checkpoint is replicated, stored and committed behind
 * the program's back, and the next call waits for that. The global state is equal on all ranks (each keeps a share of
 * it); local states may differ. local NULL: this program has none, on all ranks. Ranks that differ get WARREN_DESYNC.
 */
WARREN_API warren_code warren_load_checkpoint(warren_comm*, uint64_t* version, const void** global,
                                              size_t* global_bytes, const void** local, size_t* local_bytes);
WARREN_API warren_code warren_checkpoint(warren_comm*, const void* global, size_t global_bytes, const void* local,
                                         size_t local_bytes);
/* States that lie in several places: the state is their bytes, one after the other, and where it is cut does not
 * matter. Each place lies on the CPU or a GPU, those of a checkpoint on one GPU at most. bytes 0: data may be NULL. */
typedef struct warren_place {
  void* data;
  size_t bytes;
} warren_place;
/* As warren_checkpoint, with `global_places` and `local_places` of them. The places are read, and only during the call.
 * local NULL: this program has no local states. */
WARREN_API warren_code warren_checkpoint_places(warren_comm*, const warren_place* global, size_t global_places,
                                                const warren_place* local, size_t local_places);
/* As warren_checkpoint_places, of a global state that ranks cannot make alike, such as a pickle: the root's bytes are
 * the state, for all ranks. `global` is read on the root alone; the others give NULL and 0. Local states are each
 * rank's own. Two small rounds tell all ranks the state's hashes (8 bytes for 256 KiB); then the root logs all of the
 * state, and each other rank takes its share from there behind the program's back, before the commit: the root's
 * log_memory_bytes has room for all of it until the next commit. A root that is killed before the commit gives the
 * state again in its next life. A call that has failed, for want of room, cannot be made again: its rounds are made.
 * Where the root's next life gives another state, the job goes back to the checkpoint before
 * (WARREN_ROLLED_BACK): the two are never mixed. Not in mode shrink. */
WARREN_API warren_code warren_checkpoint_from(warren_comm*, int32_t root, const warren_place* global,
                                              size_t global_places, const warren_place* local, size_t local_places);
/* Copies the states that warren_load_checkpoint has given on this communicator to where the program wants them; those
 * on a GPU are written after the work on the stream of warren_use_stream, and are there for all streams when this
 * returns. As often as you like. WARREN_INVALID_ARGUMENT: the places have not the bytes of the state, or there is none
 * (version 0); nothing is written. Other errors as of a collective on buffers on a GPU; what is written then is
 * undefined. local NULL: the local state is left out. */
WARREN_API warren_code warren_restore(warren_comm*, const warren_place* global, size_t global_places,
                                      const warren_place* local, size_t local_places);
/* The lazy form: the model is serialized later, by `serialize`, which is called once, on the thread of the first call
 * of a communicator of this job that follows (a collective, a message, another checkpoint, finalize), before that call
 * does anything else. It sets *bytes and *size to the global state, in memory that stays valid until that call returns.
 * The model must not change between the last round before the checkpoint and the return of the first round after it, so
 * that what is serialized is the state at the checkpoint, on all ranks. There is no local state. `serialize` must not
 * use the communicator. The checkpoint is committed once all ranks have given their state: who dies before is replaced,
 * and its next life replays its way to the same checkpoint and gives it there. Should there be no room for the state,
 * that call fails with WARREN_EXHAUSTED and is not made; the next one asks again. With replicas 0, `serialize` is not
 * called. `context` must live until it was. */
typedef int32_t (*warren_serialize)(const void** bytes, size_t* size, void* context);
WARREN_API warren_code warren_lazy_checkpoint(warren_comm*, warren_serialize serialize, void* context);
/* Frees the memory of the states that warren_load_checkpoint has given: their pointers are invalid from then on, and
 * warren_restore fails. Again, or where nothing was loaded: nothing happens. */
WARREN_API warren_code warren_release_states(warren_comm*);
/* How many ranks the job had when what load_checkpoint gave was taken; 0: it gave none. Another number than the job has
 * now where it was started again with another world size (the setting `resize`): the global state is there, local
 * states are not (*local NULL, 0 bytes), and nothing that was computed after that checkpoint, set-up rounds among it.
 */
WARREN_API uint32_t warren_checkpoint_world_size(const warren_comm*);
/* How many checkpoints the program has taken, counted from what load returned. 0 in a child of a fork, as is what
 * follows. */
WARREN_API uint64_t warren_checkpoint_version(const warren_comm*);
/* The newest version that is committed, as far as this rank knows. */
WARREN_API uint64_t warren_committed_version(const warren_comm*);
/* Calls on this communicator from here on, and on those split from it from here on, whose buffers lie on a GPU, read
 * and write them after the work that is on this stream (a cudaStream_t of that GPU; NULL, as at the beginning: its
 * default stream) when they are made, or when their prepare function has returned. When a call has finished, its
 * results are there for all streams. Where buffers may lie on a GPU: see "GPU buffers" below. */
WARREN_API warren_code warren_use_stream(warren_comm*, void* stream);
/* Fusion. Asynchronous allreduces on this communicator between the two calls are put together, those of one type,
 * operation, wire type and named algorithm, if any, that follow each other, and made as one round: of up to `bytes`
 * (-1: the setting fusion_bytes; 0: nothing is put together) and 1,024 calls; larger ones are made alone. What was put
 * together is sent when the next call does not fit, before any other call of this communicator (a blocking or another
 * asynchronous one, a checkpoint), when one of it is waited, tested or freed, and by fusion_end. So ranks must not only
 * make the same collectives, but also first wait for, test, or free what they have just put together at the same places
 * among them (waiting for what was sent before, and callbacks, end nothing), with the same `bytes`; ranks that do not
 * get WARREN_DESYNC. Calls with a prepare function or a custom type are made alone, on all ranks alike, and so are
 * set-up rounds, which end nothing. Messages, calls of other communicators, another fusion_begin and
 * meets_round are WARREN_INVALID_ARGUMENT between the two: not all ranks make them at the same place. Each call's
 * handle ends as ever. The bits are those of one call of all elements, one call's after the other's: which algorithm
 * combines them, and in which order, follows from all that was put together, as it does from a call's size. They are
 * the same on all ranks, in each run and whatever fails; other cuts may round sums of floats otherwise. */
WARREN_API warren_code warren_fusion_begin(warren_comm*, int64_t bytes);
WARREN_API warren_code warren_fusion_end(warren_comm*);
/* A span of the program's own in the timeline (docs/timeline.md), on the calling thread's row; spans of a thread nest.
 * Nothing happens where there is no timeline. From any thread, also beside a call. */
WARREN_API warren_code warren_span_begin(warren_comm*, const char* name);
WARREN_API warren_code warren_span_end(warren_comm*);
/* What is said of one call beside its arguments. Fill with warren_call_options_init first; it is read before the call
 * returns, also where that is asynchronous, but for `prepare_context`. NULL in its place: nothing is said. */
typedef struct warren_call_options {
  size_t struct_size; /* set by warren_call_options_init */
  /* Where the call stands: what errors name, and what is compared where call sites are. NULL: `address`, an address in
   * the program's code; NULL too: where the function is called. For layers over this interface, whose own calls all
   * come from one place. `function` may be NULL. */
  const char* file;
  const char* function;
  const void* address;
  int32_t line;
  /* The f32 values of an allreduce or reduce_scatter by sum, average, min or max, or of an allgather, travel and are
   * logged as WARREN_F16, WARREN_BF16, or, not by min and max, WARREN_I8; 0, WARREN_F32: as they are. Inputs are
   * rounded to it (to nearest even), combined in f32, and the result is rounded to it once more, on all ranks, so that
   * they all have the same bits; docs/algorithms.md has the bounds of the error. What is beyond f16's range, over
   * 65,504, becomes infinite. As I8, each 256 values (of a share, where there are shares) have a scale, so that the
   * largest of them is 127: the error is relative to it, and a NaN or infinity makes NaNs of all 256. Ranks that give
   * different wire types, or none, get WARREN_DESYNC. */
  int32_t wire;
  /* "star", "tree", "butterfly", "ring" or "direct", whatever the setting says; NULL, "auto": as it says. Equal on all
   * ranks: others get WARREN_DESYNC. docs/algorithms.md has a table of what serves which collective. */
  const char* algorithm;
  /* The call is a *set-up round* of this name (1 .. 128 bytes), see below; NULL: it is not. */
  const char* once;
  /* Called just before the input is read, from a thread inside a call, and not at all if the result is replayed. It
   * must not use the communicator. Anything but 0 says that there is no input: the call fails on this rank with
   * WARREN_INTERNAL, nothing of the buffer reaches another rank, and this worker's life in the job is over. */
  int32_t (*prepare)(void* context);
  void* prepare_context;
  /* A call that has not finished so many milliseconds after it was made ends this worker's life in the job: it fails
   * with WARREN_TIMEOUT, and so do all that follow; the other ranks wait for its next life. Recoveries count. 0: it
   * takes as long as it takes. */
  int64_t timeout_ms;
  /* What warren_site_of has given for the place of the call, in place of `file`, `line` and `function`: quicker where a
   * place makes many calls. 0: it is not given. */
  uint64_t site;
} warren_call_options;
WARREN_API void warren_call_options_init_sized(warren_call_options* options, size_t size);
static inline void warren_call_options_init(warren_call_options* options) {
  warren_call_options_init_sized(options, sizeof *options);
}

/* A group of these ranks of `comm`, which they alone make; ranks[i] is its rank i. Of `options`, which may be NULL, the
 * place of the call counts. All of its members, and no other rank, call it with the same name (1 to 128 bytes) and
 * list; it returns when all of them have. So ranks that are in several groups make those they share in the same order.
 * Ranks that give one name other lists get WARREN_DESYNC, as soon as a message crosses between two of them. A name is
 * free again when the group is destroyed; on one rank, two groups of one name at once are WARREN_INVALID_ARGUMENT. As
 * with split, groups are made before load_checkpoint, or in the version that uses them. */
WARREN_API warren_code warren_group(warren_comm* comm, const char* name, const int32_t* ranks, size_t count,
                                    const warren_call_options* options, warren_comm** out);

/* Set-up rounds (warren_call_options.once): collectives that a process needs once, such as a schema or a sketch of the
 * data, and that a process which is started again needs again although the others are in the middle of a later version.
 * Such a result is kept for as long as the job lasts, also over rollbacks: the call takes no number of its version, and
 * any further call of the name, in this life or another, gets the same bytes at once and alone. So:
 *  - the first time, all ranks of the communicator make the call, in the same order among its other collectives, before
 *    the first checkpoint after it;
 *  - a name stands for one call: another collective, count, type, operation or root under it is WARREN_DESYNC;
 *  - it is made on what warren_create made, or on what was split from that before load_checkpoint;
 *  - results stay in the log (log_memory_bytes, log_disk_bytes) until the end of the job: a process calls at most 1024,
 *    with 1 GiB of results, else WARREN_EXHAUSTED. A result of which all replicas are lost rolls the job back, and all
 *    processes make their set-up rounds again;
 *  - with replicas 0 nothing is kept: it is a round like any other. */
/* Whether the job knows a set-up round of this name: it was begun, and not lost since. */
WARREN_API warren_code warren_once_known(warren_comm*, const char* name, int32_t* known);
/* For layers that find set-up rounds out without names. A process that has loaded a version and meets a call in it that
 * the others may make now, or may have made long ago: whether the job's next round of this version is called from one
 * of `sites` (1 to 16), each what warren_site_of gives. Waits until a rank, or the log, can tell. If every other rank
 * asks the same for the same call they all make the round, and the answer is yes; if some ask for another call nobody
 * can tell, and all processes start again from the newest checkpoint. If the answer is no, the round is another one, or
 * the version has no more: this process is to make no round here. Only on the communicator that warren_create made. */
WARREN_API warren_code warren_meets_round(warren_comm*, const uint64_t* sites, size_t count, int32_t* meets);
/* The call site that a place of a program's source is; 0: `file` is NULL or empty. The library remembers the file's
 * name, so that errors can tell it. From any thread. */
WARREN_API uint64_t warren_site_of(const char* file, int32_t line, const char* function);

/* Mode shrink (the setting `mode`). When workers are lost the job waits for them for grace_ms, and continues without
 * them if min_workers are left. A round that was under way stays the one that it was, if the workers that are left hold
 * all of its result. Otherwise it is made again from their inputs. A worker that was lost comes in again, under its
 * rank, after the next checkpoint is committed. Its warren_create returns then. It loads that checkpoint, gets the
 * results since from the log, and contributes from there on. A spare may come in for it. With max_workers the job may
 * begin so, with ranks that nobody has had, and later workers come in likewise. docs/elasticity.md tells how programs
 * use it. There are allreduce and barrier on what warren_create made, load_checkpoint, checkpoint without
 * local state, and finalize, in which all who are there take part; all else is WARREN_INVALID_ARGUMENT: other
 * collectives, messages, split and group, set-up rounds, prepare functions, wire types, buffers on a GPU, fusion, lazy
 * checkpoints.
 */

/* GPU buffers. Where libwarren_cuda.so finds a GPU, the buffers of collectives and messages, and the states that
 * checkpoint takes or that a lazy checkpoint's function gives, may be memory of it (or managed memory): in, out or
 * both, on one GPU. They are copied by way of pinned memory (at most device_pinned_bytes, else WARREN_EXHAUSTED), with
 * the same bits, log and recovery as memory of the CPU. What load_checkpoint gives is memory of the CPU; restore copies
 * it to a GPU. A GPU that fails, or that has not copied 4 MiB in the round timeout, ends this worker's life in the job:
 * its calls fail, the others wait for its next life. Pinned memory of the program's own is memory of the CPU: no stream
 * is waited for.
 *
 * A checkpoint of states on a GPU returns when they are copied within it (this rank's share of the global one, and the
 * local one; to memory of the CPU where they do not fit into device_snapshot_bytes): the program may write to them.
 * They come to the log while it continues; the next checkpoint, and finalize, wait for that. Should the log have no
 * room for them, the program's next call fails with WARREN_EXHAUSTED and is not made; after it they try again.
 *
 * Collectives. Counts are elements. Buffers are aligned to their element; output may be the input where it says "in
 * place", and must not overlap it otherwise. On failure outputs are undefined. handle NULL: the call blocks; otherwise
 * it returns at once, buffers stay untouched until the handle has finished, and the handle must be freed.
 * Calls are numbered in the order of issue, which must be the same on all ranks of the communicator.
 *
 * allreduce:      in[count] -> out[count] everywhere; in place: out == in
 * reduce:         in[count] -> out[count] at root (NULL elsewhere); in place: out == in
 * broadcast:      buffer[count] of root -> everywhere
 * allgather:      in[count] -> out[size * count]; in place: in == out + rank * count
 * allgatherv:     in[counts[rank]] -> out[sum of counts], blocks in rank order; in place likewise
 * reduce_scatter: in[size * count] -> out[count], block `rank`; in place: out == in + rank * count
 * gather:         in[count] -> out[size * count] at root; in place at root: in == out + root * count
 * scatter:        in[size * count] at root -> out[count]; in place at root: out == in + root * count
 * reduce_scatterv: in[sum of counts] -> out[counts[rank]], block `rank`; in place: out == in + the counts before it
 * all_to_all:     in[size * count] -> out[size * count]: block j goes to rank j; never in place
 * all_to_allv:    in[sum of counts_to] -> out[sum of counts_from]: block j, of counts_to[j], goes to rank j, which says
 *                 so as its counts_from; never in place
 *
 * Counts of an allgatherv and a reduce_scatterv, one for each rank, are equal on all ranks. Those of an all_to_allv
 * are each rank's own; ranks tell each other in a round of its own, before the data's, and it is no set-up round. It
 * serves 2,048 ranks at most. Where ranks' counts do not agree the job ends with WARREN_DESYNC. Any count may be 0.
 * Counts are read before the call returns, also where it is asynchronous.
 */
WARREN_API warren_code warren_allreduce(warren_comm*, const void* in, void* out, size_t count, warren_type, warren_op,
                                        const warren_call_options*, warren_handle**);
/* Elements of element_bytes (1 .. 4 MiB) combined by `reduce`; `context` must live until the call has finished. Which
 * rank combines what follows from the algorithm: a reduction is called on some ranks, from a thread inside a call. */
WARREN_API warren_code warren_allreduce_custom(warren_comm*, const void* in, void* out, size_t count,
                                               size_t element_bytes, warren_custom_reduce reduce, void* context,
                                               const warren_call_options*, warren_handle**);
WARREN_API warren_code warren_reduce(warren_comm*, const void* in, void* out, size_t count, warren_type, warren_op,
                                     int32_t root, const warren_call_options*, warren_handle**);
WARREN_API warren_code warren_broadcast(warren_comm*, void* buffer, size_t count, warren_type, int32_t root,
                                        const warren_call_options*, warren_handle**);
WARREN_API warren_code warren_barrier(warren_comm*, const warren_call_options*, warren_handle**);
WARREN_API warren_code warren_allgather(warren_comm*, const void* in, void* out, size_t count, warren_type,
                                        const warren_call_options*, warren_handle**);
WARREN_API warren_code warren_allgatherv(warren_comm*, const void* in, void* out, const size_t* counts, warren_type,
                                         const warren_call_options*, warren_handle**);
WARREN_API warren_code warren_reduce_scatter(warren_comm*, const void* in, void* out, size_t count, warren_type,
                                             warren_op, const warren_call_options*, warren_handle**);
WARREN_API warren_code warren_reduce_scatterv(warren_comm*, const void* in, void* out, const size_t* counts,
                                              warren_type, warren_op, const warren_call_options*, warren_handle**);
/* As warren_allreduce_custom, but that `reduce` need not be commutative or associative: rank r combines its block of
 * rank 0's input with that of rank 1, the result with that of rank 2, and so on, by algorithm direct alone. */
WARREN_API warren_code warren_reduce_scatterv_custom(warren_comm*, const void* in, void* out, const size_t* counts,
                                                     size_t element_bytes, warren_custom_reduce reduce, void* context,
                                                     const warren_call_options*, warren_handle**);
WARREN_API warren_code warren_gather(warren_comm*, const void* in, void* out, size_t count, warren_type, int32_t root,
                                     const warren_call_options*, warren_handle**);
WARREN_API warren_code warren_scatter(warren_comm*, const void* in, void* out, size_t count, warren_type, int32_t root,
                                      const warren_call_options*, warren_handle**);
WARREN_API warren_code warren_all_to_all(warren_comm*, const void* in, void* out, size_t count, warren_type,
                                         const warren_call_options*, warren_handle**);
WARREN_API warren_code warren_all_to_allv(warren_comm*, const void* in, const size_t* counts_to, void* out,
                                          const size_t* counts_from, warren_type, const warren_call_options*,
                                          warren_handle**);
/* Memory for the buffers of large allreduces: at least `bytes`, aligned to a page, on huge pages where the system gives
 * them, each page touched. The ranks of this host map it for reading and reduce from it where it lies, instead of
 * having it sent to them; each rank's buffers may be of either kind, in all calls, with the same bits. It lies in a
 * memory file without a name, and goes with the processes that have mapped it. A life has at most 256 of them, else
 * WARREN_EXHAUSTED; it can be used with all communicators of the job, but is not there in the children of a fork,
 * which must not touch it. It is there until it is freed or what warren_create made is destroyed, whichever is
 * first: a program that is started again, or that makes another communicator, allocates anew. Without a log (replicas
 * 0) it is memory like any other. warren_free: no outstanding call may use it; NULL is allowed. In a callback, or
 * beside another thread's call, it is given back with the next call. */
WARREN_API warren_code warren_allocate(warren_comm*, size_t bytes, void** memory);
WARREN_API warren_code warren_free(warren_comm*, void* memory);

/* Point to point. Messages between two ranks with one tag (0 .. 2^31 - 1) arrive in order; count and type must agree.
 * A message is received before the checkpoint that follows it, else the job ends with an error. A large send waits for
 * its receive, for a second or two; then it returns, as the log has the message. With replicas 0 it waits on. When a
 * send has returned, the buffer is free. The message travels by itself, also again to a lost receiver's next life,
 * whatever the sender does meanwhile, up to destroying the communicator. What was not received when its receiver
 * destroys the communicator is dropped.
 */
WARREN_API warren_code warren_send(warren_comm*, const void* buffer, size_t count, warren_type, int32_t peer,
                                   int32_t tag, const warren_call_options*, warren_handle**);
WARREN_API warren_code warren_recv(warren_comm*, void* buffer, size_t count, warren_type, int32_t peer, int32_t tag,
                                   const warren_call_options*, warren_handle**);

/* Waits for the call and returns its result; again, the same. */
WARREN_API warren_code warren_wait(warren_handle*);
/* Waits for the call for `timeout_ms` milliseconds at most. *finished: 1 when the call has finished, whose result is
 * returned; else 0, with WARREN_OK: it continues, and may be waited for again. */
WARREN_API warren_code warren_wait_for(warren_handle*, int64_t timeout_ms, int32_t* finished);
/* *finished: 1 when the call has finished (then the result is warren_wait's), else 0. Does not block. */
WARREN_API warren_code warren_test(warren_handle*, int32_t* finished);
/* As warren_contributors, of this call, which has finished, else WARREN_INVALID_ARGUMENT; the code of one that failed.
 * From any thread and in callbacks, but not beside warren_handle_free. */
WARREN_API warren_code warren_handle_contributors(const warren_handle*, int32_t* ranks, size_t capacity, size_t* count);
/* Calls `callback` once: now, if the call has finished. At most one a handle. */
WARREN_API warren_code warren_on_complete(warren_handle*, warren_callback callback, void* context);
/* Waits if need be, then frees. NULL is allowed. A callback may free its own handle. It may free others, too, but those
 * of the same job are not waited for there: the buffers of a call that has not finished are in use until it has. */
WARREN_API void warren_handle_free(warren_handle*);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* WARREN_C_API_H_ */
