#include "tests/recovery/script.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <span>

namespace warren::test {
namespace {

std::string join_words(const auto& items) {
  std::string text;
  for (const auto& item : items) {
    text += text.empty() ? "" : ",";
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(item)>>) {
      text += std::to_string(item);
    } else {
      text += item;
    }
  }
  return text;
}

// Counters of all machines of this program.
class Transitions : public ::testing::Environment {
 public:
  void add(std::string_view machine, std::span<const char* const> names, std::span<const std::uint64_t> counts) {
    ASSERT_EQ(names.size(), counts.size());
    for (std::size_t i = 0; i < names.size(); ++i) counts_[std::string(machine) + "." + names[i]] += counts[i];
  }
  void TearDown() override {
    if (::testing::GTEST_FLAG(filter) != "*") return;  // a part of the tests cannot hit everything
    for (const auto& [name, count] : counts_) {
      if (count == 0) ADD_FAILURE() << "no test takes the transition " << name;
    }
  }

 private:
  std::map<std::string, std::uint64_t> counts_;
};
Transitions* const g_transitions = static_cast<Transitions*>(::testing::AddGlobalTestEnvironment(new Transitions));

}  // namespace

void record_transitions(std::string_view machine, std::span<const char* const> names,
                        std::span<const std::uint64_t> counts) {
  g_transitions->add(machine, names, counts);
}

wire::JobSettings settings(std::uint32_t world_size, std::uint32_t replicas) {
  wire::JobSettings s;
  s.set_world_size(world_size);
  s.set_round_timeout_ms(5000);
  s.set_algorithm("auto");
  s.set_chunk_bytes(262144);
  s.set_streams(1);
  s.set_checksums(true);
  s.set_check_call_sites(true);
  s.set_replicas(replicas);
  return s;
}

wire::Join join(const std::string& worker, const std::string& host, std::uint32_t world_size, std::uint32_t replicas) {
  wire::Join j;
  j.set_worker_id(worker);
  j.set_host_id(host);
  j.set_domain_id(host);
  wire::Endpoint& e = *j.add_endpoints();
  e.set_address("10.0.0.1");
  e.set_port(5000);
  *j.mutable_settings() = settings(world_size, replicas);
  if (replicas != 0) j.set_fetch_port(6000);
  j.set_software("0.1.0");
  return j;
}

PlannerOutput plan_simply(std::span<const PlannerInput> workers) {
  PlannerOutput out;
  const std::size_t n = workers.size();
  std::vector<bool> taken(n, false);
  for (const PlannerInput& w : workers) {
    if (w.rank) taken[static_cast<std::size_t>(w.rank->value)] = true;
  }
  std::vector<std::string> host_by_rank(n);
  for (const PlannerInput& w : workers) {
    std::size_t rank = 0;
    if (w.rank) {
      rank = static_cast<std::size_t>(w.rank->value);
    } else {
      while (taken[rank]) ++rank;
      taken[rank] = true;
    }
    out.rank.emplace_back(static_cast<std::int32_t>(rank));
    host_by_rank[rank] = w.host_id;
  }
  std::map<std::string, std::uint32_t> seen;
  for (std::size_t rank = 0; rank < n; ++rank) {
    out.local_rank.push_back(seen[host_by_rank[rank]]++);
    out.local_size.push_back(
        static_cast<std::uint32_t>(std::count(host_by_rank.begin(), host_by_rank.end(), host_by_rank[rank])));
  }
  return out;
}

wire::Plan plan_of(std::uint64_t generation, const std::vector<std::pair<std::string, std::uint64_t>>& workers) {
  wire::Plan p;
  const auto n = static_cast<std::uint32_t>(workers.size());
  p.set_generation(generation);
  p.set_run(workers.front().second);
  *p.mutable_settings() = settings(n);
  for (std::uint32_t rank = 0; rank < n; ++rank) {
    wire::Member& m = *p.add_members();
    m.set_rank(rank);
    m.set_incarnation(workers[rank].second);
    m.set_worker_id(workers[rank].first);
    m.set_host_id("h");
    m.set_domain_id("h");
    *m.mutable_endpoints() = join("w", "h", n).endpoints();
    m.set_local_rank(rank);
    m.set_local_size(n);
  }
  return p;
}

wire::CurrentRound round(std::uint64_t sequence, std::uint64_t count, std::vector<std::uint32_t> waiting_for,
                         std::uint64_t waited_ms) {
  wire::CurrentRound r;
  r.set_sequence(sequence);
  r.set_collective(1);
  r.set_type(9);
  r.set_op(1);
  r.set_root(-1);
  r.set_count(count);
  r.mutable_waiting_for()->Add(waiting_for.begin(), waiting_for.end());
  r.set_waited_ms(waited_ms);
  return r;
}

wire::Position position(std::uint64_t version, std::uint64_t rounds, bool closed,
                        const std::vector<std::pair<std::uint64_t, std::uint64_t>>& final, std::uint64_t group) {
  wire::Position p;
  p.set_group(group);
  p.set_version(version);
  p.set_rounds(rounds);
  p.set_closed(closed);
  for (const auto& [begin, end] : final) {
    p.add_final()->set_begin(begin);
    p.mutable_final(p.final_size() - 1)->set_end(end);
  }
  return p;
}

wire::Position in_flight(std::uint64_t version, std::uint64_t rounds, std::uint64_t begin, std::uint64_t end,
                         std::uint64_t total_bytes) {
  wire::Position p = position(version, rounds, false, {{begin, end}});
  p.set_total_bytes(total_bytes);
  return p;
}

wire::Setup setup(std::uint64_t group, std::uint64_t n, bool done,
                  const std::vector<std::pair<std::uint64_t, std::uint64_t>>& final, std::uint32_t timeline) {
  wire::Setup s;
  s.set_group(group);
  s.set_name(kSetupBit | n);
  s.set_timeline(timeline);
  s.set_done(done);
  for (const auto& [begin, end] : final) {
    s.add_final()->set_begin(begin);
    s.mutable_final(s.final_size() - 1)->set_end(end);
  }
  return s;
}

std::string render(const wire::Setup& s) {
  std::string text = (s.group() == 0 ? "" : "g" + std::to_string(s.group()) + ":") + "s" +
                     std::to_string(s.name() & ~kSetupBit) +
                     (s.timeline() == 0 ? "" : "@" + std::to_string(s.timeline())) + (s.done() ? "|" : "");
  for (const wire::ByteRange& r : s.final())
    text += "[" + std::to_string(r.begin()) + "," + std::to_string(r.end()) + ")";
  return text;
}

std::string render(const wire::Position& p) {
  std::string text = (p.group() == 0 ? "" : "g" + std::to_string(p.group()) + ":") + std::to_string(p.version()) + "." +
                     std::to_string(p.rounds()) + (p.closed() ? "|" : "");
  for (const wire::ByteRange& r : p.final())
    text += "[" + std::to_string(r.begin()) + "," + std::to_string(r.end()) + ")";
  return text;
}

wire::Envelope from_worker(std::uint64_t life) {
  wire::Envelope e;
  e.set_protocol(kProtocolVersion);
  e.set_job("j");
  e.set_sender(life);
  return e;
}

wire::Envelope from_tracker(std::uint64_t to_life) {
  wire::Envelope e = from_worker(kTracker);
  e.set_receiver(to_life);
  e.set_term(1);
  return e;
}

std::string render_members(const wire::Plan& plan) {
  std::string text;
  for (const wire::Member& m : plan.members()) {
    text += (text.empty() ? "" : " ") + m.worker_id() + "=" + std::to_string(m.incarnation());
  }
  return text;
}

std::string render(const wire::Envelope& e) {
  const auto n = [](auto v) { return std::to_string(v); };
  switch (e.body_case()) {
    case wire::Envelope::kJoin:
      return "Join " + e.join().worker_id() + (e.join().spare() ? " as a spare" : "") +
             (e.join().has_followed() ? " with " + n(e.join().followed().version()) + " of generation " +
                                            n(e.join().followed().generation())
                                      : "") +
             (e.join().called() == 0 ? "" : ", called in generation " + n(e.join().called()));
    case wire::Envelope::kHeartbeat:
      return "Heartbeat " + n(e.heartbeat().beat()) + " generation " + n(e.heartbeat().generation()) + " rounds " +
             n(e.heartbeat().rounds_finished()) +
             (e.heartbeat().gpu().inputs_lent() == 0
                  ? ""
                  : " lent " + n(e.heartbeat().gpu().inputs_lent()) + " to " + n(e.heartbeat().gpu().readers())) +
             (e.heartbeat().has_draining() ? " draining " + n(e.heartbeat().draining().left_ms()) + " (" +
                                                 e.heartbeat().draining().reason() + ")"
                                           : "");
    case wire::Envelope::kLinkBroken:
      return "LinkBroken generation " + n(e.link_broken().generation()) + " peer " + n(e.link_broken().peer()) +
             " life " + n(e.link_broken().peer_incarnation()) + (e.link_broken().gone() ? " gone: " : ": ") +
             e.link_broken().evidence();
    case wire::Envelope::kRoundFailed:
      return "RoundFailed generation " + n(e.round_failed().generation()) + " code " + n(e.round_failed().code()) +
             ": " + e.round_failed().reason();
    case wire::Envelope::kStopped: return "Stopped generation " + n(e.stopped().generation());
    case wire::Envelope::kLeave: {
      std::string text = "Leave generation " + n(e.leave().generation()) + (e.leave().finalize() ? " finalize" : "") +
                         (e.leave().preempted() ? " preempted" : "");
      if (e.leave().version() != 0) text += " version " + n(e.leave().version());
      if (e.leave().serves_ms() != 0) text += " serves " + n(e.leave().serves_ms());
      for (const wire::Position& p : e.leave().logged().positions()) text += " " + render(p);
      for (const wire::Setup& s : e.leave().setups()) text += " " + render(s);
      return text + (e.leave().reason().empty() ? "" : ": " + e.leave().reason());
    }
    case wire::Envelope::kCalled:
      return "Called generation " + n(e.called().generation()) + (e.called().stale() ? " stale" : "");
    case wire::Envelope::kWelcome:
      if (e.welcome().spare()) {
        const wire::Follow& follow = e.welcome().follow();
        return std::string("Welcome as a spare") +
               (e.welcome().called() == 0 ? "" : ", called in generation " + n(e.welcome().called())) +
               (e.welcome().has_follow()
                    ? ", follow " + n(follow.version()) + " timeline " + n(follow.timeline()) + " of generation " +
                          n(follow.generation()) + (follow.has_plan() ? ": " + render_members(follow.plan()) : "")
                    : "");
      }
      return "Welcome " + n(e.welcome().joined()) + " of " + n(e.welcome().world_size()) +
             (e.welcome().missing_size() == 0 ? "" : " missing " + join_words(e.welcome().missing()));
    case wire::Envelope::kRefused:
      return "Refused " + n(e.refused().code()) + ": " + e.refused().reason() +
             (e.refused().fenced() ? " [fenced]" : "");
    case wire::Envelope::kPlan: {
      std::string text = "Plan generation " + n(e.plan().generation());
      if (e.plan().base_generation() != 0) text += " since " + n(e.plan().base_generation());
      for (const wire::Member& m : e.plan().members()) {
        text += " " + (is_vacant(m) ? "nobody" : m.worker_id()) +
                (m.absent() ? " (absent)" : "=" + n(m.incarnation())) + (m.fresh() || m.absent() ? "" : " (as before)");
      }
      if (e.plan().timeline() != 0) text += " timeline " + n(e.plan().timeline());
      for (const wire::Position& p : e.plan().frontier()) text += " " + render(p);
      for (const wire::Setup& s : e.plan().setups()) text += " " + render(s);
      for (const wire::Kept& k : e.plan().kept()) {
        text += " " + n(k.version()) + " below " + n(k.rounds()) + " of timeline " + n(k.timeline());
      }
      for (const wire::Absence& a : e.plan().absences()) {
        text += " without " + join_words(a.ranks()) + " in timeline " + n(a.timeline());
      }
      for (const wire::Member& m : e.plan().servers()) text += " served by " + n(m.incarnation());
      if (e.plan().committed()) {
        text += " committed " + n(e.plan().committed_version()) + " in " + n(e.plan().committed_timeline());
      }
      return text;
    }
    case wire::Envelope::kInterrupt:
      return (e.interrupt().resume()     ? "Pause generation "
              : e.interrupt().ends_job() ? "End generation "
                                         : "Interrupt generation ") +
             n(e.interrupt().generation()) + " code " + n(e.interrupt().code()) +
             (e.interrupt().lost_size() == 0 ? "" : " lost " + join_words(e.interrupt().lost())) + ": " +
             e.interrupt().reason();
    case wire::Envelope::kFinished: return "Finished generation " + n(e.finished().generation());
    case wire::Envelope::kHeartbeatReply: {
      const wire::LeaveRequest& leave = e.heartbeat_reply().leave();
      return "HeartbeatReply " + n(e.heartbeat_reply().beat()) +
             (e.heartbeat_reply().has_leave() ? " leave generation " + n(leave.generation()) + " within " +
                                                    n(leave.within_ms()) + " ms: " + leave.reason()
                                              : "");
    }
    case wire::Envelope::kReport: {
      std::string text = "Report generation " + n(e.report().generation()) + " version " + n(e.report().version());
      for (const wire::Position& p : e.report().positions()) text += " " + render(p);
      for (const wire::Setup& s : e.report().setups()) text += " " + render(s);
      return text;
    }
    case wire::Envelope::kLoad: return "Load";
    case wire::Envelope::kVote: {
      std::string text = e.vote().lacks() ? "State of " : "Vote ";
      text += n(e.vote().version()) + " timeline " + n(e.vote().timeline());
      for (const wire::Setup& s : e.vote().setups()) text += " " + render(s);
      return text;
    }
    case wire::Envelope::kLogGap:
      return "LogGap generation " + n(e.log_gap().generation()) +
             (e.log_gap().has_checkpoint() ? " checkpoint " + n(e.log_gap().checkpoint().version()) + " of timeline " +
                                                 n(e.log_gap().checkpoint().timeline())
                                           : "") +
             ": " + e.log_gap().reason();
    case wire::Envelope::kKnown:
      return "Known generation " + n(e.known().generation()) + " plan " + n(e.known().plan_generation()) +
             (e.known().has_plan() ? " with it" : "") +
             (e.known().committed()
                  ? " committed " + n(e.known().committed_version()) + " in " + n(e.known().committed_timeline())
                  : "");
    case wire::Envelope::kTell: return "Tell " + n(e.tell().generation());
    case wire::Envelope::kLoaded:
      return e.loaded().committed() ? "Loaded " + n(e.loaded().version()) + " of timeline " + n(e.loaded().timeline())
                                    : "Loaded nothing";
    case wire::Envelope::kCommitted:
      return "Committed " + n(e.committed().version()) + " timeline " + n(e.committed().timeline());
    default: return "nothing";
  }
}

std::string render(const std::vector<TrackerEffect>& effects, bool logs) {
  std::string text;
  for (const TrackerEffect& effect : effects) {
    if (const auto* p = std::get_if<tracker_effect::Persist>(&effect)) {
      wire::JobRecord r;
      EXPECT_TRUE(r.ParseFromString(p->bytes));
      text += "persist generation " + std::to_string(r.generation()) +
              (r.finished()               ? " finished"
               : r.interrupt().ends_job() ? " lost"
               : r.has_interrupt()        ? (r.interrupt().resume() ? " paused" : " interrupted")
                                          : " running") +
              (r.finalized_size() == 0 ? "" : " finalized " + join_words(r.finalized())) +
              (r.timeline() == 0 ? "" : " timeline " + std::to_string(r.timeline())) +
              (r.committed() ? " committed " + std::to_string(r.committed_version()) : "") + "\n";
    } else if (std::holds_alternative<tracker_effect::Forget>(effect)) {
      text += "forget\n";
    } else if (const auto* s = std::get_if<tracker_effect::Send>(&effect)) {
      text += std::to_string(s->to.value) + " <- " + render(envelope_of(*s)) + "\n";
    } else if (const auto* d = std::get_if<tracker_effect::Drop>(&effect)) {
      text += "drop " + std::to_string(d->who.value) + "\n";
    } else if (logs) {
      const LogEvent& event = std::get<tracker_effect::Log>(effect).event;
      text += "log " + event.name + ": " + event.text + "\n";
    }
  }
  return text;
}

std::string render(const std::vector<WorkerEffect>& effects, bool logs) {
  std::string text;
  for (const WorkerEffect& effect : effects) {
    if (const auto* s = std::get_if<worker_effect::Send>(&effect)) {
      text += "send " + render(s->envelope) + "\n";
    } else if (const auto* i = std::get_if<worker_effect::Install>(&effect)) {
      text += "install generation " + std::to_string(i->plan.generation()) + "\n";
    } else if (const auto* stop = std::get_if<worker_effect::StopDataPath>(&effect)) {
      text += (stop->resume ? "pause before generation " : "stop before generation ") +
              std::to_string(stop->generation.value) + ": " + stop->why.describe() + "\n";
    } else if (const auto* loaded = std::get_if<worker_effect::Loaded>(&effect)) {
      text += "loaded " + (loaded->committed ? std::to_string(loaded->version.value) : "nothing") + "\n";
    } else if (const auto* committed = std::get_if<worker_effect::Committed>(&effect)) {
      text += "committed " + std::to_string(committed->version.value) + "\n";
    } else if (const auto* spare = std::get_if<worker_effect::Spare>(&effect)) {
      text += std::string("wait as a spare") + (spare->looked ? ", anew" : "") + "\n";
    } else if (const auto* follow = std::get_if<worker_effect::Follow>(&effect)) {
      text += "follow " + std::to_string(follow->version.value) +
              (follow->plan ? " of generation " + std::to_string(follow->plan->generation()) : "") + "\n";
    } else if (const auto* call = std::get_if<worker_effect::Called>(&effect)) {
      text += "look, in generation " + std::to_string(call->generation.value) + (call->stale ? ", stale" : "") + "\n";
    } else if (const auto* drain = std::get_if<worker_effect::Drain>(&effect)) {
      text += "drain by " + std::to_string(drain->by.value) + " (" + drain->reason + ")\n";
    } else if (const auto* f = std::get_if<worker_effect::Fail>(&effect)) {
      text +=
          (f->fenced ? "fenced " : "fail ") + std::string(to_string(f->why.code())) + ": " + f->why.describe() + "\n";
    } else if (const auto* serve = std::get_if<worker_effect::Serve>(&effect)) {
      text += "serve generation " + std::to_string(serve->plan.generation()) + "\n";
    } else if (const auto* tracker = std::get_if<worker_effect::TrackerAway>(&effect)) {
      text += tracker->away ? "tracker away\n" : "tracker heard\n";
    } else if (std::holds_alternative<worker_effect::Left>(effect)) {
      text += "left\n";
    } else if (std::holds_alternative<worker_effect::Finished>(effect)) {
      text += "finished\n";
    } else if (logs) {
      const LogEvent& event = std::get<worker_effect::Log>(effect).event;
      text += "log " + event.name + ": " + event.text + "\n";
    }
  }
  return text;
}

void TrackerScript::boot() {
  TrackerMachine::Options options;
  options.job = "j";
  options.self = Incarnation(kTracker);
  options.planner = plan_simply;
  if (most_plan_bytes_out_) options.most_plan_bytes_out = *most_plan_bytes_out_;
  auto made = TrackerMachine::make(std::move(options), disk_, TimeMs{now_});
  WARREN_CHECK(made.ok(), made.status().describe().c_str());
  machine_.emplace(std::move(made).value());
  invariants_ = {};
  invariants_.look(*machine_);
}

void TrackerScript::retire_machine() {
  record_transitions("tracker", TrackerMachine::transition_names(), machine_->transition_counts());
}

void TrackerScript::restart(bool promised) {
  retire_machine();
  boot();
  wire::JobRecord record;
  ASSERT_TRUE(record.ParseFromString(disk_));
  if (!disk_.empty()) term_ = record.term() + 1;
  const int members = record.plan().members_size();
  for (int rank = 0; promised && 2 * rank <= members && rank < members; ++rank) {
    if (is_vacant(record.plan().members(rank))) continue;
    wire::Envelope e = this->promised(record.plan().members(rank).incarnation());
    e.mutable_stopped()->set_generation(kMaxGeneration - 1);  // of no interrupt: it changes nothing else
    (void)send(std::move(e));
  }
}

wire::Envelope TrackerScript::promised(std::uint64_t life) const {
  wire::Envelope e = from_worker(life);
  e.set_receiver(kTracker);
  e.set_term(term_);
  return e;
}

std::string TrackerScript::carry_out(const std::vector<TrackerEffect>& effects) {
  invariants_.look(*machine_);
  for (const TrackerEffect& effect : effects) {
    if (const auto* p = std::get_if<tracker_effect::Persist>(&effect)) disk_ = p->bytes;
    if (std::holds_alternative<tracker_effect::Forget>(effect)) {
      disk_.clear();
      forgotten_ = true;
    }
    if (const auto* s = std::get_if<tracker_effect::Send>(&effect)) {
      EXPECT_EQ(s->envelope.receiver(), s->to.value);
      term_ = s->envelope.term();
      if (s->plan == nullptr) continue;
      const std::string bytes = encode(*s);
      const auto arrived = decode_envelope(std::as_bytes(std::span(bytes)), Side::kTracker);
      EXPECT_EQ(arrived.ok() ? arrived.value().SerializeAsString() : arrived.status().describe(),
                envelope_of(*s).SerializeAsString());
    }
  }
  transcript_ += render(effects, true);
  return render(effects, logs_);
}

std::string TrackerScript::send(wire::Envelope envelope) {
  if (envelope.has_known() && envelope.term() == 0) {  // an answer to what this tracker has asked
    envelope.set_term(term_);
    envelope.set_receiver(kTracker);
  }
  const std::string bytes = encode(envelope, Side::kWorker);
  auto decoded = decode_envelope(std::as_bytes(std::span(bytes)), Side::kWorker);
  EXPECT_TRUE(decoded.ok()) << decoded.status().describe();
  std::vector<TrackerEffect> effects;
  machine_->on_message(decoded.value(), TimeMs{now_}, effects);
  return carry_out(effects);
}

std::string TrackerScript::join(const std::string& worker, std::uint64_t life, std::uint32_t world_size,
                                const std::string& host) {
  wire::Envelope e = from_worker(life);
  *e.mutable_join() = test::join(worker, host, world_size, replicas_);
  return send(std::move(e));
}

std::string TrackerScript::beat(std::uint64_t life, std::uint64_t generation, std::vector<wire::CurrentRound> rounds) {
  wire::Envelope e = from_worker(life);
  e.mutable_heartbeat()->set_generation(generation);
  e.mutable_heartbeat()->set_beat(1);
  e.mutable_heartbeat()->set_rounds_finished(12);
  for (wire::CurrentRound& r : rounds) *e.mutable_heartbeat()->add_rounds() = std::move(r);
  return send(std::move(e));
}

std::string TrackerScript::link_broken(std::uint64_t life, std::uint64_t generation, std::uint32_t peer,
                                       std::uint64_t peer_life, const std::string& evidence) {
  wire::Envelope e = from_worker(life);
  e.mutable_link_broken()->set_generation(generation);
  e.mutable_link_broken()->set_peer(peer);
  e.mutable_link_broken()->set_peer_incarnation(peer_life);
  e.mutable_link_broken()->set_evidence(evidence);
  return send(std::move(e));
}

std::string TrackerScript::gone(std::uint64_t life, std::uint64_t generation, std::uint32_t peer,
                                std::uint64_t peer_life) {
  wire::Envelope e = from_worker(life);
  e.mutable_link_broken()->set_generation(generation);
  e.mutable_link_broken()->set_peer(peer);
  e.mutable_link_broken()->set_peer_incarnation(peer_life);
  e.mutable_link_broken()->set_evidence("refused");
  e.mutable_link_broken()->set_gone(true);
  return send(std::move(e));
}

std::string TrackerScript::stopped(std::uint64_t life, std::uint64_t generation) {
  wire::Envelope e = from_worker(life);
  e.mutable_stopped()->set_generation(generation);
  return send(std::move(e));
}

std::string TrackerScript::finalize(std::uint64_t life, std::uint64_t generation, std::uint64_t version) {
  wire::Envelope e = from_worker(life);
  e.mutable_leave()->set_generation(generation);
  e.mutable_leave()->set_finalize(true);
  e.mutable_leave()->set_version(version);
  return send(std::move(e));
}

std::string TrackerScript::give_up(std::uint64_t life, std::uint64_t generation, const std::string& reason) {
  wire::Envelope e = from_worker(life);
  e.mutable_leave()->set_generation(generation);
  e.mutable_leave()->set_reason(reason);
  return send(std::move(e));
}

std::string TrackerScript::serves(std::uint64_t life, std::uint64_t generation, std::uint64_t serves_ms,
                                  const std::vector<wire::Position>& positions, const std::vector<wire::Setup>& setups,
                                  std::uint32_t timeline) {
  wire::Envelope e = promised(life);
  wire::Leave& l = *e.mutable_leave();
  l.set_generation(generation);
  l.set_reason("SIGTERM");
  l.set_preempted(true);
  l.set_serves_ms(serves_ms);
  if (serves_ms == 0) return send(std::move(e));
  wire::JobRecord record;
  EXPECT_TRUE(record.ParseFromString(disk_));
  l.mutable_logged()->set_run(record.plan().run());
  l.mutable_logged()->set_timeline(timeline);
  for (const wire::Position& p : positions) *l.mutable_logged()->add_positions() = p;
  l.mutable_setups()->Add(setups.begin(), setups.end());
  return send(std::move(e));
}

std::string TrackerScript::report(std::uint64_t life, std::uint64_t generation, std::uint64_t version,
                                  const std::vector<wire::Position>& positions,
                                  const std::vector<wire::Setup>& setups) {
  wire::Envelope e = promised(life);
  e.mutable_report()->set_generation(generation);
  e.mutable_report()->set_version(version);
  for (const wire::Position& p : positions) *e.mutable_report()->add_positions() = p;
  e.mutable_report()->mutable_setups()->Add(setups.begin(), setups.end());
  return send(std::move(e));
}

std::string TrackerScript::load(std::uint64_t life) {
  wire::Envelope e = from_worker(life);
  e.mutable_load();
  return send(std::move(e));
}

std::string TrackerScript::vote(std::uint64_t life, std::uint64_t version, const std::vector<wire::Position>& positions,
                                std::uint32_t timeline, const std::vector<wire::Setup>& setups) {
  wire::Envelope e = from_worker(life);
  e.mutable_vote()->set_timeline(timeline);
  e.mutable_vote()->set_version(version);
  e.mutable_vote()->set_generation(machine_->view(TimeMs{now_}).generation.value);
  for (const wire::Position& p : positions) *e.mutable_vote()->add_positions() = p;
  e.mutable_vote()->mutable_setups()->Add(setups.begin(), setups.end());
  return send(std::move(e));
}

std::string TrackerScript::vote_for(std::uint64_t life, std::uint64_t version, const wire::StateDigest& state) {
  wire::Envelope e = from_worker(life);
  e.mutable_vote()->set_version(version);
  e.mutable_vote()->set_generation(machine_->view(TimeMs{now_}).generation.value);
  *e.mutable_vote()->mutable_state() = state;
  return send(std::move(e));
}

std::string TrackerScript::tell_state(std::uint64_t life, std::uint64_t version, const wire::StateDigest& state) {
  wire::Envelope e = from_worker(life);
  e.mutable_vote()->set_version(version);
  e.mutable_vote()->set_generation(machine_->view(TimeMs{now_}).generation.value);
  *e.mutable_vote()->mutable_state() = state;
  e.mutable_vote()->set_lacks(true);
  return send(std::move(e));
}

std::string TrackerScript::log_gap(std::uint64_t life, std::uint64_t generation, const std::string& reason,
                                   std::optional<wire::Setup> setup) {
  wire::Envelope e = from_worker(life);
  e.mutable_log_gap()->set_generation(generation);
  e.mutable_log_gap()->set_reason(reason);
  if (setup) *e.mutable_log_gap()->mutable_setup() = *setup;
  return send(std::move(e));
}

std::string TrackerScript::checkpoint_lost(std::uint64_t life, std::uint64_t generation, std::uint64_t version,
                                           std::uint32_t timeline) {
  wire::Envelope e = promised(life);
  e.mutable_log_gap()->set_generation(generation);
  e.mutable_log_gap()->set_reason("its copies are lost");
  e.mutable_log_gap()->mutable_checkpoint()->set_version(version);
  e.mutable_log_gap()->mutable_checkpoint()->set_timeline(timeline);
  return send(std::move(e));
}

std::string TrackerScript::round_failed(std::uint64_t life, std::uint64_t generation, Code code,
                                        const std::string& reason) {
  wire::Envelope e = from_worker(life);
  e.mutable_round_failed()->set_generation(generation);
  e.mutable_round_failed()->set_code(static_cast<std::uint32_t>(code));
  e.mutable_round_failed()->set_reason(reason);
  return send(std::move(e));
}

std::string TrackerScript::pass(std::int64_t ms) {
  const std::int64_t end = now_ + ms;
  std::vector<TrackerEffect> effects;
  int calls = 0;
  while (machine_->next_deadline() && machine_->next_deadline()->value <= end) {
    now_ = std::max(now_, machine_->next_deadline()->value);
    machine_->on_tick(TimeMs{now_}, effects);
    WARREN_CHECK(++calls < 100'000, "a machine does not spin");
  }
  now_ = end;
  return carry_out(effects);
}

std::string TrackerScript::pass_alive(std::int64_t ms, std::vector<std::uint64_t> lives, std::uint64_t generation) {
  std::string text;
  for (std::int64_t left = ms; left > 0; left -= 1000) {
    text += pass(std::min<std::int64_t>(left, 1000));
    for (const std::uint64_t life : lives) (void)beat(life, generation);
  }
  return text;
}

std::string TrackerScript::sleep(std::int64_t ms) {
  now_ += ms;
  std::vector<TrackerEffect> effects;
  machine_->on_tick(TimeMs{now_}, effects);
  return carry_out(effects);
}

}  // namespace warren::test
