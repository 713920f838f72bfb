// The tracker as a service: many jobs behind one ZeroMQ port, a journal, and an HTTP page. Runs on threads of its own,
// so that the program `warren tracker`, `warren run` and tests embed it alike.
//
//   worker ── CURVE ──► ROUTER ──► loop thread: JobTable (one machine a job) ──► journal, then answers
//   browser, Prometheus ──► HTTP threads ──► a snapshot that the loop thread makes on request
//
// A connection is believed to be of the job whose worker key it proved to have; who of that job it is, the incarnation
// says.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "storage/journal.h"
#include "storage/secret.h"
#include "tracker/events.h"
#include "tracker/status.h"

namespace warren::tracker {

inline constexpr std::uint16_t kDefaultPort = 9370;
inline constexpr int kDefaultHttpPort = 9371;

struct TrackerOptions {
  // Where workers connect: a numeric address, "0.0.0.0" for all IPv4 and "::" for all interfaces. Port 0: any free one.
  std::string bind_address = "0.0.0.0";
  std::uint16_t port = kDefaultPort;
  // Where the page, /status, /metrics and /healthz are. It has no authentication. 0: any free port, -1: none.
  std::string http_address = "127.0.0.1";
  int http_port = kDefaultHttpPort;
  // A root secret, unless `insecure`: then nobody is authenticated and there must be none.
  std::shared_ptr<const storage::Secret> secret;
  bool insecure = false;
  std::unique_ptr<storage::Journal> journal;
  // Called from the loop thread, and from start() and stop(): never from two threads at once. May be empty.
  EventSink sink;
};

class Tracker {
 public:
  // Takes up the jobs of the journal, binds and serves. kInvalidArgument: the options contradict each other, or an
  // address is not one. kUnavailable: a port is in use, an address is not this machine's. kCorrupt: the journal cannot
  // be read.
  static Result<std::unique_ptr<Tracker>> start(TrackerOptions options);

  // Ends within two seconds and waits for it. Messages that have not gone out by then are lost, which workers survive.
  // Must not be called from the sink. May be called twice.
  void stop();
  ~Tracker();
  Tracker(const Tracker&) = delete;
  Tracker& operator=(const Tracker&) = delete;

  // The ports in use. http_port is -1 if there is none.
  [[nodiscard]] std::uint16_t port() const;
  [[nodiscard]] int http_port() const;

  // What /status shows, not older than 100 ms; waits for the loop thread up to 2 s (kTimeout). From any thread but the
  // sink's.
  [[nodiscard]] Result<std::shared_ptr<const Snapshot>> snapshot();

 private:
  class Impl;
  explicit Tracker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace warren::tracker
