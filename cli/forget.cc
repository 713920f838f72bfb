// `warren forget`: frees the name of a job that is not needed any more.
#include <gflags/gflags.h>
#include <sodium.h>
#include <zmq.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/table.h"
#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"
#include "storage/secret.h"
#include "storage/zeromq.h"
#include "worker/settings/settings.h"
#include "worker/system/netinfo.h"

DEFINE_bool(force, false, "also while workers of the job live: they are refused from then on, and their calls fail");
DECLARE_string(tracker);
DECLARE_string(secret_file);
DECLARE_bool(insecure_no_auth);
DECLARE_string(job);

namespace warren::cli {
namespace {

constexpr long kPatienceMs = 5000;

struct ZmqClose {
  void operator()(void* socket) const { zmq_close(socket); }
};
struct ZmqEnd {
  void operator()(void* context) const { end_zeromq(context); }
};
struct ZmqMessage {
  ZmqMessage() { zmq_msg_init(&message); }
  ~ZmqMessage() { zmq_msg_close(&message); }
  ZmqMessage(const ZmqMessage&) = delete;
  ZmqMessage& operator=(const ZmqMessage&) = delete;
  zmq_msg_t message;
};

// The flag, else the variable; empty: neither.
std::string given(const std::string& flag, const char* variable) {
  return flag.empty() ? worker::process_environment()(variable).value_or("") : flag;
}

// What the tracker answers to this one message.
Result<wire::Envelope> ask(const worker::HostPort& tracker, const std::optional<storage::JobCredentials>& keys,
                           const wire::Envelope& question) {
  if (Status s = has_room_for_zeromq(1); !s.ok()) return s;
  // ZeroMQ would end only when the resolver does.
  if (Status s = worker::resolve_host(tracker.host, std::chrono::milliseconds(kPatienceMs)).status(); !s.ok()) return s;
  const std::unique_ptr<void, ZmqEnd> context(zmq_ctx_new());
  const std::unique_ptr<void, ZmqClose> socket(zmq_socket(context.get(), ZMQ_DEALER));
  const auto number = [&](int option, int value) {
    return zmq_setsockopt(socket.get(), option, &value, sizeof value) == 0;
  };
  const auto text = [&](int option, const std::string& value) {
    return zmq_setsockopt(socket.get(), option, value.data(), value.size()) == 0;
  };
  bool ok = socket && number(ZMQ_LINGER, 0) && number(ZMQ_IPV6, 1);
  if (keys) {
    ok = ok && text(ZMQ_CURVE_SERVERKEY, keys->tracker_public_z85) &&
         text(ZMQ_CURVE_PUBLICKEY, keys->worker.public_z85) && text(ZMQ_CURVE_SECRETKEY, keys->worker.secret_z85);
  }
  const std::string bytes = encode(question, Side::kWorker);
  ok = ok && zmq_connect(socket.get(), ("tcp://" + to_string(tracker)).c_str()) == 0 &&
       zmq_send(socket.get(), bytes.data(), bytes.size(), 0) >= 0;
  if (!ok)
    return Status(Code::kUnavailable, "cannot connect to " + to_string(tracker) + ": " + zmq_strerror(zmq_errno()));
  zmq_pollitem_t item{socket.get(), 0, ZMQ_POLLIN, 0};
  ZmqMessage answer;
  if (zmq_poll(&item, 1, kPatienceMs) != 1 || zmq_msg_recv(&answer.message, socket.get(), ZMQ_DONTWAIT) < 0) {
    return Status(Code::kTimeout,
                  "the tracker at " + to_string(tracker) +
                      " has not answered within 5 s: look whether it runs there, and whether the secret "
                      "is one of its own");
  }
  return decode_envelope({static_cast<const std::byte*>(zmq_msg_data(&answer.message)), zmq_msg_size(&answer.message)},
                         Side::kTracker);
}

Result<std::optional<storage::JobCredentials>> credentials(const std::string& job) {
  const bool open =
      FLAGS_insecure_no_auth || (FLAGS_secret_file.empty() && given("", "WARREN_INSECURE_NO_AUTH") == "1");
  if (open) return std::optional<storage::JobCredentials>();
  const std::string file = given(FLAGS_secret_file, "WARREN_SECRET_FILE");
  if (file.empty()) {
    return Status(Code::kInvalidArgument,
                  "give --secret_file, the file of the job's secret or of the tracker's (or set WARREN_SECRET_FILE)");
  }
  const auto secret = storage::Secret::load(file);
  if (!secret.ok()) return secret.status();
  auto keys = secret.value().for_job(job);
  if (!keys.ok()) return keys.status();
  return std::optional(std::move(keys).value());
}

int forget(const std::vector<std::string>&) {
  // Not a job that happens to be in the environment: what is forgotten is named.
  if (FLAGS_job.empty()) return usage_error(kForgetCommand, "give --job, the name of the job");
  if (const Status s = validate_name("job", FLAGS_job, limits::kMaxJobNameBytes); !s.ok()) {
    return usage_error(kForgetCommand, s.describe());
  }
  const std::string where = given(FLAGS_tracker, "WARREN_TRACKER");
  if (where.empty()) return usage_error(kForgetCommand, "give --tracker, HOST:PORT (or set WARREN_TRACKER)");
  const auto tracker = worker::parse_host_port("--tracker", where, worker::kDefaultTrackerPort);
  if (!tracker.ok()) return usage_error(kForgetCommand, tracker.status().describe());
  auto keys = credentials(FLAGS_job);
  if (!keys.ok() && keys.status().code() == Code::kInvalidArgument) {
    return usage_error(kForgetCommand, keys.status().describe());
  }
  const std::string what = "cannot forget job " + FLAGS_job;
  if (!keys.ok()) return failure(keys.status().because_of_this(what).describe());
  if (sodium_init() < 0) return failure("libsodium does not start");
  wire::Envelope question;
  question.set_protocol(kProtocolVersion);
  question.set_job(FLAGS_job);
  std::uint64_t self = 0;
  while (self == 0) randombytes_buf(&self, sizeof self);
  question.set_sender(self);
  question.mutable_forget()->set_force(FLAGS_force);
  const auto answer = ask(tracker.value(), keys.value(), question);
  if (!answer.ok()) return failure(answer.status().because_of_this(what).describe());
  if (answer.value().has_forgotten()) {
    std::printf("job %s is forgotten: its name is free, and the tracker's journal holds nothing of it.\n",
                FLAGS_job.c_str());
    return kExitOk;
  }
  return failure(
      what + ": " +
      (answer.value().has_refused() ? answer.value().refused().reason() : "the tracker answers something else"));
}

}  // namespace

const Command kForgetCommand = {
    .name = "forget",
    .summary = "frees the name of a job that is not needed any more",
    .usage = "--job=NAME [--tracker=HOST:PORT] [--secret_file=FILE | --insecure_no_auth] [--force]",
    .text =
        "For a job that cannot go on, or is not to: the tracker removes what its journal holds of it, and the next "
        "worker that joins under this name begins a new job. It needs the job's secret or the tracker's. A job whose "
        "workers live is refused, unless --force is given: then they are told, and their calls fail. What workers have "
        "on their disks (data_dir, a mirror of checkpoints) stays there, and is not used by the new job: it puts aside "
        "what it finds in a data_dir, and says where.",
    .flags = {"job", "tracker", "secret_file", "insecure_no_auth", "force"},
    .run = forget,
};

}  // namespace warren::cli
