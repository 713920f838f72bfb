#include "worker/api/calls.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "recovery/base/limits.h"
#include "worker/api/call_sites.h"
#include "worker/api/options.h"
#include "worker/schedule/schedule.h"

namespace warren::api {
namespace {

Status check_name(const warren_comm& comm, const char* name) {
  if (const Status status = comm.shared->session->calls().needs_mode_wait("a set-up round"); !status.ok())
    return status;
  const std::size_t bytes = strnlen(name, limits::kMaxSetupNameBytes + 1);
  if (bytes == 0 || bytes > limits::kMaxSetupNameBytes) {
    return {Code::kInvalidArgument, "the name of a set-up round has 1 to " +
                                        std::to_string(limits::kMaxSetupNameBytes) + " bytes, this one " +
                                        (bytes == 0 ? "none" : "more")};
  }
  if (comm.lasts) return {};
  return {Code::kInvalidArgument, "\"" + std::string(name) +
                                      "\" is a set-up round on a communicator that was split after load_checkpoint: a "
                                      "process that is started again would not find it; split it before"};
}

// A call that has a time within which it is to finish: another thread watches it, so that it outlives who waits.
Status run_within(warren_comm& comm, const GroupShape& shape, const std::shared_ptr<Call>& call,
                  std::int64_t timeout_ms) {
  Calls& calls = comm.shared->session->calls();
  Status status = calls.stage(*call, shape);
  if (status.ok()) status = calls.submit(comm.group, call);
  if (!status.ok()) return status;
  calls.finish_within(call, timeout_ms);
  return calls.wait(*call);
}

}  // namespace

Result<Said> say(const warren_comm& comm, const warren_call_options& given, CallSpec& spec) {
  const auto options = of_this_version(given, warren_call_options{}, "warren_call_options_init");
  if (!options.ok()) return options.status();
  const warren_call_options& said = options.value();
  const std::uint64_t site = said.site != 0 ? said.site : warren_site_of(said.file, said.line, said.function);
  if (site != 0) {
    spec.site = site;
  } else if (said.address != nullptr) {
    spec.site = site_of(said.address);
  }
  if (said.timeout_ms < 0) return Status(Code::kInvalidArgument, "timeout_ms is negative");
  Said rest{{}, std::min(said.timeout_ms, kMostWaitMs)};
  if (spec.collective == Collective::kPoint) {
    if ((said.wire == 0 || said.wire == WARREN_F32) && said.algorithm == nullptr && said.once == nullptr &&
        said.prepare == nullptr) {
      return rest;
    }
    return Status(Code::kInvalidArgument,
                  "a message has no wire type, algorithm, name or prepare function: collectives have");
  }
  if (said.wire != 0 && said.wire != WARREN_F16 && said.wire != WARREN_BF16 && said.wire != WARREN_I8 &&
      said.wire != WARREN_F32) {
    return Status(Code::kInvalidArgument,
                  "f32 travels as f16, bf16, i8 or f32, not as type " + std::to_string(said.wire));
  }
  spec.wire = said.wire == WARREN_F32 ? DataType{} : static_cast<DataType>(said.wire);
  if (said.algorithm != nullptr) {
    const auto algorithm = schedule::parse_algorithm(said.algorithm);
    if (!algorithm.ok()) return algorithm.status();
    const auto number = static_cast<std::uint8_t>(algorithm.value());
    if (spec.algorithm != 0 && number != 0 && number != spec.algorithm) {
      return Status(Code::kInvalidArgument, std::string(to_string(spec.collective)) +
                                                ": a reduction of the program's is called in the order of "
                                                "ranks, which algorithm direct does, and " +
                                                said.algorithm + " does not");
    }
    if (number != 0) spec.algorithm = number;
  }
  spec.prepare = said.prepare;
  spec.prepare_context = said.prepare_context;
  if (said.once == nullptr) return rest;
  if (const Status status = check_name(comm, said.once); !status.ok()) return status;
  rest.setup = said.once;
  return rest;
}

Status say_of_group(const warren_comm& comm, const warren_call_options& given, CallSpec& spec) {
  const auto said = say(comm, given, spec);
  if (!said.ok()) return said.status();
  const bool else_nothing = said.value().setup.empty() && said.value().timeout_ms == 0 && spec.wire == DataType{} &&
                            spec.algorithm == 0 && spec.prepare == nullptr;
  if (else_nothing) return {};
  return {Code::kInvalidArgument,
          "a group has no wire type, algorithm, name of a set-up round, prepare function or timeout"};
}

Status issue(warren_comm& comm, CallSpec& spec, Said said, warren_handle** handle) {
  spec.stream = comm.stream;
  const GroupShape shape{comm.rank, static_cast<std::int32_t>(comm.members.size())};
  const Status valid = validate(spec, shape);
  if (!valid.ok()) return valid;
  Session& session = *comm.shared->session;
  Calls& calls = session.calls();
  if (handle == nullptr) {
    std::shared_ptr<const std::vector<Rank>> contributors;
    Status status;
    if (said.timeout_ms != 0) {
      const auto call = std::make_shared<Call>();
      call->spec = spec;
      call->setup = std::move(said.setup);
      status = run_within(comm, shape, call, said.timeout_ms);
      contributors = call->contributors;
    } else if (said.setup.empty()) {
      status = calls.run(comm.group, shape, spec, contributors);
    } else {
      Call call;
      call.spec = spec;
      call.setup = std::move(said.setup);
      status = calls.stage(call, shape);
      if (status.ok()) status = calls.run(comm.group, call);
      contributors = std::move(call.contributors);
    }
    if (status.ok() && spec.collective != Collective::kPoint) {
      comm.newest->is_one = true;
      comm.newest->contributors = std::move(contributors);
    }
    return status;
  }
  auto call = std::make_shared<Call>();
  call->spec = spec;
  call->setup = std::move(said.setup);
  auto made = std::make_unique<warren_handle>(
      warren_handle{comm.shared, call, spec.collective == Collective::kPoint ? nullptr : comm.newest, shape.size});
  Status status;
  if (comm.fusion_bytes != 0 && spec.collective == Collective::kAllreduce) {
    status = session.fused().submit(comm.group, shape, call, comm.fusion_bytes);
  } else {
    status = calls.stage(*call, shape);
    if (status.ok()) status = calls.submit(comm.group, call);
  }
  if (status.ok() && said.timeout_ms != 0) calls.finish_within(call, said.timeout_ms);
  if (status.ok()) *handle = made.release();
  return status;
}

warren_code start(warren_comm* comm, CallSpec& spec, const warren_call_options* options, warren_handle** handle) {
  if (handle != nullptr) *handle = nullptr;
  if (comm == nullptr) return report(Status(Code::kInvalidArgument, "the communicator is NULL"));
  return guarded(*comm->shared, [&]() -> Status {
    const Entry entry(*comm->shared);
    if (!entry.status().ok()) return entry.status();
    if (options == nullptr) return issue(*comm, spec, {}, handle);
    auto said = say(*comm, *options, spec);
    return said.ok() ? issue(*comm, spec, std::move(said).value(), handle) : said.status();
  });
}

}  // namespace warren::api
