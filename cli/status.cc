// `warren status`: what a tracker knows of its jobs.
#include <gflags/gflags.h>
#include <httplib.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <string_view>

#include "cli/status_view.h"
#include "cli/table.h"
#include "launcher/launcher.h"
#include "worker/settings/settings.h"
#include "worker/system/netinfo.h"
#include "worker/system/text.h"

DEFINE_string(http, "", "HOST:PORT of the tracker's status page; default: WARREN_HTTP, else 127.0.0.1:9371");
DEFINE_bool(why, false, "who waits for whom, who is to blame and by what evidence, and what comes next");
DEFINE_bool(watch, false, "show it again every two seconds, until interrupted");
DECLARE_bool(json);
DECLARE_string(job);

namespace warren::cli {
namespace {

constexpr time_t kWatchIntervalS = 2;

// "http://HOST:PORT/", as the tracker's log and the first line of `warren run` have it, is HOST:PORT.
std::string_view without_scheme(std::string_view page) {
  constexpr std::string_view kScheme = "http://";
  if (!page.starts_with(kScheme)) return page;
  page.remove_prefix(kScheme.size());
  if (page.ends_with('/')) page.remove_suffix(1);
  return page;
}

Result<worker::HostPort> page_address() {
  const std::uint16_t port = worker::kDefaultTrackerPort + 1;
  if (!FLAGS_http.empty()) return worker::parse_host_port("--http", without_scheme(FLAGS_http), port);
  if (const auto variable = worker::process_environment()("WARREN_HTTP"); variable && !variable->empty()) {
    return worker::parse_host_port("WARREN_HTTP", without_scheme(*variable), port);
  }
  return worker::HostPort{"127.0.0.1", port};
}

// The library's words are names of its own.
std::string why_none(httplib::Error error) {
  switch (error) {
    case httplib::Error::Connection:
      return "no connection: the host is unknown or out of reach, or nothing listens there";
    case httplib::Error::ConnectionTimeout: return "no connection in time";
    case httplib::Error::Read: return "the connection gave no answer";
    default: return httplib::to_string(error);
  }
}

Result<std::string> fetch(const worker::HostPort& page) {
  constexpr time_t kPatienceS = 5;
  httplib::Client client(page.host, page.port);
  client.set_connection_timeout(kPatienceS);
  client.set_read_timeout(kPatienceS);
  const auto answer = client.Get("/status");
  if (!answer) {
    return Status(Code::kUnavailable, "no tracker answers at http://" + to_string(page) + "/status (" +
                                          why_none(answer.error()) +
                                          "); name its status page by --http, as its log or the first line of `warren "
                                          "run` tells it");
  }
  if (answer->status != 200) {
    return Status(Code::kUnavailable, "http://" + to_string(page) + "/status answered with code " +
                                          std::to_string(answer->status) + ": " + worker::in_quotes(answer->body));
  }
  return answer->body;
}

// Whether it went well; says why not.
bool show(const worker::HostPort& page, bool clear) {
  auto body = fetch(page);
  if (body.ok() && !FLAGS_json) body = status_table(body.value(), FLAGS_job, FLAGS_why);
  if (body.ok() && FLAGS_json && !FLAGS_job.empty()) body = status_of_job(body.value(), FLAGS_job);
  if (!body.ok()) {
    failure(body.status().describe());
    return false;
  }
  std::printf("%s%s%s", clear ? "\x1b[H\x1b[2J" : "", body.value().c_str(), FLAGS_json ? "\n" : "");
  std::fflush(stdout);
  return true;
}

int status(const std::vector<std::string>&) {
  const auto page = page_address();
  if (!page.ok()) return usage_error(kStatusCommand, page.status().describe());
  if (FLAGS_json && FLAGS_why) {
    return usage_error(kStatusCommand, "--json shows all that the tracker says, verdicts too; leave --why out");
  }
  if (!FLAGS_watch) return show(page.value(), false) ? kExitOk : kExitFailed;
  sigset_t ends;
  sigemptyset(&ends);
  for (const int signal : {SIGINT, SIGTERM}) {
    if (!worker::is_ignored(signal)) sigaddset(&ends, signal);
  }
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  const timespec interval{.tv_sec = kWatchIntervalS, .tv_nsec = 0};
  do {
    // A tracker that is being restarted comes back: the watch goes on.
    show(page.value(), isatty(STDOUT_FILENO) == 1);
  } while (sigtimedwait(&ends, nullptr, &interval) < 0);
  return kExitOk;
}

}  // namespace

const Command kStatusCommand = {
    .name = "status",
    .summary = "shows a tracker's jobs: who is there, and who waits for whom",
    .usage = "[--http=HOST:PORT] [--job=NAME] [--why | --json] [--watch]",
    .text =
        "Reads the tracker's status page. For each job: its state and generation, and for each rank its worker, "
        "whether it is alive, how many rounds it has finished, and the round that it is in, with the ranks that it "
        "waits "
        "for. With --why, for each round where the chain of waits ends, which rank or link is slow, hung or cut off "
        "and by what "
        "evidence, and what will be done about it.",
    .flags = {"http", "job", "why", "json", "watch"},
    .run = status,
};

}  // namespace warren::cli
