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
 * Functions of the program's. The library calls them in the middle of a call. A prepare function, a reduction and the
 * function of a lazy checkpoint return 0 on success, else anything else. A failure, or an exception, ends this
 * worker's life in the job. The call that ran the function fails with WARREN_INTERNAL, and so do all later ones. The
 * other ranks wait for this worker's next life, and get nothing of what the function had written. Log sinks and
 * completion callbacks must not throw.
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
  WARREN_TIMEOUT = 4,          /* a time that a setting or this call gives is over */
  WARREN_PEER_LOST = 5,        /* a rank is gone; destroy the communicator and create a new one to join again */
  WARREN_DESYNC = 6,           /* ranks called different things */
  WARREN_CLOSED = 7,           /* finalized, destroyed, forked or fenced */
  WARREN_EXHAUSTED = 8,        /* a limit was reached */
  WARREN_CORRUPT = 9,          /* bytes do not match their checksum or format */
  WARREN_INTERNAL = 10,        /* a function of the program's has failed, or the library met what it did not expect */
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
/* Gets the library's log lines, one a call, from any thread of the library, and from several at once. `text` is valid
 * during the call. The function may be called until the communicator, those split from it and their handles are gone.
 * It must not block, as on an interpreter's lock: the thread that talks to the tracker waits for it, and recoveries
 * with that thread. A program that may block takes a log queue. */
typedef void (*warren_log_sink)(warren_log_level level, const char* text, void* context);
/* Asks the program whether to wait on. Called about ten times a second, from a thread of the program's that waits in a
 * call or in warren_create. 0: the thread waits on. Anything else ends the wait, and this worker's life in the job, as
 * warren_abort does. The function may take long. Of the communicator's functions it may call warren_abort alone. */
typedef int32_t (*warren_interrupt)(void* context);
/* Tells that an asynchronous call has finished: called once, from the thread that finished the call, which may be the
 * library's. `error` is NULL on success, else a text valid during the callback. It must not throw, or call the
 * communicator's functions. Allowed are warren_handle_free, warren_handle_contributors, warren_free and warren_abort.
 */
typedef void (*warren_callback)(warren_code code, const char* error, void* context);
/* Combines n elements of `a` into `inout`: inout[i] = a[i] (+) inout[i]. Called from a thread inside a call. The
 * operation is associative and commutative, unless the call says otherwise. It must not block. Memory is aligned to
 * the element's size alone. Returns 0; anything else is a failure. */
typedef int32_t (*warren_custom_reduce)(const void* a, void* inout, size_t n, void* context);

/* One setting by its name in docs/settings.md, as text. */
typedef struct warren_setting {
  const char* name;
  const char* value;
} warren_setting;
enum { WARREN_MOST_SETTINGS = 64 };

/* Settings of warren_create. Fill with warren_options_init, then set members. A member that is NULL or 0 is not given.
 * Where 0 is a value, -1 is not given. Such a setting comes from WARREN_* variables, the file of WARREN_CONFIG, the
 * launcher's variables, or the default, in this order. Names say the unit: _ms milliseconds, _bytes bytes. Strings
 * must be there until warren_create has returned. */
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
  int64_t round_timeout_ms;      /* how long a silent rank is waited for before it counts as lost; default 10,000 */
  const char* transport;         /* "auto": shared memory within a host; "tcp" */
  int64_t join_timeout_ms;       /* how long to wait until world_size workers are there */
  const char* algorithm;         /* "auto", "star", "tree", "butterfly", "ring", "direct" */
  int64_t chunk_bytes;           /* the most bytes that travel in one piece; default 256 KiB, at most 4 MiB */
  int32_t streams;               /* TCP connections of each link between hosts, 1 to 16; default 1 */
  int32_t no_checksums;          /* 1: payload on TCP links, and what NCCL moves, is not checksummed */
  int32_t check_call_sites;      /* 1: ranks must make a collective from the same place of the program */
  warren_log_sink log_sink;      /* NULL: standard error */
  void* log_context;
  int32_t log_level;     /* least level that is logged, a warren_log_level; -1: taken from the settings */
  const char* domain_id; /* equal for what dies together; default: this machine */
  /* Replicas of each logged result and checkpoint, in distinct failure domains. 0: no fault tolerance; -1: taken from
   * the settings. */
  int32_t replicas;
  const char* log;               /* "memory", "async" or "sync": when results are written to data_dir */
  int64_t log_memory_bytes;      /* this rank's part of the log in memory */
  const char* data_dir;          /* directory for this host's log and checkpoints */
  int64_t log_lag_ms;            /* log "async": results older than this are written to data_dir */
  int64_t log_lag_bytes;         /* log "async": results beyond this many bytes are written to data_dir */
  int64_t log_disk_bytes;        /* the most bytes of one worker's log in data_dir */
  const char* checkpoint_mirror; /* directory that gets a copy of each committed checkpoint */
  const char* on_rollback;       /* "exit": the process exits with code 77; "error": calls fail */
  /* The most bytes of a fused round (warren_fusion_begin). 0: nothing is fused; -1: taken from the settings. */
  int64_t fusion_bytes;
  const char* timeline; /* a file that gets a Chrome trace of calls, rounds and recoveries */
  /* How long a rank may hold up the others before a spare takes its rank. 0: a spare never does; -1: taken from the
   * settings. */
  int64_t replace_after_ms;
  const char* mode;    /* "wait": the job waits for workers that were lost; "shrink": it continues without them */
  int32_t min_workers; /* mode shrink: the fewest workers that the job continues with; 0: taken from the settings */
  int64_t grace_ms;    /* mode shrink: how long the job waits for lost workers first; -1: taken from the settings */
  int32_t no_rewire;   /* 1: bytes never go by way of other workers around a slow link */
  int32_t max_workers; /* mode shrink: how many workers the job may have, in place of world_size: it begins with
                          fewer if no more come; 0: taken from the settings */
  int32_t nondeterministic; /* 1: the ring may go around a slow link in another order, from a checkpoint on: results may
                               be rounded otherwise than in a run without it, alike on all workers */
  const char* log_full; /* what a full log does: "suspend": it gives up its oldest results, and a loss undoes what is
                           not committed; "error": calls fail */
  warren_setting settings[WARREN_MOST_SETTINGS]; /* by warren_options_set; they come before the members above */
  size_t settings_count;
  warren_interrupt interrupt; /* NULL: no function is asked */
  void* interrupt_context;
  warren_log_queue* log_queue; /* log lines wait there, see below; not together with log_sink */
} warren_options;

/* Fills `options` so that no setting is given. Call warren_options_init instead: it passes the size that the program
 * was compiled with, which may be smaller than this library's. */
WARREN_API void warren_options_init_sized(warren_options* options, size_t size);
static inline void warren_options_init(warren_options* options) {
  warren_options_init_sized(options, sizeof *options);
}
/* Gives one setting by its name in docs/settings.md, also one without a member above. "0" turns a switch off, whatever
 * the variables say. A second value for a name replaces the first. Strings must be there until warren_create has
 * returned. WARREN_INVALID_ARGUMENT: an unknown name, an empty value, or options that warren_options_init did not
 * fill. warren_create checks the value. */
WARREN_API warren_code warren_options_set(warren_options* options, const char* name, const char* value);
/* The library's version, as "0.1.0". A constant; from any thread. */
WARREN_API const char* warren_version(void);
/* The text of the calling thread's newest failure, with its causes; "" if there was none. Valid until that thread's
 * next failure. A call that succeeds leaves it as it is. */
WARREN_API const char* warren_last_error(void);

/* Fields of the calling thread's newest failure. The texts are valid until that thread's next failure. */
typedef struct warren_failure {
  warren_code code;  /* WARREN_OK: there was none */
  int32_t rank;      /* this worker's in its job; -1: it had none yet */
  int32_t peer;      /* the other rank that it concerns, in the job; -1: nobody can tell, or it concerns none */
  const char* round; /* as texts name it, "5.3", or "p.0" before load_checkpoint; "": it happened in none */
  const char* text;  /* that of warren_last_error */
} warren_failure;
/* Writes the calling thread's newest failure to `failure`. `size`: sizeof *failure as the program was compiled. From
 * any thread. Call warren_last_failure instead, which passes the size. */
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

/* This worker's rank in the communicator, from 0. -1: comm is NULL. From any thread, but not beside warren_destroy. */
WARREN_API int32_t warren_rank(const warren_comm* comm);
/* How many ranks the communicator has, absent and vacant ones included. -1: comm is NULL. From any thread, as
 * warren_rank. */
WARREN_API int32_t warren_world_size(const warren_comm* comm);
/* Position among the ranks of this communicator on the same host, and how many they are. */
WARREN_API int32_t warren_local_rank(const warren_comm* comm);
WARREN_API int32_t warren_local_size(const warren_comm* comm);
/* Mode shrink: the least number of workers that the job continues with. Its ranks stay as they are, and world_size is
 * how many there are. 0: the job waits for workers that are lost. */
WARREN_API int32_t warren_min_workers(const warren_comm* comm);
/* Writes the ranks whose inputs are in this communicator's newest result. That is the result of the collective whose
 * blocking call, warren_wait or warren_wait_for last returned WARREN_OK. Ranks rise, and are equal on all ranks and in
 * all lives. All ranks are there, except in mode shrink, where an average counts only these. *count: how many they
 * are. At most `capacity` are written; `ranks` is NULL only if that is 0. WARREN_INVALID_ARGUMENT: there is no result
 * yet. */
WARREN_API warren_code warren_contributors(warren_comm* comm, int32_t* ranks, size_t capacity, size_t* count);
/* Rounds and messages that this life has finished, replayed ones included, on all communicators of the job. 0: comm is
 * NULL. */
WARREN_API uint64_t warren_rounds_finished(const warren_comm* comm);
/* Bytes of payload that this life has sent, on all communicators of the job. 0: comm is NULL. */
WARREN_API uint64_t warren_bytes_sent(const warren_comm* comm);
/* How many ranks of this host read this rank's GPU memory at present (docs/gpu.md). Each of them has made a large
 * allreduce on its GPU. */
WARREN_API uint64_t warren_gpu_readers(const warren_comm* comm);
/* How many inputs of this rank, in this life, lay on its GPU for other ranks of the host to read. */
WARREN_API uint64_t warren_inputs_lent(const warren_comm* comm);
/* How many pieces of results, in this life, came from another rank's GPU instead of the CPU. */
WARREN_API uint64_t warren_finals_from_gpus(const warren_comm* comm);
/* How many rounds, in this life, NCCL was to move the bytes of among GPUs. */
WARREN_API uint64_t warren_rounds_exchanged(const warren_comm* comm);

/* Splits `comm`; collective. Ranks with the same color (0 or more) make a new communicator, ordered by (key, rank).
 * Color -1: *out is NULL. Another color, or mode shrink, is WARREN_INVALID_ARGUMENT. The new communicator goes with
 * the one that warren_create made, at the latest. */
WARREN_API warren_code warren_split(warren_comm* comm, int32_t color, int32_t key, warren_comm** out);

/* Checkpoints and recovery (replicas >= 1). A program makes its collectives in this order: first those that every life
 * needs (the preamble), then warren_load_checkpoint once, then rounds and checkpoints in turn. A worker that is killed
 * and started again runs its program from the beginning. The preamble's results come from the log.
 * warren_load_checkpoint gives the newest committed state. The rounds after it that others have finished come from the
 * log as well, bit for bit, until the worker has caught up. So a program must make the same calls from the same state
 * in each of its lives: same collectives, same counts, same order. Groups are split before the load, or in the version
 * that uses them. */

/* Loads the newest committed checkpoint: once a life, on what warren_create made. In *version is how many checkpoints
 * the program had taken; 0: none, the program starts from the beginning. The communicator owns the states' memory,
 * which is valid until warren_release_states or warren_destroy. Result pointers may be NULL. Outstanding calls are
 * completed first. A second call is WARREN_INVALID_ARGUMENT. Lost replicas are WARREN_UNAVAILABLE. */
WARREN_API warren_code warren_load_checkpoint(warren_comm*, uint64_t* version, const void** global,
                                              size_t* global_bytes, const void** local, size_t* local_bytes);
/* Takes a checkpoint: after the load, on what warren_create made. Outstanding calls are completed first. The call
 * returns when a snapshot is taken. Storing and commit follow while the program continues. The next checkpoint waits
 * for the commit; while the tracker is away it waits for room only. The global state is equal on all ranks, else
 * WARREN_DESYNC. Each rank keeps a share of it. Local states may differ. All ranks give one, or all give NULL. Local
 * states are not for mode shrink. */
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
/* As warren_checkpoint_places, for a global state that ranks cannot make alike, such as a pickle. The root's bytes are
 * the state of all ranks. Others' `global` is not read: NULL and 0. Local states are each rank's own. Two small rounds
 * tell all ranks the state's hashes, 8 bytes for 256 KiB. The root logs the whole state, and the others fetch their
 * shares before the commit. The root's log_memory_bytes must hold it until the next commit. A call that failed for
 * want of room cannot be repeated. If the root is killed before the commit, its next life gives the state again. Where
 * that differs, the job rolls back (WARREN_ROLLED_BACK): the two are never mixed. Not in mode shrink. */
WARREN_API warren_code warren_checkpoint_from(warren_comm*, int32_t root, const warren_place* global,
                                              size_t global_places, const warren_place* local, size_t local_places);
/* Copies the loaded states to the program's places, any number of times, until warren_release_states. Places on a GPU
 * are written after the work on the stream of warren_use_stream. They are ready for all streams when the call returns.
 * local NULL: the local state is left out. WARREN_INVALID_ARGUMENT: the sizes differ, or no state is there; nothing is
 * written. After any other error the places' contents are undefined. */
WARREN_API warren_code warren_restore(warren_comm*, const warren_place* global, size_t global_places,
                                      const warren_place* local, size_t local_places);
/* Takes a checkpoint whose global state `serialize` gives later; on what warren_create made. `serialize` runs once, on
 * the thread of the job's next call (a collective, a message, another checkpoint, finalize), before that call does
 * anything. It sets *bytes and *size; the memory stays valid until that call returns. It must not use the
 * communicator. Do not change the model from the last round before the checkpoint until the first one after it
 * returns. There is no local state. A life that dies first is replaced, and its next life replays to this point and
 * gives the state. Without room, that call fails with WARREN_EXHAUSTED and is not made; the next call asks again. With
 * replicas 0 `serialize` is not called. `context` must live until it was. Not in mode shrink. */
typedef int32_t (*warren_serialize)(const void** bytes, size_t* size, void* context);
WARREN_API warren_code warren_lazy_checkpoint(warren_comm*, warren_serialize serialize, void* context);
/* Frees the memory of the loaded states: their pointers are invalid from then on, and warren_restore fails. A second
 * call, or one where nothing was loaded, does nothing. */
WARREN_API warren_code warren_release_states(warren_comm*);
/* How many ranks the job had when the loaded checkpoint was taken; 0: none was loaded. The number may differ from
 * warren_world_size after a start with the setting `resize`. The global state is then there. Local states (*local
 * NULL, 0 bytes), set-up rounds and all later results are not. */
WARREN_API uint32_t warren_checkpoint_world_size(const warren_comm*);
/* How many checkpoints the program has taken, counted from the loaded version. 0 in a child of a fork. */
WARREN_API uint64_t warren_checkpoint_version(const warren_comm*);
/* The newest committed version that this rank knows of. 0: none, or in a child of a fork. */
WARREN_API uint64_t warren_committed_version(const warren_comm*);
/* Sets the stream for buffers on a GPU, of later calls on this communicator and on those split from it later. Such
 * calls read and write after the stream's work at the time of the call, or when their prepare function has returned.
 * `stream`: a cudaStream_t of that GPU; NULL, as at the beginning: its default stream. Results are ready for all
 * streams when a call has finished. See "GPU buffers" below. */
WARREN_API warren_code warren_use_stream(warren_comm*, void* stream);
/* Begins fusion: asynchronous allreduces of this communicator that follow each other share rounds until
 * warren_fusion_end. Calls of one type, operation, wire type and named algorithm are fused: up to `bytes` and 1,024
 * calls a round. With `bytes` -1 the setting fusion_bytes counts; with 0 nothing is fused. Larger calls, calls with a
 * prepare function or a custom type, and set-up rounds are made alone.
 *
 * A round is sent when the next call does not fit, before any other call of this communicator, and by
 * warren_fusion_end. It is also sent when one of its calls is waited for, tested or freed. Set-up rounds, callbacks,
 * and waiting for calls already sent do not send it. Ranks do all this at the same places with the same `bytes`; else
 * WARREN_DESYNC. Meanwhile messages, calls of other communicators, warren_meets_round and another warren_fusion_begin
 * are WARREN_INVALID_ARGUMENT.
 *
 * The bits are those of one call of all the round's elements, equal on all ranks and in each run. Other cuts may round
 * sums of floats differently. */
WARREN_API warren_code warren_fusion_begin(warren_comm*, int64_t bytes);
/* Sends what is left, and ends fusion. WARREN_INVALID_ARGUMENT: none has begun. */
WARREN_API warren_code warren_fusion_end(warren_comm*);
/* A span of the program's own in the timeline (docs/timeline.md), on the calling thread's row; spans of a thread nest.
 * Nothing happens where there is no timeline. From any thread, also beside a call. */
WARREN_API warren_code warren_span_begin(warren_comm*, const char* name);
WARREN_API warren_code warren_span_end(warren_comm*);
/* Options of one call beside its arguments. Fill with warren_call_options_init, then set members. They are read before
 * the call returns, also where it is asynchronous; `prepare_context` lives until the call has finished. NULL in their
 * place: none is given. */
typedef struct warren_call_options {
  size_t struct_size; /* set by warren_call_options_init */
  /* Where the call stands: what errors name, and what is compared where call sites are. NULL: `address`, an address in
   * the program's code; NULL too: where the function is called. For layers over this interface, whose own calls all
   * come from one place. `function` may be NULL. */
  const char* file;
  const char* function;
  const void* address;
  int32_t line;
  /* The type in which f32 values of this call travel and are logged: WARREN_F16, WARREN_BF16 or WARREN_I8. 0,
   * WARREN_F32: as they are. For an allreduce or reduce_scatter by sum, average, min or max (not I8), and an
   * allgather. Inputs are rounded to it (to nearest even) and combined in f32. The result is rounded once more, to the
   * same bits on all ranks; docs/algorithms.md has the bounds of the error. Values beyond f16's range, over 65,504,
   * become infinite. As I8, each 256 values (of a share, where there are shares) have a scale, so that the largest of
   * them is 127. The error is relative to it, and a NaN or infinity makes NaNs of all 256. Ranks that give different
   * wire types, or none, get WARREN_DESYNC. */
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
  /* How long the call may take, in milliseconds, recoveries included. If it takes longer, this worker's life in the
   * job ends: the call fails with WARREN_TIMEOUT, and so do all that follow. The other ranks wait for its next life.
   * 0: no limit. */
  int64_t timeout_ms;
  /* What warren_site_of has given for the place of the call, in place of `file`, `line` and `function`: quicker where a
   * place makes many calls. 0: it is not given. */
  uint64_t site;
} warren_call_options;
WARREN_API void warren_call_options_init_sized(warren_call_options* options, size_t size);
static inline void warren_call_options_init(warren_call_options* options) {
  warren_call_options_init_sized(options, sizeof *options);
}

/* Makes a group of `count` ranks of `comm`; ranks[i] is its rank i. The group's members alone call it, with the same
 * name (1 to 128 bytes) and list; it returns when all have. Of `options`, which may be NULL, only the call's place may
 * be given; else WARREN_INVALID_ARGUMENT. Ranks in several groups make shared ones in the same order. Ranks that give
 * one name different lists get WARREN_DESYNC when a message crosses between two of them. A name is free once the group
 * is destroyed; a second group of that name is WARREN_INVALID_ARGUMENT. Make groups before the load, or in the version
 * that uses them. Not in mode shrink. */
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
/* Asks whether the next round of this version is called from one of `sites`: 1 to 16 values of warren_site_of. *meets
 * 1: yes. 0: no, and this process makes no round here. For layers that find set-up rounds without names, in a process
 * that has loaded a version. The call waits until a rank or the log can tell. If every other rank asks for the same
 * call, the answer is yes, and all make the round. If some ask for another call, all processes start again from the
 * newest checkpoint. Only on what warren_create made, after the load, outside fusion and not in mode shrink; else
 * WARREN_INVALID_ARGUMENT. */
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
 * They come to the log while the program continues; the next checkpoint, and finalize, wait for that. Should the log
 * have no room for them, the program's next call fails with WARREN_EXHAUSTED and is not made; after it they try again.
 */

/* Collectives. Counts are elements. Buffers are aligned to their element; output may be the input where it says "in
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
/* As warren_allreduce, of elements of element_bytes (1 byte to 4 MiB) that `reduce` combines. All ranks give equal
 * functions. The algorithm decides which rank combines what: `reduce` is called on some ranks, from a thread inside a
 * call. `context` must live until the call has finished. */
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
/* Allocates memory for buffers of large allreduces: at least `bytes`, zeroed, aligned to a page, on huge pages where
 * the system gives them. The host's ranks map it, and reduce from it where it lies. The bits are those of other
 * buffers. It serves all communicators of the job, until warren_free or the destruction of what warren_create made.
 * Children of a fork must not touch it. At most 256 a life, else WARREN_EXHAUSTED. WARREN_UNAVAILABLE: too little
 * memory. With replicas 0 it is memory like any other. */
WARREN_API warren_code warren_allocate(warren_comm*, size_t bytes, void** memory);
/* Frees such memory. No outstanding call may use it. NULL is allowed. In a callback, or beside another thread's call,
 * it is freed with the next call. WARREN_INVALID_ARGUMENT: this job did not allocate it. */
WARREN_API warren_code warren_free(warren_comm*, void* memory);

/* Messages. Messages between two ranks with one tag (0 .. 2^31 - 1) arrive in order; count and type agree. A message
 * is received before the checkpoint that follows it, else the job ends with an error. */

/* Sends a message. A large send waits about a second for its receive, then returns, as the log has the message. With
 * replicas 0 it waits as long as it takes. After it returns, the buffer is free. The message still arrives, also in
 * the receiver's next life, and after the sender destroyed its communicator. */
WARREN_API warren_code warren_send(warren_comm*, const void* buffer, size_t count, warren_type, int32_t peer,
                                   int32_t tag, const warren_call_options*, warren_handle**);
/* Receives a message. Destroying the receiver's communicator drops messages that it has not received. */
WARREN_API warren_code warren_recv(warren_comm*, void* buffer, size_t count, warren_type, int32_t peer, int32_t tag,
                                   const warren_call_options*, warren_handle**);

/* Waits until the call has finished, and returns its code. Any number of times, with the same code. */
WARREN_API warren_code warren_wait(warren_handle*);
/* Waits at most timeout_ms (0 or more). *finished 1: the call has finished, and its code is returned. *finished 0 with
 * WARREN_OK: the call continues, and may be waited for again. */
WARREN_API warren_code warren_wait_for(warren_handle*, int64_t timeout_ms, int32_t* finished);
/* Looks whether the call has finished: *finished 1, else 0. Never blocks. The returned code is not the call's:
 * warren_wait returns that. */
WARREN_API warren_code warren_test(warren_handle*, int32_t* finished);
/* Writes the ranks whose inputs are in the result of this call, as warren_contributors does. WARREN_INVALID_ARGUMENT:
 * the call has not finished. If the call failed, its code is returned. From any thread and in callbacks, but not
 * beside warren_handle_free. */
WARREN_API warren_code warren_handle_contributors(const warren_handle*, int32_t* ranks, size_t capacity, size_t* count);
/* Has `callback` called once: at once if the call has finished. One for each handle, else WARREN_INVALID_ARGUMENT.
 * From any thread, but not beside warren_handle_free. */
WARREN_API warren_code warren_on_complete(warren_handle*, warren_callback callback, void* context);
/* Waits until the call has finished, then frees the handle. NULL is allowed. A callback may free its own handle. It
 * may free others, too, but those of the same job are not waited for there. The buffers of a call that has not
 * finished are in use until it has. */
WARREN_API void warren_handle_free(warren_handle*);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* WARREN_C_API_H_ */
