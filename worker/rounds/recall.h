// A life's way to what is logged: the host's log, a reader of it, and the replayer with its clock and its sends. The
// same object serves workers and the simulator.
//
// Threads: one at a time, the owner of the data path.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "recovery/base/machine.h"
#include "storage/host_log.h"
#include "worker/replay/inquiry.h"
#include "worker/replay/replayer.h"

namespace warren::worker {

// Where a final has to be before anybody sees it, beside the host's memory: the disk of mode `sync`. Nobody waits here;
// who has asked goes on with something else, is woken, and looks again.
class Durable {
 public:
  virtual ~Durable() = default;
  // All that this life has published is to get there: a number, which never falls.
  virtual std::uint64_t ask() = 0;
  // What was asked for under this number and lower ones need not be waited for any more.
  [[nodiscard]] virtual std::uint64_t reached() = 0;
  // When reached() may rise by itself.
  [[nodiscard]] virtual std::optional<TimeMs> next_deadline() const = 0;
};

class Recall {
 public:
  using Clock = std::function<TimeMs()>;
  using SendRequest = std::function<void(Replayer::Send)>;

  // `reader`: what the own host holds; of the log alone, or of a disk behind it.
  Recall(HostLog& log, std::unique_ptr<HostLogReader> reader, Clock clock, SendRequest send)
      : log_(log), reader_(std::move(reader)), replayer_(*reader_), clock_(std::move(clock)), send_(std::move(send)) {}
  Recall(HostLog& log, Clock clock, SendRequest send) : Recall(log, log.reader(), std::move(clock), std::move(send)) {}
  // What is published may be seen once it is there. Before the first publish(); `durable` outlives this.
  void seen_once_in(Durable& durable) { durable_ = &durable; }
  [[nodiscard]] Status publish(const RecordKey& key, const RecordInfo& info, std::uint64_t first_byte,
                               std::span<const std::byte> payload, LogPlace* place = nullptr) {
    const Status status = log_.publish(key, info, first_byte, payload, place);
    if (status.ok() && durable_ != nullptr) asked_ = durable_->ask();
    return status;
  }
  // As in HostLog.
  [[nodiscard]] std::span<std::byte> room(const RecordKey& key, std::size_t bytes) { return log_.room(key, bytes); }
  void publish_room(const RecordKey& key, const RecordInfo& info, std::uint64_t first_byte, std::size_t bytes,
                    LogPlace* place) {
    log_.publish_room(key, info, first_byte, bytes, place);
    if (durable_ != nullptr) asked_ = durable_->ask();
  }
  // What is published may be seen at once.
  [[nodiscard]] bool shows_at_once() const { return durable_ == nullptr; }
  // A number for what was published last; it may be seen when may_be_seen() says so, as all before it.
  [[nodiscard]] std::uint64_t newest() const { return asked_; }
  [[nodiscard]] bool may_be_seen(std::uint64_t number) const { return number == 0 || durable_->reached() >= number; }
  // Of what a replay should log here: what there is room for. Once half of a log that cannot spill is in use, what lies
  // in dead lives' segments stays there, for the host's other ranks to log.
  [[nodiscard]] Ranges room_for(const RecordKey& key, const Ranges& again) {
    if (log_.spills() || log_.bytes_held() <= log_.budget_bytes() / 2) return again;
    return again.minus(reader_->held(key));
  }
  Recall(const Recall&) = delete;
  Recall& operator=(const Recall&) = delete;

  [[nodiscard]] HostLog& log() { return log_; }
  [[nodiscard]] HostLogReader& reader() { return *reader_; }
  [[nodiscard]] const Replayer& replayer() const { return replayer_; }

  void install(const Replayer::Plan& plan) {
    std::vector<Replayer::Send> out;
    replayer_.install(plan, clock_(), out);
    inquiry_.install(plan, clock_(), out);
    send(out);
  }
  // Of a spare: there is a plan whose members it asks for checkpoints.
  void follow(const Replayer::Plan& plan) {
    std::vector<Replayer::Send> out;
    replayer_.install(plan, clock_(), out);
    send(out);
  }
  void suspend() {
    replayer_.suspend();
    inquiry_.suspend();
  }
  // Which round this one is, for a call that ranks make from these sites; inquiry().answer() says it.
  void ask(const RoundId& round, const std::vector<std::uint64_t>& sites) {
    std::vector<Replayer::Send> out;
    inquiry_.ask(round, sites, clock_(), out);
    send(out);
  }
  void end_question() { inquiry_.cancel(); }
  [[nodiscard]] const Inquiry& inquiry() const { return inquiry_; }
  [[nodiscard]] std::uint64_t fetch(Replayer::Want want) {
    std::vector<Replayer::Send> out;
    const std::uint64_t id = replayer_.want(std::move(want), clock_(), out);
    send(out);
    return id;
  }
  // Ends a want; returns what was written to its buffer.
  Ranges cancel(std::uint64_t id) { return replayer_.cancel(id); }
  void on_reply(Rank from, const wire::FetchReply& reply) {
    if (reply.word() != 0) return inquiry_.on_reply(from, reply);
    std::vector<Replayer::Send> out;
    replayer_.on_reply(from, reply, clock_(), out);
    send(out);
  }
  // Its payloads apart, one after the other.
  void on_reply(Rank from, const wire::FetchReply& reply, std::span<const std::byte> payloads) {
    if (reply.word() != 0) return inquiry_.on_reply(from, reply);
    std::vector<Replayer::Send> out;
    replayer_.on_reply(from, reply, payloads, clock_(), out);
    send(out);
  }
  void on_tick() {
    std::vector<Replayer::Send> out;
    replayer_.on_tick(clock_(), out);
    inquiry_.on_tick(clock_(), out);
    send(out);
    if (durable_ != nullptr) (void)durable_->reached();
  }
  [[nodiscard]] std::optional<TimeMs> next_deadline() const {
    const auto earlier = [](std::optional<TimeMs> a, std::optional<TimeMs> b) { return a && (!b || *a < *b) ? a : b; };
    const auto next = earlier(replayer_.next_deadline(), inquiry_.next_deadline());
    return durable_ == nullptr ? next : earlier(next, durable_->next_deadline());
  }
  [[nodiscard]] bool has_done() const { return replayer_.has_done(); }
  [[nodiscard]] std::vector<Replayer::Done> take_done() { return replayer_.take_done(); }
  [[nodiscard]] std::vector<std::string> take_warnings() { return replayer_.take_warnings(); }

 private:
  void send(std::vector<Replayer::Send>& out) {
    for (Replayer::Send& s : out) send_(std::move(s));
  }

  HostLog& log_;
  std::unique_ptr<HostLogReader> reader_;
  Replayer replayer_;
  Inquiry inquiry_;
  Clock clock_;
  SendRequest send_;
  Durable* durable_ = nullptr;  // null: memory will do
  std::uint64_t asked_ = 0;
};

}  // namespace warren::worker
