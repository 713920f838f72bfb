// `warren tracker`: the tracker as a service in the foreground.
#include "tracker/tracker.h"

#include <gflags/gflags.h>
#include <glog/logging.h>
#include <signal.h>

#include <cstdio>
#include <memory>

#include "cli/table.h"
#include "cli/values.h"
#include "launcher/launcher.h"
#include "storage/open_files.h"
#include "storage/rocks_journal.h"
#include "worker/settings/settings.h"
#include "worker/system/netinfo.h"

DEFINE_string(bind, "0.0.0.0", "the numeric address where workers connect; :: for all interfaces, IPv6 too");
DEFINE_int32(port, warren::worker::kDefaultTrackerPort, "the port where workers connect; 0: any free one");
DEFINE_string(advertise, "", "the HOST or HOST:PORT that workers are told in the log; default: this machine's address");
DEFINE_string(http_bind, "127.0.0.1", "the numeric address of the status page and the metrics, which have no password");
DEFINE_int32(http_port, warren::worker::kDefaultTrackerPort + 1,
             "the port of the status page and the metrics; 0: any free one, -1: none");
DEFINE_bool(log_json, false, "one JSON object a line on standard error instead of text for people");
DEFINE_string(log_level, "info",
              "the least severity that is logged: debug, info, warning or error; debug adds a line for each committed "
              "checkpoint");
DECLARE_string(data_dir);
DECLARE_string(secret_file);
DECLARE_bool(insecure_no_auth);

namespace warren::cli {
namespace {

// What stops a service, but for what it was started to ignore; blocked in every thread, so that they wait until
// somebody takes them.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&set_);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
      if (!worker::is_ignored(signal)) sigaddset(&set_, signal);
    }
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
    signal(SIGPIPE, SIG_IGN);  // who reads the log may go away
  }
  [[nodiscard]] int wait() const {
    int signal = 0;
    while (sigwait(&set_, &signal) != 0) {
    }
    return signal;
  }

 private:
  sigset_t set_;
};

void say(const tracker::EventSink& sink, const char* name, const std::string& text,
         std::vector<std::pair<std::string, std::string>> fields = {}) {
  sink("", {.severity = Severity::kInfo, .name = name, .text = text, .fields = std::move(fields)});
}

// What to write into WARREN_TRACKER on other machines.
Result<std::string> advertised(std::uint16_t port) {
  if (!FLAGS_advertise.empty()) {
    auto given = worker::parse_host_port("--advertise", FLAGS_advertise, port);
    if (!given.ok()) return given.status();
    return to_string(given.value());
  }
  const auto address = worker::choose_data_addresses(FLAGS_bind, "", "192.0.2.1", port);
  if (address.ok()) return to_string(worker::HostPort{address.value().advertise, port});
  // A machine without a route to anywhere has addresses all the same.
  const auto interfaces = worker::list_interfaces();
  if (!interfaces.ok()) return interfaces.status();
  return to_string(worker::HostPort{worker::own_address(interfaces.value(), FLAGS_bind), port});
}

Result<tracker::TrackerOptions> options_from_flags() {
  tracker::TrackerOptions options;
  const auto port = port_of("--port", FLAGS_port, 0);
  if (!port.ok()) return port.status();
  if (FLAGS_http_port != -1) {
    const auto http_port = port_of("--http_port", FLAGS_http_port, 0);
    if (!http_port.ok()) return http_port.status().because_of_this("-1 turns the status page off");
  }
  options.bind_address = FLAGS_bind;
  options.port = port.value();
  options.http_address = FLAGS_http_bind;
  options.http_port = FLAGS_http_port;
  options.insecure = FLAGS_insecure_no_auth;
  if (FLAGS_insecure_no_auth == !FLAGS_secret_file.empty()) {
    return Status(
        Code::kInvalidArgument,
        "give either --secret_file, made by `warren keygen --out=FILE`, or --insecure_no_auth where nobody else "
        "can connect");
  }
  if (FLAGS_data_dir.empty()) {
    return Status(Code::kInvalidArgument, "give --data_dir, a folder on a local disk that outlives the tracker");
  }
  return options;
}

int tracker_service(const std::vector<std::string>&) {
  allow_many_connections();
  auto options = options_from_flags();
  if (!options.ok()) return usage_error(kTrackerCommand, options.status().describe());
  const auto level = tracker::parse_severity(FLAGS_log_level);
  if (!level.ok()) return usage_error(kTrackerCommand, level.status().because_of_this("--log_level").describe());
  const StopSignals stop;  // before any thread

  if (!FLAGS_secret_file.empty()) {
    auto secret = storage::Secret::load(FLAGS_secret_file);
    if (!secret.ok()) return failure(secret.status().describe());
    if (!secret.value().is_root()) {
      return failure(FLAGS_secret_file +
                     " is the secret of one job; a tracker needs one made by `warren keygen --out=FILE`");
    }
    options.value().secret = std::make_shared<const storage::Secret>(std::move(secret).value());
  }
  auto journal = storage::RocksJournal::open(FLAGS_data_dir);
  if (!journal.ok()) return failure(journal.status().describe());
  const std::string made_private = journal.value()->made_private();
  options.value().journal = std::move(journal).value();

  FLAGS_logtostderr = true;
  google::InitGoogleLogging("warren-tracker");
  const tracker::EventSink sink =
      tracker::from_level(level.value(), FLAGS_log_json ? tracker::json_line_sink(stderr) : tracker::glog_sink());
  options.value().sink = sink;
  if (!made_private.empty()) say(sink, "permissions_corrected", made_private);
  auto tracker = tracker::Tracker::start(std::move(options).value());
  if (!tracker.ok()) return failure(tracker.status().describe());

  const std::uint16_t port = tracker.value()->port();
  const auto address = advertised(port);
  if (!address.ok()) return usage_error(kTrackerCommand, address.status().describe());
  const int http_port = tracker.value()->http_port();
  const std::string page =
      http_port < 0 ? "" : to_string(worker::HostPort{FLAGS_http_bind, static_cast<std::uint16_t>(http_port)});
  say(sink, "tracker_ready",
      "tracker ready: workers take WARREN_TRACKER=" + address.value() +
          (page.empty() ? "" : "; status at http://" + page + "/"),
      {{"tracker", address.value()}, {"http", page}});
  const int signal = stop.wait();
  say(sink, "tracker_stopping", std::string("stopping on signal ") + strsignal(signal));
  tracker.value()->stop();
  return kExitOk;
}

}  // namespace

const Command kTrackerCommand = {
    .name = "tracker",
    .summary = "runs a tracker in the foreground, for many jobs",
    .usage = "--data_dir=DIR (--secret_file=FILE | --insecure_no_auth) [flags]",
    .text =
        "Serves until SIGTERM, SIGINT or SIGHUP, but for those that it was started to ignore (nohup). Started again "
        "with the same --data_dir it takes up its jobs where they were. It logs to standard error. The address that it "
        "listens on (--bind) and the one that workers are told (--advertise) are separate, for machines behind address "
        "translation.",
    .flags = {"data_dir", "secret_file", "insecure_no_auth", "bind", "port", "advertise", "http_bind", "http_port",
              "log_json", "log_level"},
    .run = tracker_service,
};

}  // namespace warren::cli
