// rabit's C interface over the functions behind rabit.h. Models are plain bytes here. Nothing that is thrown leaves it.
#include "rabit/c_api.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

#include "rabit/rabit.h"
#include "rabit/types.h"

namespace {

using rabit::engine::Place;
namespace mpi = rabit::engine::mpi;

// Calls through this interface are made nowhere in particular: none of them is taken for a set-up round.
constexpr Place kNowhere{nullptr, 0, nullptr};

[[noreturn]] void end(const char* what) {
  std::fprintf(stderr, "rabit: a call cannot be done: %s\n", what);
  rabit::utils::EndProcess(255);
}

template <class Body>
auto guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::exception& e) {
    end(e.what());
  } catch (...) {
    end("the program has thrown something that is no std::exception");
  }
}

mpi::DataType type_of(int code) {
  if (code < mpi::kChar || code > mpi::kULongLong) rabit::engine::Fail("unknown type " + std::to_string(code));
  return static_cast<mpi::DataType>(code);
}
mpi::OpType op_of(int code) {
  if (code < mpi::kMax || code > mpi::kBitwiseOR) rabit::engine::Fail("unknown operation " + std::to_string(code));
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
  return guarded([&] { return rabit::Init(argc, argv); });
}
bool RabitFinalize(void) {
  return guarded([] { return rabit::Finalize(); });
}
int RabitGetRingPrevRank(void) {
  return guarded([] { return rabit::GetRingPrevRank(); });
}
int RabitGetRank(void) {
  return guarded([] { return rabit::GetRank(); });
}
int RabitGetWorldSize(void) {
  return guarded([] { return rabit::GetWorldSize(); });
}
int RabitIsDistributed(void) {
  return guarded([] { return rabit::IsDistributed() ? 1 : 0; });
}
void RabitTrackerPrint(const char* msg) {
  guarded([&] {
    if (msg == nullptr) end("RabitTrackerPrint: the text is NULL");
    rabit::TrackerPrint(msg);
  });
}

void RabitGetProcessorName(char* out_name, rbt_ulong* out_len, rbt_ulong max_len) {
  guarded([&] {
    if (out_len == nullptr) end("RabitGetProcessorName: there is no place for the length");
    if (out_name == nullptr && max_len != 0) end("RabitGetProcessorName: there is no place for the name");
    const std::string name = rabit::GetProcessorName();
    *out_len = 0;
    if (max_len == 0) return;
    *out_len = std::min<rbt_ulong>(name.size(), max_len - 1);
    std::memcpy(out_name, name.data(), *out_len);
    out_name[*out_len] = 0;
  });
}

void RabitBroadcast(void* sendrecv_data, rbt_ulong size, int root) {
  guarded([&] { rabit::engine::Broadcast(sendrecv_data, size, root, kNowhere); });
}

void RabitAllgather(void* sendrecvbuf, size_t total_size, size_t begin_index, size_t size_node_slice,
                    size_t size_prev_slice, int enum_dtype) {
  guarded([&] {
    const size_t width = rabit::engine::size_of(type_of(enum_dtype));
    const auto bytes = [&](size_t elements) { return rabit::detail::BytesOf(elements, width); };
    rabit::engine::Allgather(sendrecvbuf, bytes(total_size), bytes(begin_index), bytes(size_node_slice),
                             bytes(size_prev_slice), kNowhere);
  });
}

void RabitAllreduce(void* sendrecvbuf, size_t count, int enum_dtype, int enum_op, void (*prepare_fun)(void*),
                    void* prepare_arg) {
  guarded([&] {
    rabit::engine::Allreduce(sendrecvbuf, count, type_of(enum_dtype), op_of(enum_op), prepare_fun, prepare_arg,
                             kNowhere);
  });
}

int RabitLoadCheckPoint(char** out_global_model, rbt_ulong* out_global_len, char** out_local_model,
                        rbt_ulong* out_local_len) {
  return guarded([&] {
    static std::string global, local;
    if (out_global_model == nullptr || out_global_len == nullptr) {
      end("RabitLoadCheckPoint: there is no place for the global model");
    }
    if (out_local_model != nullptr && out_local_len == nullptr) {
      end("RabitLoadCheckPoint: there is no place for the local model's length");
    }
    global.clear();
    local.clear();
    const int version =
        rabit::engine::LoadCheckPoint(&global, out_local_model != nullptr ? &local : nullptr, &load_bytes);
    *out_global_model = version != 0 ? global.data() : nullptr;
    *out_global_len = global.size();
    if (out_local_model != nullptr) {
      *out_local_model = version != 0 ? local.data() : nullptr;
      *out_local_len = local.size();
    }
    return version;
  });
}

void RabitCheckPoint(const char* global_model, rbt_ulong global_len, const char* local_model, rbt_ulong local_len) {
  guarded([&] {
    if (global_model == nullptr && global_len != 0) end("RabitCheckPoint: the global model is NULL");
    const Bytes global{global_model, global_len}, local{local_model, local_len};
    rabit::engine::CheckPoint(&global, local_model != nullptr ? &local : nullptr, &save_bytes);
  });
}

int RabitVersionNumber(void) {
  return guarded([] { return rabit::VersionNumber(); });
}
int RabitLinkTag(void) {
  return 0;
}
