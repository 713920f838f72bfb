// rabit's C interface over the functions behind rabit.h. Models are plain bytes here.
#include "rabit/c_api.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "rabit/rabit.h"
#include "worker/rabit/types.h"

namespace {

using rabit::engine::Place;
namespace mpi = rabit::engine::mpi;

// Calls through this interface are made nowhere in particular: none of them is taken for a set-up round.
constexpr Place kNowhere{nullptr, 0, nullptr};

mpi::DataType type_of(int code) {
  rabit::utils::Check(code >= mpi::kChar && code <= mpi::kULongLong, "rabit: unknown type %d", code);
  return static_cast<mpi::DataType>(code);
}
mpi::OpType op_of(int code) {
  rabit::utils::Check(code >= mpi::kMax && code <= mpi::kBitwiseOR, "rabit: unknown operation %d", code);
  return static_cast<mpi::OpType>(code);
}

struct Bytes {
  const char* data;
  size_t size;
};
void save_bytes(const void* model, std::string* buffer) {
  const Bytes& bytes = *static_cast<const Bytes*>(model);
  if (bytes.size != 0) buffer->append(bytes.data, bytes.size);
}
void load_bytes(void* model, const char* bytes, size_t size) {
  static_cast<std::string*>(model)->assign(bytes, size);
}

}  // namespace

bool RabitInit(int argc, char* argv[]) {
  return rabit::Init(argc, argv);
}
bool RabitFinalize(void) {
  return rabit::Finalize();
}
int RabitGetRingPrevRank(void) {
  return rabit::GetRingPrevRank();
}
int RabitGetRank(void) {
  return rabit::GetRank();
}
int RabitGetWorldSize(void) {
  return rabit::GetWorldSize();
}
int RabitIsDistributed(void) {
  return rabit::IsDistributed() ? 1 : 0;
}
void RabitTrackerPrint(const char* msg) {
  rabit::TrackerPrint(msg);
}

void RabitGetProcessorName(char* out_name, rbt_ulong* out_len, rbt_ulong max_len) {
  const std::string name = rabit::GetProcessorName();
  *out_len = 0;
  if (max_len == 0) return;
  *out_len = std::min<rbt_ulong>(name.size(), max_len - 1);
  std::memcpy(out_name, name.data(), *out_len);
  out_name[*out_len] = 0;
}

void RabitBroadcast(void* sendrecv_data, rbt_ulong size, int root) {
  rabit::engine::Broadcast(sendrecv_data, size, root, kNowhere);
}

void RabitAllgather(void* sendrecvbuf, size_t total_size, size_t begin_index, size_t size_node_slice,
                    size_t size_prev_slice, int enum_dtype) {
  const size_t width = rabit::engine::size_of(type_of(enum_dtype));
  rabit::engine::Allgather(sendrecvbuf, total_size * width, begin_index * width, size_node_slice * width,
                           size_prev_slice * width, kNowhere);
}

void RabitAllreduce(void* sendrecvbuf, size_t count, int enum_dtype, int enum_op, void (*prepare_fun)(void*),
                    void* prepare_arg) {
  rabit::engine::Allreduce(sendrecvbuf, count, type_of(enum_dtype), op_of(enum_op), prepare_fun, prepare_arg, kNowhere);
}

int RabitLoadCheckPoint(char** out_global_model, rbt_ulong* out_global_len, char** out_local_model,
                        rbt_ulong* out_local_len) {
  static std::string global, local;
  global.clear();
  local.clear();
  const int version =
      rabit::engine::LoadCheckPoint(&global, out_local_model != nullptr ? &local : nullptr, &load_bytes);
  *out_global_model = global.data();
  *out_global_len = global.size();
  if (out_local_model != nullptr) {
    *out_local_model = local.data();
    *out_local_len = local.size();
  }
  return version;
}

void RabitCheckPoint(const char* global_model, rbt_ulong global_len, const char* local_model, rbt_ulong local_len) {
  const Bytes global{global_model, global_len}, local{local_model, local_len};
  rabit::engine::CheckPoint(&global, local_model != nullptr ? &local : nullptr, &save_bytes);
}

int RabitVersionNumber(void) {
  return rabit::VersionNumber();
}
int RabitLinkTag(void) {
  return 0;
}
