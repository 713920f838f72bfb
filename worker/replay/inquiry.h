// Asks the other ranks of the job which round comes next. A process that is new in its version may meet a call that the
// others make no more (a set-up round that is not named: rabit), or that they make now; the log and whoever is
// in the round can tell (docs/decisions/0010).
//
// A pure machine: a question and answers in, requests out, by way of the fetch plane. It asks a few ranks at a time, in
// turn, more and more seldom, until one can tell or none ever will. What came in an older generation does not count:
// who waits for whom may be different now. Every wait has a deadline.
//
// Threads: one at a time, the owner of the data path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/wire/fetch_codec.h"
#include "worker/replay/replayer.h"

namespace warren::worker {

class Inquiry {
 public:
  // What is known of a round. kLater is never the last word.
  struct Answer {
    RoundWord word = RoundWord::kLater;
    Fingerprint round;  // kRound
  };

  // A new generation: what was asked is asked again.
  void install(const Replayer::Plan& plan, TimeMs now, std::vector<Replayer::Send>& out);
  void suspend();

  // One question at a time. `sites`: from where ranks would call that round.
  void ask(const RoundId& round, std::vector<std::uint64_t> sites, TimeMs now, std::vector<Replayer::Send>& out);
  void cancel() { round_.reset(); }
  // A validated reply with a word.
  void on_reply(Rank from, const wire::FetchReply& reply);
  void on_tick(TimeMs now, std::vector<Replayer::Send>& out);
  [[nodiscard]] std::optional<TimeMs> next_deadline() const;

  // The last word: kRound; kOver; kAsks: all other ranks ask the same for the same call, in this generation; or kGone:
  // some are past it, or ask for another call, and nobody knows which it was, or will be.
  [[nodiscard]] std::optional<Answer> answer() const;
  // "ranks 1, 2", who is asked; for people.
  [[nodiscard]] std::string describe() const;

 private:
  struct Peer {
    Rank rank;
    Incarnation life;
    RoundWord word = RoundWord::kLater;  // kAsks, kOther, kGone: in this generation it says nothing else
  };
  void begin(TimeMs now, std::vector<Replayer::Send>& out);
  void send(TimeMs now, std::vector<Replayer::Send>& out);

  bool installed_ = false;
  Generation generation_;
  Incarnation life_;
  std::int64_t most_pause_ms_ = 1;
  std::vector<Peer> peers_;  // the others; those whose lives are older first
  std::optional<RoundId> round_;
  std::vector<std::uint64_t> sites_;
  std::optional<Answer> answer_;
  std::size_t next_peer_ = 0;
  std::uint64_t last_id_ = 0, first_id_ = 0;  // first_id_: of this question in this generation
  std::int64_t pause_ms_ = 0;
  TimeMs next_;
};

}  // namespace warren::worker
