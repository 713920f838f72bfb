// The calls of the C interface: collectives and messages.
#include <cstdint>
#include <string>
#include <type_traits>

#include "worker/api/call_sites.h"
#include "worker/api/calls.h"
#include "worker/schedule/schedule.h"

namespace warren::api {
namespace {

// Of a call that is not even issued.
warren_code refuse(warren_handle** handle, const Status& why) {
  if (handle != nullptr) *handle = nullptr;
  return report(why);
}

bool is_type(warren_type type) {
  return is_public(static_cast<DataType>(type));
}
bool is_op(warren_op op) {
  return op >= WARREN_SUM && op <= WARREN_AVERAGE;
}

Status check_type(const char* name, warren_type type) {
  if (is_type(type)) return {};
  return {Code::kInvalidArgument, std::string(name) + ": unknown type " + std::to_string(static_cast<int>(type))};
}

Status check_op(const char* name, warren_op op) {
  if (is_op(op)) return {};
  return {Code::kInvalidArgument, std::string(name) + ": unknown operation " + std::to_string(static_cast<int>(op))};
}

// With the elements' type and how they are combined in `spec`.
warren_code reduce_scatterv(warren_comm* comm, CallSpec& spec, const void* in, void* out, const size_t* counts,
                            const warren_call_options* options, warren_handle** handle) {
  if (comm == nullptr || counts == nullptr) {
    return refuse(handle, Status(Code::kInvalidArgument, "reduce_scatterv: the communicator or the counts are NULL"));
  }
  spec.collective = Collective::kReduceScatterv;
  spec.input = in;
  spec.output = out;
  spec.counts = {counts, comm->members.size()};
  return start(comm, spec, options, handle);
}

}  // namespace
}  // namespace warren::api

using warren::Code;
using warren::Collective;
using warren::DataType;
using warren::ReduceOp;
using warren::Status;
using namespace warren::api;

extern "C" {

warren_code warren_allreduce(warren_comm* comm, const void* in, void* out, size_t count, warren_type type, warren_op op,
                             const warren_call_options* options, warren_handle** handle) {
  if (!is_type(type)) return refuse(handle, check_type("allreduce", type));
  if (!is_op(op)) return refuse(handle, check_op("allreduce", op));
  CallSpec spec;
  spec.collective = Collective::kAllreduce;
  spec.type = static_cast<DataType>(type);
  spec.op = static_cast<ReduceOp>(op);
  spec.input = in;
  spec.output = out;
  spec.count = count;
  spec.site = WARREN_SITE;
  return start(comm, spec, options, handle);
}

warren_code warren_allreduce_custom(warren_comm* comm, const void* in, void* out, size_t count, size_t element_bytes,
                                    warren_custom_reduce reduce, void* context, const warren_call_options* options,
                                    warren_handle** handle) {
  if (reduce == nullptr) {
    return refuse(handle, Status(Code::kInvalidArgument, "allreduce: the reduction is NULL"));
  }
  CallSpec spec;
  spec.collective = Collective::kAllreduce;
  spec.type = DataType::kCustom;
  spec.op = ReduceOp::kCustom;
  spec.input = in;
  spec.output = out;
  spec.count = count;
  spec.custom = reduce;
  spec.custom_context = context;
  spec.custom_bytes = element_bytes;
  spec.site = WARREN_SITE;
  return start(comm, spec, options, handle);
}

warren_code warren_reduce(warren_comm* comm, const void* in, void* out, size_t count, warren_type type, warren_op op,
                          int32_t root, const warren_call_options* options, warren_handle** handle) {
  if (const Status s = check_type("reduce", type); !s.ok()) return refuse(handle, s);
  if (const Status s = check_op("reduce", op); !s.ok()) return refuse(handle, s);
  CallSpec spec;
  spec.collective = Collective::kReduce;
  spec.type = static_cast<DataType>(type);
  spec.op = static_cast<ReduceOp>(op);
  spec.input = in;
  spec.output = out;
  spec.count = count;
  spec.root = root;
  spec.site = WARREN_SITE;
  return start(comm, spec, options, handle);
}

warren_code warren_reduce_scatter(warren_comm* comm, const void* in, void* out, size_t count, warren_type type,
                                  warren_op op, const warren_call_options* options, warren_handle** handle) {
  if (const Status s = check_type("reduce_scatter", type); !s.ok()) return refuse(handle, s);
  if (const Status s = check_op("reduce_scatter", op); !s.ok()) return refuse(handle, s);
  CallSpec spec;
  spec.collective = Collective::kReduceScatter;
  spec.type = static_cast<DataType>(type);
  spec.op = static_cast<ReduceOp>(op);
  spec.input = in;
  spec.output = out;
  spec.count = count;
  spec.site = WARREN_SITE;
  return start(comm, spec, options, handle);
}

warren_code warren_broadcast(warren_comm* comm, void* buffer, size_t count, warren_type type, int32_t root,
                             const warren_call_options* options, warren_handle** handle) {
  if (const Status s = check_type("broadcast", type); !s.ok()) return refuse(handle, s);
  CallSpec spec;
  spec.collective = Collective::kBroadcast;
  spec.type = static_cast<DataType>(type);
  spec.output = buffer;
  spec.count = count;
  spec.root = root;
  spec.site = WARREN_SITE;
  return start(comm, spec, options, handle);
}

warren_code warren_barrier(warren_comm* comm, const warren_call_options* options, warren_handle** handle) {
  CallSpec spec;
  spec.collective = Collective::kBarrier;
  spec.site = WARREN_SITE;
  return start(comm, spec, options, handle);
}

warren_code warren_allgatherv(warren_comm* comm, const void* in, void* out, const size_t* counts, warren_type type,
                              const warren_call_options* options, warren_handle** handle) {
  if (const Status s = check_type("allgatherv", type); !s.ok()) return refuse(handle, s);
  if (comm == nullptr || counts == nullptr) {
    return refuse(handle, Status(Code::kInvalidArgument, "allgatherv: the communicator or the counts are NULL"));
  }
  static_assert(std::is_same_v<size_t, std::uint64_t>);
  CallSpec spec;
  spec.collective = Collective::kAllgatherv;
  spec.type = static_cast<DataType>(type);
  spec.input = in;
  spec.output = out;
  spec.counts = {counts, comm->members.size()};
  spec.site = WARREN_SITE;
  return start(comm, spec, options, handle);
}

warren_code warren_reduce_scatterv(warren_comm* comm, const void* in, void* out, const size_t* counts, warren_type type,
                                   warren_op op, const warren_call_options* options, warren_handle** handle) {
  if (const Status s = check_type("reduce_scatterv", type); !s.ok()) return refuse(handle, s);
  if (const Status s = check_op("reduce_scatterv", op); !s.ok()) return refuse(handle, s);
  CallSpec spec;
  spec.type = static_cast<DataType>(type);
  spec.op = static_cast<ReduceOp>(op);
  spec.site = WARREN_SITE;
  return reduce_scatterv(comm, spec, in, out, counts, options, handle);
}

warren_code warren_reduce_scatterv_custom(warren_comm* comm, const void* in, void* out, const size_t* counts,
                                          size_t element_bytes, warren_custom_reduce reduce, void* context,
                                          const warren_call_options* options, warren_handle** handle) {
  if (reduce == nullptr) {
    return refuse(handle, Status(Code::kInvalidArgument, "reduce_scatterv: the reduction is NULL"));
  }
  CallSpec spec;
  spec.type = DataType::kCustom;
  spec.op = ReduceOp::kCustom;
  spec.custom = reduce;
  spec.custom_context = context;
  spec.custom_bytes = element_bytes;
  spec.site = WARREN_SITE;
  // In the order of ranks, whatever the setting says.
  spec.algorithm = static_cast<std::uint8_t>(warren::schedule::Algorithm::kDirect);
  return reduce_scatterv(comm, spec, in, out, counts, options, handle);
}

warren_code warren_all_to_allv(warren_comm* comm, const void* in, const size_t* counts_to, void* out,
                               const size_t* counts_from, warren_type type, const warren_call_options* options,
                               warren_handle** handle) {
  if (const Status s = check_type("all_to_allv", type); !s.ok()) return refuse(handle, s);
  if (comm == nullptr || counts_to == nullptr || counts_from == nullptr) {
    return refuse(handle, Status(Code::kInvalidArgument, "all_to_allv: the communicator or the counts are NULL"));
  }
  CallSpec spec;
  spec.collective = Collective::kAllToAllv;
  spec.type = static_cast<DataType>(type);
  spec.input = in;
  spec.output = out;
  spec.counts = {counts_to, comm->members.size()};
  spec.counts_from = {counts_from, comm->members.size()};
  spec.site = WARREN_SITE;
  return start(comm, spec, options, handle);
}

// The collectives that move equal blocks from `in` to `out` and have at most a root.
#define WARREN_MOVING(name, kind, ...)                                            \
  if (const Status s = check_type(name, type); !s.ok()) return refuse(handle, s); \
  CallSpec spec;                                                                  \
  spec.collective = kind;                                                         \
  spec.type = static_cast<DataType>(type);                                        \
  spec.input = in;                                                                \
  spec.output = out;                                                              \
  spec.count = count;                                                             \
  __VA_ARGS__;                                                                    \
  spec.site = WARREN_SITE;                                                        \
  return start(comm, spec, options, handle)

warren_code warren_allgather(warren_comm* comm, const void* in, void* out, size_t count, warren_type type,
                             const warren_call_options* options, warren_handle** handle) {
  WARREN_MOVING("allgather", Collective::kAllgather);
}

warren_code warren_gather(warren_comm* comm, const void* in, void* out, size_t count, warren_type type, int32_t root,
                          const warren_call_options* options, warren_handle** handle) {
  WARREN_MOVING("gather", Collective::kGather, spec.root = root);
}

warren_code warren_scatter(warren_comm* comm, const void* in, void* out, size_t count, warren_type type, int32_t root,
                           const warren_call_options* options, warren_handle** handle) {
  WARREN_MOVING("scatter", Collective::kScatter, spec.root = root);
}

warren_code warren_all_to_all(warren_comm* comm, const void* in, void* out, size_t count, warren_type type,
                              const warren_call_options* options, warren_handle** handle) {
  WARREN_MOVING("all_to_all", Collective::kAllToAll);
}

warren_code warren_send(warren_comm* comm, const void* buffer, size_t count, warren_type type, int32_t peer,
                        int32_t tag, const warren_call_options* options, warren_handle** handle) {
  if (handle != nullptr) *handle = nullptr;
  if (const Status s = check_type("send", type); !s.ok()) return report(s);
  CallSpec spec;
  spec.collective = Collective::kPoint;
  spec.type = static_cast<DataType>(type);
  spec.input = buffer;
  spec.count = count;
  spec.root = peer;
  spec.tag = tag;
  spec.sends = true;
  spec.site = WARREN_SITE;
  return start(comm, spec, options, handle);
}

warren_code warren_recv(warren_comm* comm, void* buffer, size_t count, warren_type type, int32_t peer, int32_t tag,
                        const warren_call_options* options, warren_handle** handle) {
  if (handle != nullptr) *handle = nullptr;
  if (const Status s = check_type("recv", type); !s.ok()) return report(s);
  CallSpec spec;
  spec.collective = Collective::kPoint;
  spec.type = static_cast<DataType>(type);
  spec.output = buffer;
  spec.count = count;
  spec.root = peer;
  spec.tag = tag;
  spec.site = WARREN_SITE;
  return start(comm, spec, options, handle);
}

}  // extern "C"
