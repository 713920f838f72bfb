// What the templates of rabit.h are made of. Programs use rabit.h.
//
// Whatever cannot be done ends the process, with a line on standard error that says why (exit code 255), as in rabit.
#ifndef RABIT_INTERNAL_ENGINE_H_
#define RABIT_INTERNAL_ENGINE_H_

#include <cstddef>
#include <string>

// The place of a call, taken by default arguments where the program makes it.
#define RABIT_PLACE \
  const char *file = __builtin_FILE(), int line = __builtin_LINE(), const char *caller = __builtin_FUNCTION()

namespace rabit {
namespace engine {

namespace mpi {
// As rabit numbers them; the C interface does too.
enum OpType { kMax = 0, kMin = 1, kSum = 2, kBitwiseOR = 3 };
enum DataType {
  kChar = 0,
  kUChar = 1,
  kInt = 2,
  kUInt = 3,
  kLong = 4,
  kULong = 5,
  kFloat = 6,
  kDouble = 7,
  kLongLong = 8,
  kULongLong = 9
};

// Only for the types that can be reduced.
template <typename DType>
DataType GetType() = delete;
template <>
inline DataType GetType<char>() {
  return kChar;
}
template <>
inline DataType GetType<signed char>() {
  return kChar;
}
template <>
inline DataType GetType<unsigned char>() {
  return kUChar;
}
template <>
inline DataType GetType<int>() {
  return kInt;
}
template <>
inline DataType GetType<unsigned int>() {
  return kUInt;
}
template <>
inline DataType GetType<long>() {
  return kLong;
}
template <>
inline DataType GetType<unsigned long>() {
  return kULong;
}
template <>
inline DataType GetType<float>() {
  return kFloat;
}
template <>
inline DataType GetType<double>() {
  return kDouble;
}
template <>
inline DataType GetType<long long>() {
  return kLongLong;
}
template <>
inline DataType GetType<unsigned long long>() {
  return kULongLong;
}
}  // namespace mpi

struct Place {
  const char* file;
  int line;
  const char* caller;
};

// Fills the buffer of a call; null: nothing is to be done.
typedef void PrepareFunction(void* argument);
// for i in [0, count): dst[i] = dst[i] (+) src[i], elements of `size` bytes, not aligned. Called from threads of the
// library.
typedef void ReduceFunction(const void* src, void* dst, size_t count, size_t size);
// Appends a model to a buffer, and reads it back.
typedef void SaveFunction(const void* model, std::string* buffer);
typedef void LoadFunction(void* model, const char* bytes, size_t size);

// Of a call that cannot be done: ends the process, or throws where utils::Error does. No other call can be made then,
// and the other ranks wait for the process' next life.
[[noreturn]] void Fail(const std::string& why);

bool Init(int argc, char* argv[]);
bool Finalize();
void Allreduce(void* sendrecvbuf, size_t count, mpi::DataType type, mpi::OpType op, PrepareFunction* prepare,
               void* prepare_arg, const Place& place);
// Elements of 1 byte to 4 MiB.
void AllreduceCustom(void* sendrecvbuf, size_t element_bytes, size_t count, ReduceFunction* reduce,
                     PrepareFunction* prepare, void* prepare_arg, const Place& place);
void Broadcast(void* sendrecv_data, size_t bytes, int root, const Place& place);
void Allgather(void* sendrecvbuf, size_t total_bytes, size_t first_byte, size_t slice_bytes, size_t previous_bytes,
               const Place& place);
// `local_model` may be null; `global_model` too, then it is not read.
int LoadCheckPoint(void* global_model, void* local_model, LoadFunction* load);
void CheckPoint(const void* global_model, const void* local_model, SaveFunction* save);
void LazyCheckPoint(const void* global_model, SaveFunction* save);

}  // namespace engine
}  // namespace rabit

#endif  // RABIT_INTERNAL_ENGINE_H_
