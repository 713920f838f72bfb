// A life's way to what is logged: the host's log, a reader of it, and the replayer with its clock and its sends. The
// same object serves workers and the simulator.
//
// Threads: one at a time, the owner of the data path.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "recovery/machine.h"
#include "storage/host_log.h"
#include "worker/replay/replayer.h"

namespace warren::worker {

class Recall {
 public:
  using Clock = std::function<TimeMs()>;
  using SendRequest = std::function<void(Replayer::Send)>;

  // `reader`: what the own host holds; of the log alone, or of a disk behind it.
  Recall(HostLog& log, std::unique_ptr<HostLogReader> reader, Clock clock, SendRequest send)
      : log_(log), reader_(std::move(reader)), replayer_(*reader_), clock_(std::move(clock)), send_(std::move(send)) {}
  Recall(HostLog& log, Clock clock, SendRequest send) : Recall(log, log.reader(), std::move(clock), std::move(send)) {}
  // A final may be seen only once it is on disk: what publishes waits for that.
  void publish_waits_for(std::function<void()> durable) { durable_ = std::move(durable); }
  [[nodiscard]] Status publish(const RecordKey& key, const RecordInfo& info, std::uint64_t first_byte,
                               std::span<const std::byte> payload) {
    const Status status = log_.publish(key, info, first_byte, payload);
    if (status.ok() && durable_) durable_();
    return status;
  }
  Recall(const Recall&) = delete;
  Recall& operator=(const Recall&) = delete;

  [[nodiscard]] HostLog& log() { return log_; }
  [[nodiscard]] HostLogReader& reader() { return *reader_; }
  [[nodiscard]] const Replayer& replayer() const { return replayer_; }

  void install(const Replayer::Plan& plan) {
    std::vector<Replayer::Send> out;
    replayer_.install(plan, clock_(), out);
    send(out);
  }
  void suspend() { replayer_.suspend(); }
  [[nodiscard]] std::uint64_t fetch(Replayer::Want want) {
    std::vector<Replayer::Send> out;
    const std::uint64_t id = replayer_.want(std::move(want), clock_(), out);
    send(out);
    return id;
  }
  // Ends a want; returns what was written to its buffer.
  Ranges cancel(std::uint64_t id) { return replayer_.cancel(id); }
  void on_reply(Rank from, const wire::FetchReply& reply) {
    std::vector<Replayer::Send> out;
    replayer_.on_reply(from, reply, clock_(), out);
    send(out);
  }
  // Its payloads apart, one after the other.
  void on_reply(Rank from, const wire::FetchReply& reply, std::span<const std::byte> payloads) {
    std::vector<Replayer::Send> out;
    replayer_.on_reply(from, reply, payloads, clock_(), out);
    send(out);
  }
  void on_tick() {
    std::vector<Replayer::Send> out;
    replayer_.on_tick(clock_(), out);
    send(out);
  }
  [[nodiscard]] std::optional<TimeMs> next_deadline() const { return replayer_.next_deadline(); }
  [[nodiscard]] std::vector<Replayer::Done> take_done() { return replayer_.take_done(); }
  [[nodiscard]] std::vector<std::string> take_warnings() { return replayer_.take_warnings(); }

 private:
  void send(std::vector<Replayer::Send>& out) {
    for (Replayer::Send& s : out) send_(std::move(s));
  }

  HostLog& log_;
  std::unique_ptr<HostLogReader> reader_;
  Replayer replayer_;
  Clock clock_;
  SendRequest send_;
  std::function<void()> durable_;
};

}  // namespace warren::worker
