#include "recovery/worker/worker_machine.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "recovery/wire/plan_changes.h"
#include "tests/recovery/script.h"

namespace warren::test {
namespace {

// The machine of worker w0, life 10, whose tracker answers when the test says so. Each call returns what it did.
class WorkerScript {
 public:
  enum class Waits { kNo, kIfFull, kFromTheBeginning };
  explicit WorkerScript(bool logs = false, std::uint32_t replicas = 0, Waits waits = Waits::kNo, bool follows = false,
                        std::int64_t join_within_ms = 0)
      : logs_(logs) {
    WorkerMachine::Options options;
    options.job = "j";
    options.self = Incarnation(10);
    options.join = test::join("w0", "h", 2, replicas);
    options.join.set_waits(waits != Waits::kNo);
    options.join.set_spare(waits == Waits::kFromTheBeginning);
    options.join_timeout_ms = 30'000;
    options.join_within_ms = join_within_ms;
    options.tracker_name = "10.0.0.9:9100";
    options.follows = follows;
    if (follows && waits == Waits::kFromTheBeginning) *options.join.mutable_followed() = {};
    machine_.emplace(std::move(options));
    machine_->check_invariants();
  }
  ~WorkerScript() { record_transitions("worker", WorkerMachine::transition_names(), machine_->transition_counts()); }

  std::string start() {
    return run([&](auto& effects) { machine_->start(now(), effects); });
  }
  void member() {
    (void)start();
    (void)plan(1);
  }
  std::string pass(std::int64_t ms) {
    const std::int64_t end = now_ + ms;
    std::string text;
    while (machine_->next_deadline() && machine_->next_deadline()->value <= end) {
      now_ = std::max(now_, machine_->next_deadline()->value);
      text += run([&](auto& effects) { machine_->on_tick(now(), effects); });
    }
    now_ = end;
    return text;
  }
  std::string get(wire::Envelope e) {
    const std::string bytes = encode(e, Side::kTracker);
    auto decoded = decode_envelope(std::as_bytes(std::span(bytes)), Side::kTracker);
    EXPECT_TRUE(decoded.ok()) << decoded.status().describe();
    return run([&](auto& effects) { machine_->on_message(decoded.value(), now(), effects); });
  }
  std::string welcome(std::uint32_t joined, std::vector<std::string> missing = {}) {
    wire::Envelope e = from_tracker(10);
    e.mutable_welcome()->set_joined(joined);
    e.mutable_welcome()->set_world_size(2);
    for (auto& m : missing) e.mutable_welcome()->add_missing(m);
    return get(e);
  }
  std::string welcome_as_spare(std::uint64_t called = 0, std::uint32_t joined = 0) {
    wire::Envelope e = from_tracker(10);
    e.mutable_welcome()->set_joined(joined);
    e.mutable_welcome()->set_world_size(2);
    e.mutable_welcome()->set_spare(true);
    e.mutable_welcome()->set_called(called);
    return get(e);
  }
  // `with_plan`: whose members hold it.
  std::string follow(std::uint64_t version, std::uint64_t generation, bool with_plan, std::uint64_t run = 20) {
    wire::Envelope e = from_tracker(10);
    e.mutable_welcome()->set_world_size(2);
    e.mutable_welcome()->set_spare(true);
    wire::Follow& f = *e.mutable_welcome()->mutable_follow();
    f.set_version(version);
    f.set_generation(generation);
    f.set_run(run);
    if (with_plan) {
      *f.mutable_plan() = plan_of(generation, {{"w0", run}, {"w1", 11}});
      *f.mutable_plan()->mutable_settings() = test::settings(2, 1);
      for (wire::Member& m : *f.mutable_plan()->mutable_members()) m.set_fetch_port(1);
    }
    return get(e);
  }
  void followed(std::uint64_t version) { machine_->followed(Version(version), Timeline(0)); }
  std::string called(std::uint64_t generation) {
    wire::Envelope e = from_tracker(10);
    e.mutable_called()->set_generation(generation);
    return get(e);
  }
  std::string looked(std::uint64_t generation) {
    wire::Logged logged;
    logged.set_run(7);
    logged.add_lives(3);
    *logged.add_positions() = in_flight(1, 5, 0, 4, 16);
    return run([&](auto& effects) { machine_->looked(Generation(generation), {}, logged, now(), effects); });
  }
  std::string plan(std::uint64_t generation, std::uint64_t life = 10, const std::string& worker = "w0") {
    wire::Envelope e = from_tracker(10);
    *e.mutable_plan() = plan_of(generation, {{worker, life}, {"w1", 11}});
    return get(e);
  }
  wire::Report newest_report() {
    std::vector<WorkerEffect> effects;
    now_ += 1000;
    machine_->on_tick(now(), effects);
    for (const WorkerEffect& effect : effects) {
      const auto* send = std::get_if<worker_effect::Send>(&effect);
      if (send != nullptr && send->envelope.has_report()) return send->envelope.report();
    }
    ADD_FAILURE() << "it does not report";
    return {};
  }
  // The plan that it names.
  std::uint64_t reported_from() { return newest_report().plan_generation(); }
  // The plan of `generation` as changes to that of `base`: w1 has another life.
  std::string plan_changes(std::uint64_t generation, std::uint64_t base) {
    wire::Envelope e = from_tracker(10);
    const wire::Plan before = plan_of(base, {{"w0", 10}, {"w1", 11}});
    wire::Plan after = before;
    after.set_generation(generation);
    after.mutable_members(1)->set_incarnation(21);
    *e.mutable_plan() = changes_between(before, after);
    return get(e);
  }
  std::string interrupt(std::uint64_t generation, bool resume = false, Code code = Code::kPeerLost) {
    wire::Envelope e = from_tracker(10);
    e.mutable_interrupt()->set_resume(resume);
    e.mutable_interrupt()->set_generation(generation);
    e.mutable_interrupt()->set_code(static_cast<std::uint32_t>(code));
    e.mutable_interrupt()->set_reason("rank 1 is gone");
    return get(e);
  }
  std::string lost(std::uint64_t generation) {
    wire::Envelope e = from_tracker(10);
    e.mutable_interrupt()->set_ends_job(true);
    e.mutable_interrupt()->set_generation(generation);
    e.mutable_interrupt()->set_code(static_cast<std::uint32_t>(Code::kUnavailable));
    e.mutable_interrupt()->set_reason("its checkpoint is lost");
    return get(e);
  }
  std::string refused(Code code = Code::kClosed, bool fenced = false) {
    wire::Envelope e = from_tracker(10);
    e.mutable_refused()->set_code(static_cast<std::uint32_t>(code));
    e.mutable_refused()->set_reason("a newer life has joined");
    e.mutable_refused()->set_fenced(fenced);
    return get(e);
  }
  std::string finished(std::uint64_t generation) {
    wire::Envelope e = from_tracker(10);
    e.mutable_finished()->set_generation(generation);
    return get(e);
  }
  std::string reply(std::uint64_t tracker = kTracker, std::uint64_t beat = 1) {
    wire::Envelope e = from_tracker(10);
    e.set_sender(tracker);
    e.set_term(tracker == kTracker ? 1 : 2);
    e.mutable_heartbeat_reply()->set_beat(beat);
    return get(e);
  }
  void awaited(std::uint64_t beat, std::uint64_t awaited_ms) {
    wire::Envelope e = from_tracker(10);
    e.mutable_heartbeat_reply()->set_beat(beat);
    e.mutable_heartbeat_reply()->set_awaited_ms(awaited_ms);
    (void)get(e);
  }
  [[nodiscard]] std::int64_t awaited_ms() { return machine_->awaited_ms(now()); }
  std::string leave_request(std::uint64_t generation, std::uint64_t within_ms) {
    wire::Envelope e = from_tracker(10);
    wire::LeaveRequest& request = *e.mutable_heartbeat_reply()->mutable_leave();
    request.set_generation(generation);
    request.set_within_ms(within_ms);
    request.set_reason("slow");
    return get(e);
  }
  std::string link_broken(std::uint64_t generation) {
    return run(
        [&](auto& effects) { machine_->on_link_broken(Generation(generation), Rank(1), "reset\n", now(), effects); });
  }
  std::string peer_gone(std::uint64_t generation) {
    return run(
        [&](auto& effects) { machine_->on_peer_gone(Generation(generation), Rank(1), "refused", now(), effects); });
  }
  std::string round_failed(std::uint64_t generation, const Status& why = Status(Code::kDesync, "here a, there b")) {
    return run([&](auto& effects) { machine_->on_round_failed(Generation(generation), why, now(), effects); });
  }
  std::string on_stopped(std::uint64_t generation, WorkerMachine::Standing standing = {}) {
    return run([&](auto& effects) { machine_->on_stopped(Generation(generation), standing, now(), effects); });
  }
  std::string load() {
    return run([&](auto& effects) { machine_->load(now(), effects); });
  }
  std::string vote(std::uint64_t version, const std::vector<wire::Setup>& setups = {}) {
    return run([&](auto& effects) {
      machine_->vote(
          {machine_->generation(), Timeline(0), Version(version), {}, {position(version - 1, 3, true)}, setups}, now(),
          effects);
    });
  }
  std::string tell_state(std::uint64_t version) {
    return run([&](auto& effects) {
      machine_->tell_state({machine_->generation(), Timeline(0), Version(version), {}}, now(), effects);
    });
  }
  std::string log_gap(std::uint64_t generation) {
    return run([&](auto& effects) {
      machine_->on_log_gap(Generation(generation), {"round 1.3 is held by nobody", {}}, now(), effects);
    });
  }
  std::string checkpoint_lost(std::uint64_t generation) {
    WorkerMachine::Gap gap;
    gap.reason = "nobody holds it";
    gap.checkpoint = worker_effect::Loaded{true, Version(2), Timeline(1)};
    return run([&](auto& effects) { machine_->on_log_gap(Generation(generation), gap, now(), effects); });
  }
  std::string loaded(std::uint64_t version) {
    wire::Envelope e = from_tracker(10);
    e.mutable_loaded()->set_committed(version != 0);
    e.mutable_loaded()->set_version(version);
    return get(e);
  }
  std::string committed(std::uint64_t version, std::uint64_t tracker = kTracker) {
    wire::Envelope e = from_tracker(10);
    e.set_sender(tracker);
    e.set_term(tracker == kTracker ? 1 : 2);
    e.mutable_committed()->set_version(version);
    return get(e);
  }
  std::string tell(std::uint64_t generation) {
    wire::Envelope e = from_tracker(10);
    e.mutable_tell()->set_generation(generation);
    return get(e);
  }
  std::string finalize(std::uint64_t version = 0) {
    return run([&](auto& effects) { machine_->finalize(Version(version), now(), effects); });
  }
  std::string leave(const std::string& reason = {}) {
    return run([&](auto& effects) { machine_->leave(reason, now(), effects); });
  }
  std::string drain(std::int64_t within_ms, bool serves = false) {
    return run([&](auto& effects) { machine_->drain(now() + within_ms, "SIGTERM", serves, now(), effects); });
  }
  // Of w0's next life and w1, which names `server` as one that serves.
  std::string served_plan(std::uint64_t generation, std::uint64_t since, std::uint64_t server = 10) {
    wire::Envelope e = from_tracker(10);
    wire::Plan& p = *e.mutable_plan();
    p = plan_of(generation, {{"w0", 20}, {"w1", 11}});
    p.mutable_settings()->set_replicas(2);
    for (wire::Member& m : *p.mutable_members()) m.set_fetch_port(6000);
    wire::Member& m = *p.add_servers();
    m = p.members(0);
    m.set_incarnation(server);
    m.set_since(since);
    return get(e);
  }
  std::string trouble(const std::string& what) {
    return run([&](auto& effects) { machine_->on_connection_trouble(what, now(), effects); });
  }
  // Time passes while the shell is held up: only keep_alive() is called.
  std::string held_up(std::int64_t ms, std::int64_t every_ms) {
    std::string text;
    for (std::int64_t end = now_ + ms; now_ < end;) {
      now_ += every_ms;
      text += run([&](auto& effects) { machine_->keep_alive(now(), effects); });
    }
    return text;
  }
  WorkerMachine& machine() { return *machine_; }
  TimeMs now() const { return TimeMs{now_}; }

 private:
  std::string run(auto event) {
    std::vector<WorkerEffect> effects;
    event(effects);
    machine_->check_invariants();
    for (const WorkerEffect& effect : effects) {
      if (const auto* s = std::get_if<worker_effect::Send>(&effect)) (void)encode(s->envelope, Side::kWorker);
    }
    return render(effects, logs_);
  }

  bool logs_;
  std::int64_t now_ = 0;
  std::optional<WorkerMachine> machine_;
};

using State = WorkerMachine::State;

TEST(Worker, ALifeFromJoinToFinished) {
  WorkerScript w(true);
  EXPECT_EQ(w.start(), "log joining: joining job j at the tracker at 10.0.0.9:9100\nsend Join w0\n");
  EXPECT_EQ(w.pass(1000), "send Join w0\n");
  EXPECT_EQ(w.welcome(1), "log welcomed: job j has 1 of its 2 workers\n");
  EXPECT_EQ(w.welcome(1), "");
  EXPECT_EQ(w.pass(1249), "") << "it is heard, and need not say so often that it is there";
  EXPECT_EQ(w.pass(1), "send Join w0\n");
  EXPECT_EQ(w.plan(1),
            "log plan_installed: rank 0 of 2 in generation 1 of job j\n"
            "install generation 1\n"
            "send Heartbeat 1 generation 1 rounds 0\n");
  w.machine().set_progress({7, 4096, {round(7, 8, {1, 0, 1}, 5)}});
  EXPECT_EQ(w.pass(1000), "send Heartbeat 2 generation 1 rounds 7\n");
  EXPECT_EQ(w.reply(), "");
  WorkerMachine::Progress progress;
  progress.gpu.set_readers(3);
  progress.gpu.set_inputs_lent(5);
  w.machine().set_progress(std::move(progress));
  EXPECT_EQ(w.pass(1000), "send Heartbeat 3 generation 1 rounds 0 lent 5 to 3\n");
  EXPECT_EQ(w.reply(), "");
  EXPECT_EQ(w.finalize(), "send Leave generation 1 finalize\n");
  EXPECT_EQ(w.finalize(), "");
  EXPECT_EQ(w.pass(1000), "send Leave generation 1 finalize\n");
  EXPECT_EQ(w.finished(1), "finished\n");
  EXPECT_EQ(w.machine().state(), State::kFinished);
  EXPECT_EQ(w.finished(1), "");
  EXPECT_EQ(w.interrupt(2), "");
  EXPECT_EQ(w.leave(), "");
  EXPECT_FALSE(w.machine().next_deadline().has_value());
}

TEST(Worker, AShellThatIsHeldUpIsHeardAndDecidesNothing) {
  WorkerScript w(true);
  w.member();
  EXPECT_EQ(w.held_up(2500, 100), "send Heartbeat 2 generation 1 rounds 0\nsend Heartbeat 3 generation 1 rounds 0\n");
  // However long: the tracker's silence, a report that it does not answer, are for later.
  (void)w.link_broken(1);
  const std::string text = w.held_up(100'000, 1000);
  EXPECT_EQ(text.find("fail"), std::string::npos) << text;
  EXPECT_EQ(text.find("stop"), std::string::npos);
  EXPECT_EQ(text.find("log"), std::string::npos);
  EXPECT_NE(text.find("send LinkBroken"), std::string::npos) << "what is repeated is repeated";
  EXPECT_EQ(w.machine().state(), State::kMember);
  // Who stops says nothing before it has stopped.
  (void)w.interrupt(2, true);
  EXPECT_EQ(w.held_up(5000, 1000), "");
  (void)w.on_stopped(2);
  EXPECT_EQ(w.machine().state(), State::kSuspended);
  EXPECT_NE(w.held_up(2000, 1000).find("send Report"), std::string::npos);
}

TEST(Worker, APlanToldByItsChangesIsInstalledWholeAndAnotherOnesChangesAreNot) {
  WorkerScript w(false, 2);
  w.member();
  (void)w.interrupt(2, true);
  (void)w.on_stopped(2);
  EXPECT_EQ(w.plan_changes(4, 3), "") << "it has the plan of generation 1";
  EXPECT_EQ(w.machine().state(), State::kSuspended);
  EXPECT_EQ(w.reported_from(), 0u) << "it asks for a whole one";
  const std::string got = w.plan_changes(4, 1);
  EXPECT_EQ(w.machine().state(), State::kMember) << got;
}

TEST(Worker, WhoDrainsSaysSoWithEachHeartbeatAndWhenItLeaves) {
  WorkerScript w(true);
  w.member();
  EXPECT_EQ(
      w.drain(9000),
      "log draining: this worker has been told to leave (SIGTERM): it does so when no call is under way, at the latest "
      "in 9 s\nsend Heartbeat 2 generation 1 rounds 0 draining 9000 (SIGTERM)\n");
  EXPECT_EQ(w.drain(20'000), "") << "the earlier time counts";
  EXPECT_EQ(w.pass(1000), "send Heartbeat 3 generation 1 rounds 0 draining 8000 (SIGTERM)\n");
  EXPECT_NE(w.drain(0).find("draining 0 (SIGTERM)"), std::string::npos);
  EXPECT_EQ(w.leave("SIGTERM").substr(0, 43), "send Leave generation 1 preempted: SIGTERM\n");
  EXPECT_EQ(w.machine().state(), State::kFailed);
}

// It has done three rounds of version 1, and dead lives of its host five, and it has begun another and two set-up
// rounds, of one of which it does not know how long it is.
WorkerMachine::Standing standing() {
  WorkerMachine::Standing s;
  s.version = Version(1);
  s.positions = {position(0, 2, true), position(1, 3, false, {{0, 8}})};
  s.setups = {setup(0, 7, true), setup(0, 8, false, {{0, 8}}), setup(0, 9, false, {{0, 8}})};
  s.setups[1].set_total_bytes(16);
  s.logged.set_run(10);
  *s.logged.add_positions() = in_flight(1, 5, 0, 4, 16);
  *s.logged.add_setups() = setup(0, 10, false, {{0, 4}});
  s.logged.mutable_setups(0)->set_total_bytes(16);
  s.logged.add_lives(5);
  return s;
}
const std::string kServes = "send Leave generation 1 preempted serves ";
const std::string kDone = " 0.2 1.5[0,4) s7| s8[0,8) s10[0,4): SIGTERM\n";

TEST(Worker, WhoIsPreemptedServesUntilItIsTold) {
  WorkerScript w(false, 2);
  w.member();
  (void)w.drain(60'000, true);
  EXPECT_EQ(w.leave("SIGTERM"), "pause before generation 2: this worker left job j: SIGTERM\n");
  EXPECT_EQ(w.machine().state(), State::kStopping);
  EXPECT_EQ(w.leave("SIGTERM"), "");
  EXPECT_EQ(w.interrupt(2, true), "") << "that is what it does";
  EXPECT_EQ(w.on_stopped(2, standing()), kServes + "60000" + kDone);
  EXPECT_EQ(w.machine().state(), State::kServing);
  EXPECT_EQ(w.pass(1000), kServes + "59000" + kDone);
  EXPECT_EQ(w.interrupt(2, true), "");
  EXPECT_EQ(w.leave("SIGTERM"), "");
  EXPECT_EQ(w.plan(2), "") << "it is no member any more";
  EXPECT_EQ(w.served_plan(2, 2, 9), "");
  EXPECT_EQ(w.served_plan(3, 2), "") << "what was done when it was named it does not know";
  EXPECT_EQ(w.served_plan(2, 2), "serve generation 2\nsend Leave generation 2 preempted serves 59000" + kDone);
  EXPECT_EQ(w.served_plan(2, 2), "");
  EXPECT_EQ(w.reply(), "");
  EXPECT_EQ(w.pass(1000), "send Leave generation 2 preempted serves 58000" + kDone);
  EXPECT_EQ(w.served_plan(3, 2), "serve generation 3\nsend Leave generation 3 preempted serves 58000" + kDone);
  EXPECT_EQ(w.tell(0), "send Known generation 3 plan 3 with it\n") << "of the newest that it serves";
  EXPECT_EQ(w.peer_gone(1), "") << "it has no peers";
  (void)w.pass(11'000);
  EXPECT_EQ(w.refused(), "left\n");
  EXPECT_EQ(w.machine().state(), State::kFailed);
  EXPECT_EQ(w.pass(60'000), "");
}

TEST(Worker, WhoServesGoesWhenItsTimeIsOver) {
  WorkerScript w(false, 2);
  w.member();
  EXPECT_EQ(w.interrupt(2, true).substr(0, 25), "pause before generation 2");
  (void)w.on_stopped(2, standing());
  (void)w.drain(2500, true);
  EXPECT_EQ(w.leave("SIGTERM"), kServes + "2500" + kDone) << "its data path has stopped already";
  EXPECT_EQ(w.pass(3000),
            kServes + "1500" + kDone + kServes + "500" + kDone + "send Leave generation 1 preempted: SIGTERM\nleft\n");
  EXPECT_EQ(w.machine().state(), State::kFailed);

  // A second notice means now.
  WorkerScript again(false, 2);
  again.member();
  (void)again.drain(60'000, true);
  (void)again.leave("SIGTERM");
  (void)again.on_stopped(2, standing());
  EXPECT_EQ(again.drain(0), "");
  EXPECT_EQ(again.pass(0), "send Leave generation 1 preempted: SIGTERM\nleft\n");
}

TEST(Worker, WhoWouldBeNoHelpLeavesAtOnce) {
  const auto leaves = [](std::uint32_t replicas, bool serves, std::int64_t within_ms) {
    WorkerScript w(false, replicas);
    w.member();
    (void)w.drain(within_ms, serves);
    return w.leave("SIGTERM").substr(0, 43) == "send Leave generation 1 preempted: SIGTERM\n" &&
           w.machine().state() == State::kFailed;
  };
  EXPECT_FALSE(leaves(2, true, 1000));
  EXPECT_TRUE(leaves(1, true, 1000)) << "one copy is all there is";
  EXPECT_TRUE(leaves(2, false, 1000)) << "its launcher keeps what it has logged";
  EXPECT_TRUE(leaves(2, true, 0)) << "there is no time";

  // That its launcher goes, too, it may hear last, and with a later time.
  WorkerScript late(false, 2);
  late.member();
  (void)late.drain(2000, false);
  (void)late.drain(60'000, true);
  EXPECT_EQ(late.leave("SIGTERM").substr(0, 25), "pause before generation 2");
  EXPECT_EQ(late.on_stopped(2, standing()), kServes + "2000" + kDone);

  // An interrupt that ends all lives ends this one.
  WorkerScript w(false, 2);
  w.member();
  (void)w.drain(60'000, true);
  (void)w.leave("SIGTERM");
  (void)w.interrupt(2, false);
  EXPECT_EQ(w.on_stopped(2, standing()).substr(0, 26), "send Stopped generation 2\n");
  EXPECT_EQ(w.machine().state(), State::kBroken);
}

TEST(Worker, WhoIsAskedToLeaveDrainsOnceAndIsNotPreempted) {
  WorkerScript w;
  w.member();
  EXPECT_EQ(w.leave_request(2, 5000), "") << "of another generation";
  EXPECT_FALSE(w.machine().draining());
  EXPECT_EQ(w.leave_request(1, 5000), "send Heartbeat 2 generation 1 rounds 0 draining 5000 (slow)\ndrain by " +
                                          std::to_string(w.now().value + 5000) + " (slow)\n");
  EXPECT_EQ(w.leave_request(1, 1000), "") << "it was not heard to drain yet";
  EXPECT_EQ(w.drain(20'000), "") << "the earlier time counts";
  EXPECT_EQ(w.pass(1000), "send Heartbeat 3 generation 1 rounds 0 draining 4000 (slow)\n");
  EXPECT_EQ(w.leave("slow").substr(0, 40), "send Leave generation 1 preempted: slow\n") << "its machine goes as well";

  WorkerScript replaced;
  replaced.member();
  (void)replaced.leave_request(1, 5000);
  EXPECT_EQ(replaced.leave("slow").substr(0, 30), "send Leave generation 1: slow\n");

  WorkerScript stops;
  stops.member();
  (void)stops.interrupt(2, true);
  EXPECT_EQ(stops.leave_request(1, 5000), "") << "the generation is being changed";
}

TEST(Worker, HowLongOthersWaitForItIsTrueForAShortTime) {
  WorkerScript w(true);
  w.member();
  EXPECT_EQ(w.awaited_ms(), 0);
  w.awaited(1, 4000);
  EXPECT_EQ(w.awaited_ms(), 4000);
  w.awaited(0, 9000);
  EXPECT_EQ(w.awaited_ms(), 4000) << "in answer to an older heartbeat";
  (void)w.pass(60'000);
  EXPECT_EQ(w.awaited_ms(), 0) << "the tracker is not heard";
}

TEST(Worker, NoTrackerEndsTheJoinWithWhatTheConnectionSaid) {
  WorkerScript w;
  (void)w.start();
  EXPECT_EQ(w.trouble("connection refused"), "");
  EXPECT_EQ(w.trouble("connection refused"), "");
  std::string text = w.pass(30'000);
  EXPECT_EQ(text.substr(text.find("fail")),
            "fail timeout: cannot join job j: the tracker at 10.0.0.9:9100 has not answered after 30 s (the connection "
            "says: connection refused); start it, or correct its address, or look at the secret and the firewall\n");
  EXPECT_EQ(w.machine().state(), State::kFailed);
}

TEST(Worker, AWorldThatNeverFillsEndsTheJoinWithWhoIsMissing) {
  WorkerScript w;
  (void)w.start();
  (void)w.pass(28'000);
  (void)w.welcome(1, {"w1"});
  std::string text = w.pass(2000);
  EXPECT_EQ(
      text.substr(text.find("fail")),
      "fail timeout: cannot join job j: job j has 1 of its 2 workers after 30 s, missing are w1; start the others, "
      "or correct the world size, or give a longer join timeout\n");
}

TEST(Worker, ALifeThatJoinsAgainHasTheTimeThatIsLeft) {
  WorkerScript w(false, 0, WorkerScript::Waits::kNo, false, 4000);
  (void)w.start();
  EXPECT_EQ(w.pass(3999).find("fail"), std::string::npos);
  EXPECT_NE(w.pass(1).find("fail timeout"), std::string::npos);
}

TEST(Worker, ARefusedJoinSaysWhy) {
  WorkerScript w;
  (void)w.start();
  EXPECT_EQ(w.refused(),
            "fail closed: cannot join job j: the tracker at 10.0.0.9:9100 refused: a newer life has joined\n");
}

TEST(Worker, WaitsAreLogged) {
  WorkerScript w(true);
  (void)w.start();
  (void)w.trouble("connection refused");
  EXPECT_NE(w.pass(10'000).find("log tracker_silent: the tracker at 10.0.0.9:9100 has not answered for 10 s; the "
                                "connection says: connection refused\n"),
            std::string::npos);
  EXPECT_EQ(w.welcome(1, {"w1"}),
            "log tracker_back: the tracker at 10.0.0.9:9100 answers again after 10 s\n"
            "log welcomed: job j has 1 of its 2 workers; missing: w1\n");
  (void)w.pass(9000);
  (void)w.welcome(1);
  EXPECT_NE(w.pass(1000).find("log waiting: waiting since 20 s for the other workers of job j, which has 1 of its 2\n"),
            std::string::npos);
  (void)w.plan(1);
  (void)w.finalize();
  (void)w.pass(9000);
  (void)w.reply();
  EXPECT_NE(w.pass(1000).find(
                "log waiting: finalize waits since 10 s for the tracker, or for ranks that have not called it\n"),
            std::string::npos);
}

TEST(Worker, AnInterruptIsAnsweredOnlyWhenTheDataPathHasStopped) {
  WorkerScript w;
  w.member();
  EXPECT_EQ(w.interrupt(2), "stop before generation 2: job j was interrupted: rank 1 is gone\n");
  EXPECT_EQ(w.interrupt(2), "");
  EXPECT_EQ(w.leave(), "");
  EXPECT_EQ(w.pass(60'000), "");
  EXPECT_EQ(w.on_stopped(1), "");  // of something older
  EXPECT_EQ(w.on_stopped(2), "send Stopped generation 2\nfail peer lost: job j was interrupted: rank 1 is gone\n");
  EXPECT_EQ(w.machine().state(), State::kBroken);
  EXPECT_EQ(w.interrupt(2), "send Stopped generation 2\n");  // its answer was lost
  EXPECT_EQ(w.on_stopped(2), "");
  EXPECT_EQ(w.refused(), "");
}

TEST(Worker, AnInterruptEndsAJoinAndAFinalizeToo) {
  WorkerScript joining;
  (void)joining.start();
  EXPECT_EQ(joining.interrupt(2), "send Stopped generation 2\nfail peer lost: job j was interrupted: rank 1 is gone\n");
  WorkerScript leaving;
  leaving.member();
  (void)leaving.finalize();
  EXPECT_EQ(leaving.interrupt(2), "stop before generation 2: job j was interrupted: rank 1 is gone\n");
  EXPECT_EQ(leaving.finished(1), "");
  EXPECT_EQ(leaving.on_stopped(2),
            "send Stopped generation 2\nfail peer lost: job j was interrupted: rank 1 is gone\n");
}

TEST(Worker, PlansAndInterruptsThatAreNotNewerChangeNothing) {
  WorkerScript w;
  w.member();
  EXPECT_EQ(w.plan(1), "");
  EXPECT_EQ(w.interrupt(1), "");
  EXPECT_EQ(w.plan(2), "");  // a life has one plan
  EXPECT_EQ(w.machine().generation(), Generation(1));
  EXPECT_EQ(w.welcome(1), "");
  EXPECT_EQ(w.finished(1), "");
}

TEST(Worker, MessagesForOthersChangeNothing) {
  WorkerScript w;
  EXPECT_EQ(w.plan(1), "");  // before it began
  (void)w.start();
  EXPECT_EQ(w.plan(1, 12), "");
  EXPECT_EQ(w.plan(1, 10, "w7"), "");
  wire::Envelope e = from_tracker(99);
  e.mutable_finished()->set_generation(1);
  EXPECT_EQ(w.get(e), "");
  e.set_receiver(10);
  e.set_job("k");
  EXPECT_EQ(w.get(e), "");
  EXPECT_EQ(w.machine().state(), State::kJoining);
}

TEST(Worker, ReportsAreRepeatedUntilTheInterruptComes) {
  WorkerScript w;
  w.member();
  EXPECT_EQ(w.link_broken(1), "send LinkBroken generation 1 peer 1 life 11: reset \n");
  EXPECT_EQ(w.round_failed(1), "send RoundFailed generation 1 code 6: here a, there b\n");
  EXPECT_EQ(w.round_failed(1), "");
  EXPECT_EQ(w.link_broken(2), "");
  EXPECT_EQ(w.pass(1000),
            "send Heartbeat 2 generation 1 rounds 0\n"
            "send LinkBroken generation 1 peer 1 life 11: reset \n"
            "send RoundFailed generation 1 code 6: here a, there b\n");
  (void)w.interrupt(2);
  EXPECT_EQ(w.pass(5000), "");
}

// A process that ends is found by its connections, by the rounds that need them and by who looks for it: the tracker
// hears all of that, people read a line.
TEST(Worker, ALinkThatBreaksIsOneLine) {
  const Status lost(Code::kPeerLost, "round 1.2 with rank 1: the link to rank 1 broke: reset");
  const std::string told = "send LinkBroken generation 1 peer 1 life 11: reset \n";
  const std::string failed = "send RoundFailed generation 1 code 5: " + lost.describe() + "\n";
  for (const std::uint32_t replicas : {0u, 2u}) {
    WorkerScript w(true, replicas);
    w.member();
    EXPECT_EQ(w.link_broken(1),
              told + "log link_broken: the link to rank 1 (worker w1 on host h) broke in generation 1: reset \n");
    EXPECT_EQ(w.link_broken(1), told);
    EXPECT_EQ(w.peer_gone(1), "send LinkBroken generation 1 peer 1 life 11 gone: refused\n");
    EXPECT_EQ(w.round_failed(1, lost), failed);
    // What fails without a link that broke has no other line.
    WorkerScript alone(true, replicas);
    alone.member();
    EXPECT_EQ(alone.round_failed(1, lost), "log round_failed: " + lost.describe() + "\n" + failed);
  }
  WorkerScript w(true, 2);
  w.member();
  (void)w.link_broken(1);
  EXPECT_TRUE(w.round_failed(1).starts_with("log round_failed: here a, there b\n")) << "and this is more than a link";
  (void)w.interrupt(2, true);
  (void)w.on_stopped(2);
  (void)w.plan(2);
  EXPECT_TRUE(w.link_broken(2).ends_with(" broke in generation 2: reset \n")) << "of each generation";
}

// Links are closed then: only who has looked for the process itself knows.
TEST(Worker, ThatAPeersProcessHasGoneIsToldAlsoWhileSuspended) {
  WorkerScript w(false, 2);
  EXPECT_EQ(w.peer_gone(1), "") << "it is in no plan";
  w.member();
  const std::string told = "send LinkBroken generation 1 peer 1 life 11 gone: refused\n";
  EXPECT_EQ(w.peer_gone(2), "");
  (void)w.link_broken(1);
  (void)w.interrupt(2, true);
  EXPECT_EQ(w.peer_gone(1), "") << "its data path is being stopped";
  (void)w.on_stopped(2);
  EXPECT_EQ(w.link_broken(1), "");
  EXPECT_EQ(w.peer_gone(2), "");
  EXPECT_EQ(w.peer_gone(1), told);
  EXPECT_EQ(w.pass(1000), "send Report generation 2 version 0\n" + told) << "what broke before has been answered";
  (void)w.plan(2);
  EXPECT_EQ(w.pass(1000), "send Heartbeat 3 generation 2 rounds 0\n");
  EXPECT_EQ(w.peer_gone(1), "");
  const std::string again = "send LinkBroken generation 2 peer 1 life 11 gone: refused\n";
  EXPECT_EQ(w.peer_gone(2), again);
  EXPECT_EQ(w.pass(1000), "send Heartbeat 4 generation 2 rounds 0\n" + again);
}

// With a log it serves messages and results in finalize too: what breaks there holds a new life up.
TEST(Worker, WhoFinalizesReportsWhatBreaksOnlyWithALog) {
  for (const std::uint32_t replicas : {0u, 2u}) {
    WorkerScript w(false, replicas);
    w.member();
    (void)w.finalize();
    const bool logged = replicas != 0;
    EXPECT_EQ(w.link_broken(1), logged ? "send LinkBroken generation 1 peer 1 life 11: reset \n" : "");
    EXPECT_EQ(w.round_failed(1), logged ? "send RoundFailed generation 1 code 6: here a, there b\n" : "");
    const std::string again = w.pass(1000);
    EXPECT_EQ(again.find("LinkBroken") != std::string::npos, logged) << again;
    EXPECT_EQ(again.find("RoundFailed") != std::string::npos, logged) << again;
  }
}

TEST(Worker, ALinkThatClosesInFinalizeIsNoLine) {
  WorkerScript w(true, 2);
  w.member();
  (void)w.finalize();
  EXPECT_EQ(w.link_broken(1), "send LinkBroken generation 1 peer 1 life 11: reset \n");
}

TEST(Worker, ADisownedLifeStopsItsDataPathAndFails) {
  WorkerScript w;
  w.member();
  EXPECT_EQ(w.refused(),
            "stop before generation 2: out of job j: the tracker at 10.0.0.9:9100 refused: a newer life has joined\n");
  EXPECT_EQ(w.on_stopped(2),
            "fail closed: out of job j: the tracker at 10.0.0.9:9100 refused: a newer life has joined\n");
  EXPECT_EQ(w.machine().state(), State::kFailed);
  WorkerScript leaving;
  leaving.member();
  (void)leaving.finalize();
  EXPECT_EQ(leaving.refused().substr(0, 24), "stop before generation 2");
}

TEST(Worker, TheTrackersSilenceIsLoggedAndNoErrorForAMember) {
  WorkerScript w(true);
  w.member();
  std::string text;
  for (int i = 0; i < 600; ++i) text += w.pass(1000);
  EXPECT_NE(
      text.find("log tracker_silent: the tracker at 10.0.0.9:9100 has not answered for 5 s; rounds and checkpoints "
                "go on while the log has room; commits and recoveries wait for it\n"),
      std::string::npos);
  // Before that, when it was silent for three heartbeats; said once.
  EXPECT_LT(text.find("tracker away\n"), text.find("log tracker_silent"));
  EXPECT_EQ(text.find("tracker away\n"), text.rfind("tracker away\n"));
  EXPECT_EQ(w.machine().state(), State::kMember);
  EXPECT_EQ(w.reply(901),
            "log tracker_back: the tracker at 10.0.0.9:9100 answers again after 600 s\n"
            "log tracker_restarted: the tracker at 10.0.0.9:9100 has been started again\n"
            "tracker heard\n");
  text.clear();
  for (int i = 0; i < 4; ++i) text += w.pass(1000);
  EXPECT_NE(text.find("tracker away\n"), std::string::npos) << "and away again";
}

TEST(Worker, AFailureThatASilentTrackerDoesNotAnswerEndsInAnError) {
  for (const bool link : {true, false}) {
    WorkerScript w;
    w.member();
    (void)w.pass(3000);
    if (link) {
      (void)w.link_broken(1);
    } else {
      (void)w.round_failed(1);
    }
    (void)w.pass(29'000);
    EXPECT_EQ(w.machine().state(), State::kMember);
    const std::string why =
        std::string("job j cannot go on, and the tracker at 10.0.0.9:9100 has not answered for 33 s: ") +
        (link ? "the link to rank 1 broke: reset \n" : "here a, there b\n");
    EXPECT_TRUE(w.pass(1000).ends_with("stop before generation 2: " + why));
    EXPECT_EQ(w.on_stopped(2), (link ? "fenced peer lost: " : "fail desync: ") + why);
  }
}

TEST(Worker, AFinalizeThatNobodyAnswersEnds) {
  WorkerScript w;
  w.member();
  (void)w.finalize();
  (void)w.pass(29'000);
  const std::string why =
      "cannot finalize job j: the tracker at 10.0.0.9:9100 has not answered for 30 s; whether the other ranks have "
      "finished is not known\n";
  EXPECT_EQ(w.pass(1000), "stop before generation 2: " + why);
  EXPECT_EQ(w.on_stopped(2), "fenced timeout: " + why);
}

TEST(Worker, GivingUpSaysSo) {
  WorkerScript idle, joining, member, leaving;
  EXPECT_EQ(idle.leave("no"), "fail closed: this worker left job j: no\n");
  (void)joining.start();
  EXPECT_EQ(joining.leave("no"), "send Leave generation 0: no\nfail closed: this worker left job j: no\n");
  member.member();
  EXPECT_EQ(member.leave(), "send Leave generation 1\nfail closed: this worker left job j\n");
  leaving.member();
  (void)leaving.finalize();
  EXPECT_EQ(leaving.leave(), "fail closed: this worker left job j\n");
  // Where it has to be replaced, the others hear at once why.
  WorkerScript logged(false, 2);
  logged.member();
  (void)logged.finalize();
  EXPECT_EQ(logged.leave("no"), "send Leave generation 1: no\nfail closed: this worker left job j: no\n");
}

TEST(Worker, AnInterruptThatResumesIsAnsweredByAReportAndEndsWithThePlan) {
  WorkerScript w(false, 2);
  w.member();
  EXPECT_EQ(w.interrupt(2, true), "pause before generation 2: job j was interrupted: rank 1 is gone\n");
  EXPECT_EQ(w.machine().state(), State::kStopping);
  EXPECT_EQ(w.plan(2), "");  // not before the data path has stopped
  EXPECT_EQ(w.on_stopped(2, {Version(1), {position(1, 17, false, {{0, 8}})}, {setup(0, 7, false, {{4, 8}})}, {}}),
            "send Report generation 2 version 1 1.17[0,8) s7[4,8)\n");
  EXPECT_EQ(w.machine().state(), State::kSuspended);
  EXPECT_EQ(w.interrupt(1, true), "");
  EXPECT_EQ(w.interrupt(2, true), "send Report generation 2 version 1 1.17[0,8) s7[4,8)\n");  // it was lost
  EXPECT_EQ(w.interrupt(3, true), "send Report generation 3 version 1 1.17[0,8) s7[4,8)\n");
  EXPECT_EQ(w.pass(1000), "send Report generation 3 version 1 1.17[0,8) s7[4,8)\n");
  EXPECT_EQ(w.plan(2), "");  // of a generation that has been ended
  EXPECT_EQ(w.plan(3), "install generation 3\nsend Heartbeat 2 generation 3 rounds 0\n");
  EXPECT_EQ(w.machine().state(), State::kMember);
  EXPECT_EQ(w.plan(3), "");
  EXPECT_EQ(w.interrupt(3, true), "");
}

TEST(Worker, WhoWaitsForALostRankSaysForWhomAndSinceWhen) {
  WorkerScript w(true, 2);
  w.member();
  (void)w.interrupt(2, true);
  (void)w.on_stopped(2);
  (void)w.pass(9000);
  EXPECT_EQ(w.welcome(1), "");
  EXPECT_NE(
      w.pass(1000).find("log waiting: all calls have waited 10 s for the place of a lost worker to be taken (job j "
                        "was interrupted: rank 1 is gone)\n"),
      std::string::npos);
  (void)w.pass(9000);
  (void)w.welcome(1, {"w1", "elsewhere"});
  EXPECT_NE(
      w.pass(1000).find("log waiting: all calls have waited 20 s for rank 1 (worker w1 on host h), worker elsewhere "
                        "to come back (job j was interrupted: rank 1 is gone)\n"),
      std::string::npos);
  // Another wait is for others.
  (void)w.plan(2);
  (void)w.interrupt(3, true);
  (void)w.on_stopped(3);
  (void)w.pass(9000);
  (void)w.welcome(1);
  EXPECT_EQ(w.pass(1000).find("elsewhere"), std::string::npos);
}

// The tracker knew it from the Join, and has forgotten it with its plan: once such a round was computed again, although
// it had been completed, and this host held what nobody else had of it.
TEST(Worker, WhoseFirstPlanIsLostReportsWhatItsHostHolds) {
  WorkerScript w(false, 2, WorkerScript::Waits::kFromTheBeginning);
  (void)w.start();
  (void)w.welcome_as_spare();
  (void)w.called(3);
  EXPECT_EQ(w.looked(3), "send Join w0, called in generation 3\n");
  EXPECT_NE(w.interrupt(5, true).find("send Report generation 5"), std::string::npos);
  const wire::Report report = w.newest_report();
  EXPECT_EQ(report.logged().run(), 7u);
  ASSERT_EQ(report.logged().positions_size(), 1);
  EXPECT_EQ(report.logged().positions(0).rounds(), 5u);
  EXPECT_EQ(report.logged().lives_size(), 0) << "of joins";
}

TEST(Worker, AJobThatCannotGoOnIsNoRollback) {
  WorkerScript w(false, 2);
  w.member();
  EXPECT_EQ(w.lost(2), "stop before generation 2: job j cannot go on: its checkpoint is lost\n");
  EXPECT_EQ(w.on_stopped(2),
            "send Stopped generation 2\nfail unavailable: job j cannot go on: its checkpoint is lost\n");
  // Whatever it does.
  WorkerScript joining(false, 2);
  (void)joining.start();
  const std::string ended = "send Stopped generation 2\nfail unavailable: job j cannot go on: its checkpoint is lost\n";
  EXPECT_EQ(joining.lost(2), ended);
  WorkerScript suspended(false, 2);
  suspended.member();
  (void)suspended.interrupt(2, true);
  (void)suspended.on_stopped(2);
  EXPECT_EQ(suspended.lost(2), ended);
}

TEST(Worker, ACheckpointThatCannotBeLoadedIsReportedUntilTheInterruptComes) {
  WorkerScript w(false, 2);
  w.member();
  EXPECT_EQ(w.checkpoint_lost(1), "send LogGap generation 1 checkpoint 2 of timeline 1: nobody holds it\n");
  EXPECT_EQ(
      w.pass(1000),
      "send Heartbeat 2 generation 1 rounds 0\nsend LogGap generation 1 checkpoint 2 of timeline 1: nobody holds it\n");
  // A tracker that is gone ends the wait, too.
  const std::string text = w.pass(30'000);
  EXPECT_NE(text.find("job j cannot go on, and the tracker at 10.0.0.9:9100 has not answered for"), std::string::npos)
      << text;
}

TEST(Worker, ATrackerThatHasLostItsJournalIsToldWhatIsKnown) {
  WorkerScript w(false, 2);
  EXPECT_EQ(w.tell(0), "");
  (void)w.start();
  EXPECT_EQ(w.tell(0), "") << "who joins knows nothing";
  (void)w.plan(1);
  EXPECT_EQ(w.tell(0), "send Known generation 1 plan 1 with it\n");
  EXPECT_EQ(w.tell(1), "send Known generation 1 plan 1\n");
  (void)w.committed(2);
  (void)w.interrupt(3, true);
  EXPECT_EQ(w.tell(0), "send Known generation 3 plan 1 with it committed 2 in 0\n");
  (void)w.on_stopped(3);
  EXPECT_EQ(w.tell(1), "send Known generation 3 plan 1 committed 2 in 0\n");
  (void)w.plan(4);
  (void)w.finalize();
  EXPECT_EQ(w.tell(1), "send Known generation 4 plan 4 with it committed 2 in 0\n");
  (void)w.refused();
  EXPECT_EQ(w.tell(1), "") << "who is disowned knows nothing that counts";
}

TEST(Worker, AnInterruptBeforeTheFirstPlanIsAnsweredWithNothingDone) {
  WorkerScript w(false, 2);
  (void)w.start();
  EXPECT_EQ(w.interrupt(2, true), "send Report generation 2 version 0\n");
  EXPECT_EQ(w.plan(2), "install generation 2\nsend Heartbeat 1 generation 2 rounds 0\n");
}

TEST(Worker, AnEndForAllLivesWhileSuspendedIsARollback) {
  WorkerScript w(false, 2);
  w.member();
  (void)w.interrupt(2, true);
  (void)w.on_stopped(2);
  EXPECT_EQ(w.interrupt(3), "send Stopped generation 3\nfail rolled back: job j was rolled back: rank 1 is gone\n");
  WorkerScript stopping(false, 2);
  stopping.member();
  (void)stopping.interrupt(2, true);
  EXPECT_EQ(stopping.interrupt(3), "");
  EXPECT_EQ(stopping.on_stopped(3),
            "send Stopped generation 3\nfail rolled back: job j was rolled back: rank 1 is gone\n");
  WorkerScript desync(false, 2);
  desync.member();
  (void)desync.interrupt(2, false, Code::kDesync);
  EXPECT_EQ(desync.on_stopped(2), "send Stopped generation 2\nfail desync: job j was interrupted: rank 1 is gone\n");
}

TEST(Worker, ASuspendedLifeThatIsDisownedOrGivesUpOrHearsNothingEnds) {
  const auto suspended = [](WorkerScript& w) {
    w.member();
    (void)w.interrupt(2, true);
    (void)w.on_stopped(2);
  };
  WorkerScript fenced(false, 2);
  suspended(fenced);
  EXPECT_EQ(fenced.refused(),
            "fail closed: out of job j: the tracker at 10.0.0.9:9100 refused: a newer life has joined\n");
  WorkerScript gone(false, 2);
  suspended(gone);
  EXPECT_EQ(gone.leave("enough"), "send Leave generation 1: enough\nfail closed: this worker left job j: enough\n");
  WorkerScript unheard(false, 2);
  suspended(unheard);
  const std::string text = unheard.pass(30'000);
  EXPECT_EQ(text.substr(text.find("fenced")),
            "fenced timeout: the tracker at 10.0.0.9:9100 has not answered for 30 s after it had interrupted the job; "
            "start it again, then this worker\n");
}

TEST(Worker, FinalizeIsSaidAgainWithThePlanThatFollowsAnInterrupt) {
  WorkerScript w(false, 2);
  w.member();
  EXPECT_EQ(w.finalize(3), "send Leave generation 1 finalize version 3\n");
  EXPECT_EQ(w.interrupt(2, true), "pause before generation 2: job j was interrupted: rank 1 is gone\n");
  (void)w.on_stopped(2);
  EXPECT_EQ(w.plan(2), "install generation 2\nsend Leave generation 2 finalize version 3\n");
  EXPECT_EQ(w.finished(2), "finished\n");
  WorkerScript later(false, 2);
  later.member();
  (void)later.interrupt(2, true);
  EXPECT_EQ(later.finalize(4), "");
  (void)later.on_stopped(2);
  EXPECT_EQ(later.plan(2), "install generation 2\nsend Leave generation 2 finalize version 4\n");
}

TEST(Worker, LoadsAndVotesAreRepeatedUntilTheyAreAnswered) {
  WorkerScript w(false, 2);
  w.member();
  EXPECT_EQ(w.loaded(3), "");  // nobody asked
  EXPECT_EQ(w.load(), "send Load\n");
  EXPECT_EQ(w.pass(1000), "send Heartbeat 2 generation 1 rounds 0\nsend Load\n");
  EXPECT_EQ(w.loaded(3), "loaded 3\n");
  EXPECT_EQ(w.loaded(3), "");
  EXPECT_EQ(w.vote(4, {setup(0, 7, true)}), "send Vote 4 timeline 0 s7|\n");
  EXPECT_EQ(w.pass(1000), "send Heartbeat 3 generation 1 rounds 0\nsend Vote 4 timeline 0 s7|\n");
  // A vote is for a generation.
  (void)w.interrupt(2, true);
  (void)w.on_stopped(2);
  EXPECT_EQ(w.plan(2), "install generation 2\nsend Heartbeat 4 generation 2 rounds 0\n");
  EXPECT_EQ(w.vote(4), "send Vote 4 timeline 0\n");  // by what the new plan says
  EXPECT_EQ(w.committed(4), "committed 4\n");
  EXPECT_EQ(w.committed(4), "");
  EXPECT_EQ(w.pass(1000), "send Heartbeat 5 generation 2 rounds 0\n");
}

TEST(Worker, AStateIsToldUntilTheVoteSaysItToo) {
  WorkerScript w(false, 2);
  w.member();
  EXPECT_EQ(w.tell_state(4), "send State of 4 timeline 0\n");
  EXPECT_EQ(w.pass(1000), "send Heartbeat 2 generation 1 rounds 0\nsend State of 4 timeline 0\n");
  EXPECT_EQ(w.vote(4), "send Vote 4 timeline 0\n");
  EXPECT_EQ(w.pass(1000), "send Heartbeat 3 generation 1 rounds 0\nsend Vote 4 timeline 0\n");
  EXPECT_EQ(w.committed(4), "committed 4\n");
  EXPECT_EQ(w.tell_state(4), "") << "the commit was faster";
}

// It may have made up a journal that was lost, and know of an older commit.
TEST(Worker, WhatIsCommittedIsVotedForAgainWhereTheTrackerIsAnother) {
  WorkerScript w(false, 2);
  w.member();
  (void)w.vote(4, {setup(0, 7, true)});
  EXPECT_EQ(w.committed(4), "committed 4\n");
  EXPECT_EQ(w.pass(1000), "send Heartbeat 2 generation 1 rounds 0\n");
  (void)w.reply(901);
  EXPECT_EQ(w.pass(0), "send Heartbeat 3 generation 1 rounds 0\nsend Vote 4 timeline 0 s7|\n");
  EXPECT_EQ(w.pass(1000), "send Heartbeat 4 generation 1 rounds 0\nsend Vote 4 timeline 0 s7|\n");
  EXPECT_EQ(w.committed(4, 901), "") << "it knows";
  EXPECT_EQ(w.pass(1000), "send Heartbeat 5 generation 1 rounds 0\n");
}

TEST(Worker, AGapInTheLogIsReportedUntilTheInterruptComes) {
  WorkerScript w(false, 2);
  w.member();
  EXPECT_EQ(w.log_gap(2), "");
  EXPECT_EQ(w.log_gap(1), "send LogGap generation 1: round 1.3 is held by nobody\n");
  EXPECT_EQ(w.log_gap(1), "");
  EXPECT_EQ(w.pass(1000),
            "send Heartbeat 2 generation 1 rounds 0\nsend LogGap generation 1: round 1.3 is held by nobody\n");
}

TEST(Worker, ObeysTheHighestTermAlone) {
  WorkerScript w;
  w.member();
  const auto said = [&](std::uint64_t tracker, std::uint64_t term) {
    wire::Envelope e = from_tracker(10);
    e.set_sender(tracker);
    e.set_term(term);
    e.mutable_interrupt()->set_generation(2);
    e.mutable_interrupt()->set_code(static_cast<std::uint32_t>(Code::kPeerLost));
    e.mutable_interrupt()->set_reason("rank 1 is gone");
    return w.get(e);
  };
  EXPECT_EQ(said(kTracker + 1, 1), "") << "as high, of another";
  EXPECT_EQ(w.pass(0), "send Heartbeat 2 generation 1 rounds 0\n") << "it hears at once which one it needs";
  wire::Envelope higher = from_tracker(10);
  higher.set_sender(kTracker + 1);
  higher.set_term(2);
  higher.mutable_heartbeat_reply();
  EXPECT_EQ(w.get(higher), "");
  EXPECT_EQ(w.pass(0), "send Heartbeat 3 generation 1 rounds 0\n") << "it may wait for the promise";
  EXPECT_EQ(said(kTracker, 1), "") << "of before";
  EXPECT_NE(said(kTracker + 1, 2), "");
}

TEST(Worker, ARefusalWithoutATermEndsNoMember) {
  WorkerScript w(true);
  w.member();
  wire::Envelope e = from_tracker(10);
  e.set_sender(kTracker + 1);
  e.set_term(0);
  e.mutable_refused()->set_code(static_cast<std::uint32_t>(Code::kCorrupt));
  e.mutable_refused()->set_reason("its journal cannot be read");
  const std::string line =
      "log tracker_refused: another tracker answers at the address of the tracker at 10.0.0.9:9100, "
      "and is not obeyed: its journal cannot be read\n";
  EXPECT_EQ(w.get(e), line);
  EXPECT_EQ(w.get(e), "") << "said once";
  EXPECT_EQ(w.pass(0), "") << "and answered in its time";
  EXPECT_EQ(w.machine().state(), WorkerMachine::State::kMember);
  e.set_sender(kTracker);
  EXPECT_NE(w.get(e), "") << "of its own tracker";
}

// A tracker that had no right to decide when it heard the join has let it go by.
TEST(Worker, SaysItsJoinAndItsReportAgainWhenItIsAsked) {
  WorkerScript w(false, 2);
  (void)w.start();
  EXPECT_EQ(w.reply(kTracker, 0), "");
  EXPECT_EQ(w.pass(0), "send Join w0\n");
  EXPECT_EQ(w.reply(kTracker, 0), "");
  EXPECT_EQ(w.pass(0), "send Join w0\n");
  EXPECT_EQ(w.reply(kTracker, 1), "");
  EXPECT_EQ(w.pass(0), "") << "it is heard, and waits";
  (void)w.plan(1);
  (void)w.interrupt(2, true);
  (void)w.on_stopped(2);
  EXPECT_EQ(w.reply(kTracker, 0), "");
  EXPECT_NE(w.pass(0).find("Report"), std::string::npos);
}

TEST(WorkerSpare, WaitsHoweverLongTheTrackerIsSilentAndJoinsWhenItIsCalled) {
  WorkerScript w(false, 2, WorkerScript::Waits::kFromTheBeginning);
  EXPECT_EQ(w.start(), "send Join w0 as a spare\n");
  EXPECT_EQ(w.welcome_as_spare(), "wait as a spare\n");
  EXPECT_EQ(w.welcome_as_spare(), "");
  EXPECT_EQ(w.pass(1000), "send Join w0 as a spare\n") << "which is how it says that it is there";
  const std::string silence = w.pass(300'000);
  EXPECT_EQ(silence.find("fail"), std::string::npos) << "ten times its join timeout";
  EXPECT_EQ(w.called(5), "look, in generation 5\n");
  EXPECT_EQ(w.called(5), "");
  EXPECT_EQ(w.pass(1000), "send Join w0 as a spare\n") << "while it looks";
  EXPECT_EQ(w.looked(4), "");
  EXPECT_EQ(w.looked(5), "send Join w0, called in generation 5\n");
  EXPECT_EQ(w.looked(5), "");
  // Others may take long to come: it was called, and is counted on.
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(w.pass(20'000).find("fail"), std::string::npos);
    (void)w.welcome(1);
  }
  EXPECT_EQ(w.plan(5), "install generation 5\nsend Heartbeat 1 generation 5 rounds 0\n");
}

// Nobody need be lost for that.
TEST(WorkerSpare, InModeShrinkItIsToldThatItIsTakenInLater) {
  WorkerMachine::Options options;
  options.job = "j";
  options.self = Incarnation(10);
  options.join = test::join("w0", "h", 2, 2);
  options.join.set_waits(true);
  options.join.mutable_settings()->set_min_workers(1);
  options.join_timeout_ms = 30'000;
  WorkerMachine machine(std::move(options));
  const auto get = [&](const wire::Envelope& e) {
    std::vector<WorkerEffect> effects;
    machine.on_message(e, TimeMs{0}, effects);
    return render(effects, true);
  };
  std::vector<WorkerEffect> effects;
  machine.start(TimeMs{0}, effects);
  wire::Envelope welcome = from_tracker(10), called = from_tracker(10), finished = from_tracker(10);
  welcome.mutable_welcome()->set_world_size(2);
  welcome.mutable_welcome()->set_spare(true);
  called.mutable_called()->set_generation(3);
  finished.mutable_refused()->set_code(static_cast<std::uint32_t>(Code::kFinished));
  finished.mutable_refused()->set_reason("over");
  EXPECT_EQ(get(welcome),
            "log spare_waits: this worker waits until job j takes it in: when a checkpoint is committed, or in the "
            "place of a worker that is lost\nwait as a spare, anew\n");
  EXPECT_EQ(get(called), "log spare_called: this worker is called to come into job j\nlook, in generation 3\n");
  EXPECT_EQ(get(finished), "fail finished: job j is finished: this worker waited to come in, and was not needed\n");
}

TEST(WorkerSpare, WhoFindsNoPlaceForgetsWhatItsHostHolds) {
  WorkerScript w(false, 2, WorkerScript::Waits::kIfFull);
  EXPECT_EQ(w.start(), "send Join w0\n");
  EXPECT_EQ(w.welcome_as_spare(), "wait as a spare, anew\n");
  EXPECT_EQ(w.called(5), "look, in generation 5\n");
  (void)w.looked(5);
  EXPECT_EQ(w.welcome_as_spare(), "") << "that is the answer to an earlier join";
  // The worker whose place it was came back.
  EXPECT_EQ(w.welcome_as_spare(5), "wait as a spare, anew\n");
  EXPECT_EQ(w.pass(1000), "send Join w0 as a spare\n");
  // What it has looked at is out of date.
  (void)w.called(6);
  (void)w.looked(6);
  EXPECT_EQ(w.called(6), "");
  EXPECT_EQ(w.called(7), "wait as a spare, anew\n");
  EXPECT_EQ(w.called(7), "look, in generation 7\n");
}

TEST(WorkerSpare, FollowsTheNewestCheckpointByTheMembersOfTheNewestPlan) {
  WorkerScript w(false, 2, WorkerScript::Waits::kFromTheBeginning, true);
  EXPECT_EQ(w.start(), "send Join w0 as a spare with 0 of generation 0\n");
  EXPECT_EQ(w.follow(2, 3, true), "wait as a spare\nfollow 2 of generation 3\n");
  EXPECT_EQ(w.pass(1000), "send Join w0 as a spare with 0 of generation 3\n") << "it has not come yet";
  EXPECT_EQ(w.follow(2, 3, false), "follow 2\n");
  w.followed(2);
  EXPECT_EQ(w.pass(1000), "send Join w0 as a spare with 2 of generation 3\n");
  EXPECT_EQ(w.follow(3, 3, false), "follow 3\n");
  EXPECT_EQ(w.follow(2, 3, false), "") << "that came late";
  EXPECT_EQ(w.follow(4, 5, false), "") << "it does not know who holds it";
  EXPECT_EQ(w.follow(4, 5, true), "follow 4 of generation 5\n");
  EXPECT_EQ(w.follow(3, 3, true), "") << "members of that plan may have been given up since";
  EXPECT_EQ(w.follow(2, 1, false, 30), "") << "of a run of the job whose members it does not know";
  EXPECT_EQ(w.follow(2, 1, true, 30), "follow 2 of generation 1\n");
  w.followed(4);
  EXPECT_EQ(w.pass(1000), "send Join w0 as a spare with 0 of generation 1\n") << "that one went meanwhile";
  EXPECT_EQ(w.follow(4, 5, true), "follow 4 of generation 5\n");
  EXPECT_EQ(w.called(6), "look, in generation 6\n");
  EXPECT_EQ(w.follow(5, 5, false), "follow 5\n") << "while it looks";
  EXPECT_EQ(w.looked(6), "send Join w0, called in generation 6\n");
  w.followed(5);
  EXPECT_EQ(w.plan(7), "install generation 7\nsend Heartbeat 1 generation 7 rounds 0\n");
}

TEST(WorkerSpare, WhoFindsNoPlaceFollowsFromThereOn) {
  WorkerScript w(false, 2, WorkerScript::Waits::kIfFull, true);
  EXPECT_EQ(w.start(), "send Join w0\n");
  EXPECT_EQ(w.welcome_as_spare(), "wait as a spare, anew\n");
  EXPECT_EQ(w.pass(1000), "send Join w0 as a spare with 0 of generation 0\n");
  EXPECT_EQ(w.follow(2, 3, true), "follow 2 of generation 3\n");
  w.followed(2);
  // It was not needed: what it had is not there any more.
  EXPECT_EQ(w.called(5), "look, in generation 5\n");
  (void)w.looked(5);
  EXPECT_EQ(w.welcome_as_spare(5), "wait as a spare, anew\n");
  EXPECT_EQ(w.pass(1000), "send Join w0 as a spare with 0 of generation 0\n");
}

TEST(WorkerSpare, FollowsNothingUnlessItIsSetTo) {
  WorkerScript w(false, 2, WorkerScript::Waits::kFromTheBeginning);
  EXPECT_EQ(w.start(), "send Join w0 as a spare\n");
  EXPECT_EQ(w.follow(2, 3, true), "wait as a spare\n");
  EXPECT_EQ(w.pass(1000), "send Join w0 as a spare\n");
}

TEST(WorkerSpare, DoesNotWaitForEverForAJobThatDoesNotBegin) {
  WorkerScript w(false, 2, WorkerScript::Waits::kFromTheBeginning);
  (void)w.start();
  (void)w.welcome_as_spare(0, 1);
  for (const std::uint32_t joined : {0U, 1U}) {
    EXPECT_EQ(w.welcome_as_spare(0, 1), "");
    (void)w.pass(29'000);
    EXPECT_EQ(w.welcome_as_spare(0, joined), "") << "it has begun, and waits again for its tracker's journal";
  }
  (void)w.pass(1000);
  const std::string ended = w.welcome_as_spare(0, 1);
  EXPECT_NE(ended.find("fail timeout: cannot join job j: job j has 1 of its 2 workers"), std::string::npos) << ended;
}

// A tracker that has finished the job may have a lower term than one that is gone (seed 411003939).
TEST(WorkerSpare, ForgetsATrackerThatIsSilentForAJoinTimeout) {
  WorkerScript w(false, 2, WorkerScript::Waits::kFromTheBeginning);
  (void)w.start();
  (void)w.welcome_as_spare();
  wire::Envelope finished = from_tracker(10);
  finished.set_sender(901);
  finished.mutable_refused()->set_code(static_cast<std::uint32_t>(Code::kFinished));
  finished.mutable_refused()->set_reason("job j is finished");
  (void)w.pass(29'000);
  EXPECT_EQ(w.get(finished), "");
  (void)w.pass(2000);
  EXPECT_NE(w.get(finished).find("fail finished"), std::string::npos);
}

// It has answered a call of that tracker, too.
TEST(WorkerSpare, ForgetsATrackerThatHasCalledItAndIsSilent) {
  WorkerScript w(false, 2, WorkerScript::Waits::kFromTheBeginning);
  (void)w.start();
  (void)w.welcome_as_spare();
  (void)w.called(5);
  (void)w.looked(5);
  EXPECT_NE(w.pass(31'000).find("wait as a spare, anew"), std::string::npos);
  wire::Envelope finished = from_tracker(10);
  finished.set_sender(901);
  finished.mutable_refused()->set_code(static_cast<std::uint32_t>(Code::kFinished));
  finished.mutable_refused()->set_reason("job j is finished");
  EXPECT_NE(w.get(finished).find("fail finished"), std::string::npos);
}

// What it would say of its host were of the moment before.
TEST(WorkerSpare, BeginsAnewWhenItIsCalledAgainWhileItLooks) {
  WorkerScript w(false, 2, WorkerScript::Waits::kFromTheBeginning);
  (void)w.start();
  (void)w.welcome_as_spare();
  EXPECT_EQ(w.called(5), "look, in generation 5\n");
  EXPECT_EQ(w.called(7), "wait as a spare, anew\n");
  EXPECT_EQ(w.looked(5), "");
  EXPECT_EQ(w.called(7), "look, in generation 7\n");
}

// Found by random_test.cc: it repeated for ever that it waits, and was a member all the time.
TEST(WorkerSpare, LeavesWhenItIsPlannedForAfterItWasToldToWaitOn) {
  WorkerScript w(false, 2, WorkerScript::Waits::kFromTheBeginning);
  (void)w.start();
  (void)w.called(5);
  (void)w.looked(5);
  (void)w.welcome_as_spare(5);
  const std::string left = w.plan(5);
  EXPECT_NE(left.find("send Leave generation 0: it was told to wait on as a spare"), std::string::npos) << left;
  EXPECT_NE(left.find("fenced closed"), std::string::npos) << left;
}

TEST(WorkerSpare, IsCalledBeforeItHasHeardThatItWaits) {
  WorkerScript w(false, 2, WorkerScript::Waits::kFromTheBeginning);
  (void)w.start();
  EXPECT_EQ(w.called(3), "wait as a spare\nlook, in generation 3\n");
}

TEST(WorkerSpare, WhoWasNotNeededHearsThatTheJobIsFinished) {
  WorkerScript w(false, 2, WorkerScript::Waits::kFromTheBeginning);
  (void)w.start();
  (void)w.welcome_as_spare();
  EXPECT_EQ(w.refused(Code::kFinished),
            "fail finished: job j is finished: this worker was a spare, and was not needed\n");
}

TEST(WorkerSpare, IsRefusedOrLeavesAsAWorkerThatJoins) {
  WorkerScript w(false, 2, WorkerScript::Waits::kFromTheBeginning);
  (void)w.start();
  (void)w.welcome_as_spare();
  EXPECT_NE(w.refused(Code::kRefused).find("fail refused: cannot wait as a spare of job j: "), std::string::npos);
  WorkerScript leaver(false, 2, WorkerScript::Waits::kFromTheBeginning);
  (void)leaver.start();
  (void)leaver.welcome_as_spare();
  EXPECT_NE(leaver.leave("SIGTERM").find("send Leave generation 0: SIGTERM\nfail closed"), std::string::npos);
}

TEST(WorkerFenced, WhomTheJobHasGivenUpIsToldApartFromWhomANewerLifeReplaces) {
  for (const bool fenced : {true, false}) {
    WorkerScript w(false, 2);
    w.member();
    EXPECT_NE(w.refused(Code::kClosed, fenced).find("stop before generation 2"), std::string::npos);
    EXPECT_EQ(w.on_stopped(2).starts_with(fenced ? "fenced closed" : "fail closed"), true);
    WorkerScript suspended(false, 2);
    suspended.member();
    (void)suspended.interrupt(2, true);
    (void)suspended.on_stopped(2);
    EXPECT_EQ(suspended.refused(Code::kClosed, fenced).starts_with(fenced ? "fenced closed" : "fail closed"), true);
  }
}

// A launcher starts the program again after these ends, and create() joins again; after the others the program has
// failed, which ends the job.
TEST(Worker, AnotherLifeFollowsEachEndForWhichTheProgramIsNotToBlame) {
  const auto joining = [](WorkerScript& w) { (void)w.start(); };
  const auto spare = [](WorkerScript& w) {
    (void)w.start();
    (void)w.welcome_as_spare();
  };
  const auto member = [](WorkerScript& w) { w.member(); };
  const auto leaving = [](WorkerScript& w) {
    w.member();
    (void)w.finalize();
  };
  const auto suspended = [](WorkerScript& w) {
    w.member();
    (void)w.interrupt(2, true);
    (void)w.on_stopped(2);
  };
  struct Case {
    const char* name;
    std::function<void(WorkerScript&)> before;
    std::function<std::string(WorkerScript&)> end;
    const char* then;
  };
  const auto stopped = [](WorkerScript& w, std::string text) { return text + w.on_stopped(2); };
  const auto unanswered = [](WorkerScript& w, const std::string&) {
    (void)w.pass(40'000);
    return w.on_stopped(2);
  };
  const std::vector<Case> cases = {
      {"silent while it waited", joining, [](auto& w) { return w.refused(Code::kClosed, true); }, "fenced closed"},
      {"its settings differ", joining, [](auto& w) { return w.refused(Code::kRefused); }, "fail refused"},
      {"it was forgotten, or another process has its id", joining, [](auto& w) { return w.refused(); }, "fail closed"},
      {"the others do not come", joining, [](auto& w) { return w.pass(30'000); }, "fail timeout"},
      {"a spare is not known", spare, [](auto& w) { return w.refused(Code::kClosed, true); }, "fenced closed"},
      {"a spare is planned for", spare, [](auto& w) { return w.plan(1); }, "fenced closed"},
      {"a member is given up", member, [&](auto& w) { return stopped(w, w.refused(Code::kClosed, true)); },
       "fenced closed"},
      {"a member is forgotten, or replaced", member, [&](auto& w) { return stopped(w, w.refused()); }, "fail closed"},
      {"nobody answers that a link is broken", member, [&](auto& w) { return unanswered(w, w.link_broken(1)); },
       "fenced peer lost"},
      {"nobody answers that a result is lost", member, [&](auto& w) { return unanswered(w, w.log_gap(1)); },
       "fenced unavailable"},
      {"nobody answers that ranks disagree", member, [&](auto& w) { return unanswered(w, w.round_failed(1)); },
       "fail desync"},
      {"ranks disagree", member, [&](auto& w) { return stopped(w, w.interrupt(2, false, Code::kDesync)); },
       "fail desync"},
      {"more is lost than there are copies", member, [&](auto& w) { return stopped(w, w.interrupt(2)); },
       "fail rolled back"},
      {"the job is lost", member, [&](auto& w) { return stopped(w, w.lost(2)); }, "fail unavailable"},
      {"who leaves is given up", leaving, [&](auto& w) { return stopped(w, w.refused(Code::kClosed, true)); },
       "fenced closed"},
      {"nobody answers to finalize", leaving, [&](auto& w) { return stopped(w, w.pass(40'000)); }, "fenced timeout"},
      {"who is interrupted is given up", suspended, [](auto& w) { return w.refused(Code::kClosed, true); },
       "fenced closed"},
      {"nobody answers after an interrupt", suspended, [](auto& w) { return w.pass(40'000); }, "fenced timeout"},
  };
  for (const Case& c : cases) {
    WorkerScript w(false, 2, WorkerScript::Waits::kIfFull);
    c.before(w);
    const std::string text = c.end(w);
    EXPECT_NE(text.find(c.then), std::string::npos) << c.name << ": " << text;
  }
}

}  // namespace
}  // namespace warren::test
