// rabit's interface, on Warren. A program that was written for rabit compiles as it is and is linked with the libraries
// rabit and warren; docs/rabit.md says how to move over and what differs.
//
//   rabit::Init(argc, argv);
//   int version = rabit::LoadCheckPoint(&model);              // 0: a fresh start
//   for (int i = version; i < rounds; ++i) {
//     rabit::Allreduce<rabit::op::Sum>(&gradient[0], gradient.size(), [&] { compute(&gradient); });
//     model.Step(gradient);
//     rabit::CheckPoint(&model);
//   }
//   rabit::Finalize();
//
// Sizes are in elements, unless a function takes void*. Buffers must be equal in size on all ranks; all ranks make the
// same calls in the same order. A call that cannot be done ends the process with a line on standard error (exit code
// 255). One thread at a time may call. The last three arguments of a call are where it is made, and are never given.
#ifndef RABIT_RABIT_H_
#define RABIT_RABIT_H_

#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <functional>
#include <iostream>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rabit/internal/engine.h"
#include "rabit/internal/io.h"
#include "rabit/internal/utils.h"
#include "rabit/serializable.h"

namespace rabit {

// What combines elements. A type of the program's own with such a Reduce serves too.
namespace op {
struct Max {
  static const engine::mpi::OpType kType = engine::mpi::kMax;
  template <typename DType>
  static void Reduce(DType& dst, const DType& src) {
    if (dst < src) dst = src;
  }
};
struct Min {
  static const engine::mpi::OpType kType = engine::mpi::kMin;
  template <typename DType>
  static void Reduce(DType& dst, const DType& src) {
    if (src < dst) dst = src;
  }
};
struct Sum {
  static const engine::mpi::OpType kType = engine::mpi::kSum;
  template <typename DType>
  static void Reduce(DType& dst, const DType& src) {
    dst = static_cast<DType>(dst + src);
  }
};
struct BitOR {
  static const engine::mpi::OpType kType = engine::mpi::kBitwiseOR;
  template <typename DType>
  static void Reduce(DType& dst, const DType& src) {
    dst = static_cast<DType>(dst | src);
  }
};
}  // namespace op

// Joins the job that arguments (key=value) and variables name, and waits until all of it is there; without any, this
// process is a world of one. false: the reason stands on standard error, and every later call ends the process. Init
// and Finalize are called by one thread, while no other one calls anything of rabit's.
bool Init(int argc, char* argv[]);
// The collective end of the job: returns when all ranks have called it, always true: what cannot be done ends the
// process. Without Init, and again, it does nothing.
bool Finalize();

int GetRank();
int GetWorldSize();
// Whether Init has joined a job.
bool IsDistributed();
// This machine's name.
std::string GetProcessorName();
// The rank before this one in the order of Allgather's slices.
int GetRingPrevRank();

// Prints on this process' standard output.
void TrackerPrint(const std::string& message);
// Cut to utils::kPrintBuffer bytes.
void TrackerPrintf(const char* format, ...);

// Everybody gets what `root` has: `size` bytes; or a vector of plain data; or a string (of any length elsewhere).
void Broadcast(void* sendrecv_data, size_t size, int root, RABIT_PLACE);
template <typename DType>
void Broadcast(std::vector<DType>* sendrecv_data, int root, RABIT_PLACE);
void Broadcast(std::string* sendrecv_data, int root, RABIT_PLACE);

// sendrecvbuf[i] becomes that of all ranks combined, on all ranks. `prepare_fun` fills the buffer; it is not called
// where the result is replayed. It may ask what this process is (GetRank, GetWorldSize and the like, VersionNumber),
// and must call nothing else of rabit's. What it throws, Allreduce throws; unless this is a world of one, this life of
// the process in its job is then over: every further call fails, and the others wait for its next life. A reduction
// that throws ends the process.
template <typename OP, typename DType>
void Allreduce(DType* sendrecvbuf, size_t count, void (*prepare_fun)(void*) = nullptr, void* prepare_arg = nullptr,
               RABIT_PLACE);
template <typename OP, typename DType>
void Allreduce(DType* sendrecvbuf, size_t count, std::function<void()> prepare_fun, RABIT_PLACE);

// Each rank has filled its slice of the buffer, slice_begin and following; afterwards all have all slices. Each slice
// begins where that of the rank before ends (the first one at the buffer's end at the latest), and they fill the
// buffer. `size_slice`: of this rank's slice (rabit's header calls it slice_end, and its code takes a size, as all who
// call it know). `size_prev_slice`: of the slice of GetRingPrevRank().
template <typename DType>
void Allgather(DType* sendrecvbuf, size_t total_size, size_t slice_begin, size_t size_slice, size_t size_prev_slice,
               RABIT_PLACE);

// Checkpoints. LoadCheckPoint returns how many the program has taken, and fills the models unless it returns 0. What a
// program calls before it is kept, for lives that come later. The global model is the same on all ranks; local ones may
// differ, and every rank gives one in every checkpoint, or none does in any. A local model is not loaded where none was
// checkpointed.
int LoadCheckPoint(Serializable* global_model, Serializable* local_model = nullptr);
void CheckPoint(const Serializable* global_model, const Serializable* local_model = nullptr);
// CheckPoint(global_model). The model is saved before this returns, and the program may free it then: rabit's own
// LazyCheckPoint saved it later, or never, and asked for a model that does not change until the next version's last
// round.
void LazyCheckPoint(const Serializable* global_model);
// How many checkpoints the program has taken.
int VersionNumber();

// Allreduce by a function of the program's: dst = dst (+) src, associative and commutative. DType is copied as plain
// data and has at most 4 MiB.
template <typename DType, void (*freduce)(DType& dst, const DType& src)>
class Reducer {
 public:
  void Allreduce(DType* sendrecvbuf, size_t count, void (*prepare_fun)(void*) = nullptr, void* prepare_arg = nullptr,
                 RABIT_PLACE);
  void Allreduce(DType* sendrecvbuf, size_t count, std::function<void()> prepare_fun, RABIT_PLACE);
};

// Allreduce of objects that are saved to be sent. DType has Save(stream), Load(stream) for any stream of
// utils::MemoryFixSizeBuffer's kind, and Reduce(const DType& src, size_t max_nbyte).
template <typename DType>
class SerializeReducer {
 public:
  // `max_nbyte`, at most 4 MiB: room for each of the objects, combined ones too.
  void Allreduce(DType* sendrecvobj, size_t max_nbyte, size_t count, void (*prepare_fun)(void*) = nullptr,
                 void* prepare_arg = nullptr, RABIT_PLACE);
  void Allreduce(DType* sendrecvobj, size_t max_nbyte, size_t count, std::function<void()> prepare_fun, RABIT_PLACE);

 private:
  std::string buffer_;
};

}  // namespace rabit

#include "rabit/internal/rabit-inl.h"

#endif  // RABIT_RABIT_H_
