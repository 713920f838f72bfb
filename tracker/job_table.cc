#include "tracker/job_table.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <type_traits>
#include <variant>

#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"
#include "tracker/member_state.h"
#include "tracker/topology.h"

namespace warren::tracker {
namespace {

constexpr std::int64_t kFirstRetryMs = 250, kLongestRetryMs = 5000;
constexpr std::size_t kMaxWorkerKeys = 4 * limits::kMaxJobsPerTracker;
// Of jobs that were forgotten: of the largest one, all that may still speak.
constexpr std::size_t kMaxForgottenLives = 4 * std::size_t{limits::kMaxWorldSize};

// Lives that a job's routes hold: its members, those that replace them, and strangers that are being refused.
std::size_t route_limit(std::uint32_t world_size) {
  return std::size_t{4} * world_size + 64;
}
// What may wait for the journal: several answers to each of them.
std::size_t pending_limit(std::uint32_t world_size) {
  return std::size_t{16} * world_size + 1024;
}

// In the journal; no job has a name with such a character.
constexpr std::string_view kForgottenRuns =
    "\x01"
    "forgotten-runs";

// 0: no plan of it was made, or the record cannot be read.
std::uint64_t run_of(const std::string& record) {
  wire::JobRecord parsed;
  return parsed.ParseFromString(record) ? parsed.plan().run() : 0;
}

std::string forgotten_text(const std::string& job) {
  return "job " + job + " was ended by `warren forget`";
}

bool is_heartbeat_reply(const TrackerEffect& effect) {
  const auto* send = std::get_if<tracker_effect::Send>(&effect);
  return send != nullptr && send->envelope.has_heartbeat_reply();
}

}  // namespace

struct JobTable::Job {
  Job(std::string job_name, std::uint64_t its_serial, TrackerMachine its_machine)
      : name(std::move(job_name)), serial(its_serial), machine(std::move(its_machine)) {}

  const std::string name;
  const std::uint64_t serial;
  TrackerMachine machine;
  std::uint32_t world_size = 0;
  Routes routes;
  TimeMs last_message;
  std::optional<TimeMs> finished_since;
  // By worker id: since when it waits for a new run of the name, and when it was heard last.
  struct Fresh {
    Incarnation life;
    TimeMs since, heard;
  };
  std::map<std::string, Fresh> fresh;
  TimeMs sweep_at;
  std::optional<TimeMs> scheduled;  // its entry in deadlines_

  std::deque<TrackerEffect> pending;  // from a Persist that failed on; empty: nothing is held up
  int persist_tries = 0;
  std::optional<TimeMs> retry_at;
  Status trouble;
};

JobTable::JobTable(Options options) : options_(std::move(options)) {
  WARREN_CHECK(options_.journal != nullptr && options_.send, "a table has a journal and a way out");
}
JobTable::~JobTable() = default;

Result<TrackerMachine> JobTable::make_machine(const std::string& job, std::string_view persisted, TimeMs now) {
  return TrackerMachine::make({job, options_.self, plan_topology}, persisted, now);
}

Status JobTable::restore(TimeMs now) {
  auto records = options_.journal->load();
  if (!records.ok()) return records.status();
  if (const auto runs = records.value().find(std::string(kForgottenRuns)); runs != records.value().end()) {
    take_forgotten_runs(runs->second);
    records.value().erase(runs);
  }
  for (const auto& [name, bytes] : records.value()) {
    if (was_forgotten(name, run_of(bytes))) {
      // A tracker that died while it forgot it.
      if (const Status s = options_.journal->erase(name); !s.ok()) return s;
      continue;
    }
    auto machine = make_machine(name, bytes, now);
    if (!machine.ok()) {
      log(name, Severity::kError, "job_unreadable",
          "the journal's record of job " + name +
              " cannot be used, its workers are refused: " + machine.status().describe());
      unreadable_.emplace(name, machine.status());
      continue;
    }
    tell_restored(add(name, std::move(machine).value(), now), now);
  }
  return {};
}

void JobTable::tell_restored(Job& job, TimeMs now) {
  const TrackerMachine::View view = job.machine.view(now);
  job.world_size = view.world_size;
  job.routes.set_limit(route_limit(job.world_size));
  log(job.name, Severity::kInfo, "job_restored",
      "job " + job.name + " of " + std::to_string(view.world_size) + " workers was taken up again at generation " +
          std::to_string(view.generation.value) + " (" + to_string(view.state) + ")",
      {{"generation", std::to_string(view.generation.value)}});
}

JobTable::Job& JobTable::add(std::string name, TrackerMachine machine, TimeMs now) {
  auto made = std::make_unique<Job>(name, ++last_serial_, std::move(machine));
  Job& job = *made;
  jobs_.emplace(std::move(name), std::move(made));
  job.last_message = now;
  job.sweep_at = now + kSweepIntervalMs;
  reschedule(job);
  return job;
}

void JobTable::remove(Job& job) {
  if (job.scheduled) deadlines_.erase({*job.scheduled, job.name});
  jobs_.erase(jobs_.find(job.name));
}

void JobTable::reschedule(Job& job) {
  TimeMs at = job.sweep_at;
  if (const auto machine = job.machine.next_deadline()) at = std::min(at, *machine);
  if (job.retry_at) at = std::min(at, *job.retry_at);
  if (job.scheduled == at) return;
  if (job.scheduled) deadlines_.erase({*job.scheduled, job.name});
  job.scheduled = at;
  deadlines_.emplace(at, job.name);
}

std::optional<TimeMs> JobTable::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

void JobTable::on_message(const Sender& from, std::span<const std::byte> bytes, TimeMs now) {
  auto decoded = decode_envelope(bytes, Side::kWorker);
  if (!decoded.ok()) {
    on_malformed(from, decoded.status().describe(), now);
    // Who can be told is told: another version of Warren, or a program that has gone wrong.
    wire::Envelope loose;
    if (bytes.size() <= kMaxWorkerMessageBytes && loose.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) &&
        loose.sender() != 0 && validate_name("job", loose.job(), limits::kMaxJobNameBytes).ok()) {
      refuse(from, loose.job(), loose.sender(), decoded.status());
    }
    return;
  }
  wire::Envelope& envelope = decoded.value();
  if (!has_the_secret(from, envelope.job())) {
    ++counts_.wrong_secrets;
    if (const auto swallowed = wrong_secret_log_.take(now)) {
      log(envelope.job(), Severity::kWarning, "wrong_secret",
          "a connection from " + std::string(from.address) + " spoke for job " + envelope.job() +
              " without that job's secret",
          {{"address", std::string(from.address)}, {"swallowed", std::to_string(*swallowed)}});
    }
    return refuse(from, envelope.job(), envelope.sender(),
                  Status(Code::kRefused, "this secret is not that of job " + envelope.job() +
                                             "; use the file that was made for it, or for all jobs of this tracker"));
  }
  if (envelope.has_forget()) return on_forget(from, envelope, now);
  if (tell_finished(from, envelope)) return;
  if (forgotten_lives_.contains({envelope.job(), Incarnation(envelope.sender())})) {
    // Otherwise its like would make up the job again, from what they know.
    return refuse(from, envelope.job(), envelope.sender(), Status(Code::kClosed, forgotten_text(envelope.job())));
  }
  if (envelope.has_known() && was_forgotten(envelope.job(), envelope.known().plan().run())) {
    return refuse(from, envelope.job(), envelope.sender(), Status(Code::kClosed, forgotten_text(envelope.job())));
  }
  leave_out_forgotten(envelope);
  if (const auto found = jobs_.find(envelope.job()); found != jobs_.end()) {
    switch (look_for_new_run(*found->second, envelope, now)) {
      case NewRun::kNone: break;
      case NewRun::kWaits: return tell_waiting(from, *found->second, envelope);  // it asks again
      case NewRun::kBegins:
        remember_finished(*found->second);
        if (!evict(*found->second, "it finished, and a new run of its name begins")) return;
    }
  }
  Job* job = find_or_create(from, envelope, now);
  if (job == nullptr) return;
  // The largest that was asked for: who came first may have left, and its settings with it.
  const std::uint32_t world_size = envelope.has_join()    ? envelope.join().settings().world_size()
                                   : envelope.has_known() ? envelope.known().plan().settings().world_size()
                                                          : 0;
  if (world_size > job->world_size) {
    job->world_size = world_size;
    job->routes.set_limit(route_limit(job->world_size));
  }
  job->last_message = now;
  job->routes.learn(Incarnation(envelope.sender()), from.connection);
  effects_.clear();
  job->machine.on_message(envelope, now, effects_);
  carry_out(*job, effects_, now);
}

void JobTable::on_malformed(const Sender& from, std::string_view why, TimeMs now) {
  ++counts_.bad_messages;
  if (const auto swallowed = bad_message_log_.take(now)) {
    log("", Severity::kWarning, "bad_message",
        "a message from " + std::string(from.address) + " was refused: " + std::string(why),
        {{"address", std::string(from.address)}, {"swallowed", std::to_string(*swallowed)}});
  }
}

void JobTable::on_failed_handshake(std::string_view address, TimeMs now) {
  ++counts_.failed_handshakes;
  if (const auto swallowed = failed_handshake_log_.take(now)) {
    const std::string from(address);
    log("", Severity::kWarning, "stranger_refused",
        "a connection was refused: its secret file was made for another tracker, or it does not greet as workers do" +
            (from.empty() ? "" : "; it came from " + from),
        {{"address", from}, {"swallowed", std::to_string(*swallowed)}});
  }
}

// Also of a job whose record cannot be read, or that was set aside.
void JobTable::on_forget(const Sender& from, const wire::Envelope& envelope, TimeMs now) {
  const std::string& name = envelope.job();
  const auto no = [&](const Status& why) { refuse(from, name, envelope.sender(), why); };
  const auto found = jobs_.find(name);
  Job* const job = found == jobs_.end() ? nullptr : found->second.get();
  const auto record = options_.journal->get(name);
  if (!record.ok()) return no(record.status());
  if (job == nullptr && !record.value()) {
    return no(Status(Code::kInvalidArgument, "this tracker knows no job " + name + ": its name is free"));
  }
  if (job != nullptr && !envelope.forget().force()) {
    if (const Status may = job->machine.may_forget(now); !may.ok()) return no(may);
  }
  // First of all: what is told must stay true if this tracker dies.
  Status s = note_forgotten_run(name, run_of(record.value().value_or("")));
  if (s.ok()) s = options_.journal->erase(name);
  if (!s.ok()) {
    ++counts_.persist_failures;
    return no(s.because_of_this(Code::kUnavailable, "the record of job " + name + " cannot be removed"));
  }
  log(name, Severity::kWarning, "job_forgotten",
      "job " + name + " was forgotten, as somebody at " + std::string(from.address) + " who has its secret asked for" +
          (envelope.forget().force() ? ", whether it lives or not" : ""),
      {{"address", std::string(from.address)}});
  unreadable_.erase(name);
  if (job != nullptr) {
    remember_finished(*job);
    remember_lives(*job, now);
    effects_.clear();
    job->machine.forget(forgotten_text(name), effects_);
    // What waits for the journal was not announced, and is not.
    for (const TrackerEffect& effect : effects_) {
      if (const auto* answer = std::get_if<tracker_effect::Send>(&effect)) send(*job, *answer);
    }
    remove(*job);
  }
  wire::Envelope reply = reply_to(name, envelope.sender());
  reply.mutable_forgotten();
  if (options_.send(from.connection, encode(reply, Side::kTracker)) != SendOutcome::kSent) ++counts_.unsent;
}

JobTable::NewRun JobTable::look_for_new_run(Job& job, const wire::Envelope& envelope, TimeMs now) {
  if (job.machine.state() != TrackerMachine::State::kFinished || !job.pending.empty()) return NewRun::kNone;
  if (!envelope.has_join() || envelope.join().attempt() != 0 || envelope.join().spare()) return NewRun::kNone;
  const wire::JobSettings& settings = envelope.join().settings();
  const std::int64_t patience_ms = kNewRunRoundTimeouts * static_cast<std::int64_t>(settings.round_timeout_ms());
  std::erase_if(job.fresh, [&](const auto& entry) { return now - entry.second.heard >= patience_ms; });
  if (job.fresh.size() >= limits::kMaxWorldSize) return NewRun::kNone;
  const Incarnation life(envelope.sender());
  Job::Fresh& fresh = job.fresh.try_emplace(envelope.join().worker_id(), Job::Fresh{life, now, now}).first->second;
  if (fresh.life != life) fresh = {life, now, now};
  fresh.heard = now;
  // Of all workers, also where a job may go on with one: who was lost in finalize, and comes back alone, is no new run.
  if (2 * job.fresh.size() > settings.world_size() && job.machine.may_forget(now).ok()) return NewRun::kBegins;
  return now - fresh.since < patience_ms ? NewRun::kWaits : NewRun::kNone;
}

// As of a job that gathers, so that it does not take this tracker for silent.
void JobTable::tell_waiting(const Sender& from, const Job& job, const wire::Envelope& join) {
  wire::Envelope reply = reply_to(join.job(), join.sender());
  reply.set_term(std::max<std::uint64_t>(1, join.term()));
  reply.mutable_welcome()->set_joined(static_cast<std::uint32_t>(job.fresh.size()));
  reply.mutable_welcome()->set_world_size(join.join().settings().world_size());
  if (options_.send(from.connection, encode(reply, Side::kTracker)) != SendOutcome::kSent) ++counts_.unsent;
}

bool JobTable::tell_finished(const Sender& from, const wire::Envelope& envelope) {
  const auto found = finished_lives_.find({envelope.job(), Incarnation(envelope.sender())});
  if (found == finished_lives_.end()) return false;
  wire::Envelope reply = reply_to(envelope.job(), envelope.sender());
  reply.set_term(std::max<std::uint64_t>(1, envelope.term()));  // it obeyed this tracker, and has that term from here
  reply.mutable_finished()->set_generation(found->second.value);
  if (options_.send(from.connection, encode(reply, Side::kTracker)) != SendOutcome::kSent) ++counts_.unsent;
  return true;
}

void JobTable::remember_finished(const Job& job) {
  const Generation generation = job.machine.view(job.last_message).generation;
  for (const Incarnation life : job.machine.finished_lives()) {
    if (!finished_lives_.emplace(std::pair(job.name, life), generation).second) continue;
    finished_order_.emplace_back(job.name, life);
    if (finished_order_.size() <= kMaxForgottenLives) continue;
    finished_lives_.erase(finished_order_.front());
    finished_order_.pop_front();
  }
}

void JobTable::remember_lives(const Job& job, TimeMs now) {
  std::vector<Incarnation> lives(job.routes.all().begin(), job.routes.all().end());
  for (const TrackerMachine::MemberView& m : job.machine.view(now).members) lives.push_back(m.incarnation);
  for (const Incarnation life : lives) {
    // Under the job's name: who has its secret may have spoken in the name of any life.
    if (life.value == 0 || !forgotten_lives_.emplace(job.name, life).second) continue;
    forgotten_order_.emplace_back(job.name, life);
    if (forgotten_order_.size() <= kMaxForgottenLives) continue;
    forgotten_lives_.erase(forgotten_order_.front());
    forgotten_order_.pop_front();
  }
}

bool JobTable::was_forgotten(const std::string& job, std::uint64_t run) const {
  return run != 0 && std::ranges::find(forgotten_runs_, std::pair(job, run)) != forgotten_runs_.end();
}

// A line each: the run in 16 hex digits, a space, the job.
void JobTable::take_forgotten_runs(const std::string& text) {
  constexpr std::size_t kJobAt = 17;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line) && forgotten_runs_.size() < kMostForgottenRuns;) {
    if (line.size() <= kJobAt) continue;
    forgotten_runs_.emplace_back(line.substr(kJobAt), std::strtoull(line.c_str(), nullptr, 16));
  }
}

Status JobTable::note_forgotten_run(const std::string& job, std::uint64_t run) {
  if (run == 0 || was_forgotten(job, run)) return {};
  auto runs = forgotten_runs_;
  runs.emplace_back(job, run);
  if (runs.size() > kMostForgottenRuns) runs.pop_front();
  std::string text;
  for (const auto& [name, its_run] : runs) {
    char hex[18];
    std::snprintf(hex, sizeof hex, "%016llx ", static_cast<unsigned long long>(its_run));
    text += hex + name + "\n";
  }
  if (Status s = options_.journal->put(kForgottenRuns, text); !s.ok()) return s;
  forgotten_runs_ = std::move(runs);
  return {};
}

void JobTable::leave_out_forgotten(wire::Envelope& envelope) {
  if (!envelope.has_join()) return;
  wire::Join& join = *envelope.mutable_join();
  const std::string& job = envelope.job();
  if (was_forgotten(job, join.followed().run())) join.clear_followed();
  if (was_forgotten(job, join.logged().run())) join.clear_logged();
  if (!was_forgotten(job, join.held().run())) return;
  tell_left_out(job, Incarnation(envelope.sender()), join);
  join.clear_held();
}

void JobTable::tell_left_out(const std::string& job, Incarnation life, const wire::Join& join) {
  // A full set is begun anew: the warning comes twice then.
  if (told_left_out_.size() >= kMaxForgottenLives) told_left_out_.clear();
  if (!told_left_out_.emplace(job, life).second) return;
  const std::string worker = "worker " + join.worker_id() + " on host " + join.host_id();
  const std::string run = " what a run of job " + job + " has left that was forgotten by `warren forget`";
  log(job, Severity::kWarning, "forgotten_run_left_out",
      join.held().mirrored() ? "the mirror of checkpoints that " + worker + " reads holds" + run +
                                   ": it is not used, and stays in the mirror until you remove it"
                             : worker + " has on disk" + run + ": it is not used, and the worker puts it aside",
      {{"worker", join.worker_id()}});
}

bool JobTable::has_the_secret(const Sender& from, const std::string& job) {
  if (!options_.secret) return true;
  auto known = worker_keys_.find(job);
  if (known == worker_keys_.end()) {
    const auto credentials = options_.secret->for_job(job);
    if (!credentials.ok()) return false;
    // Names cost nothing to make up: a full cache is begun anew.
    if (worker_keys_.size() >= kMaxWorkerKeys) worker_keys_.clear();
    known = worker_keys_.emplace(job, credentials.value().worker.public_z85).first;
  }
  return known->second == from.key_z85;
}

JobTable::Job* JobTable::find_or_create(const Sender& from, const wire::Envelope& envelope, TimeMs now) {
  const std::string& name = envelope.job();
  if (const auto found = jobs_.find(name); found != jobs_.end()) return found->second.get();
  const auto no = [&](const Status& why) {
    refuse(from, name, envelope.sender(), why);
    return nullptr;
  };
  if (const auto bad = unreadable_.find(name); bad != unreadable_.end()) return no(bad->second);
  const bool ends = envelope.has_stopped() || (envelope.has_leave() && !envelope.leave().finalize());
  if (ends) {
    return no(Status(Code::kClosed, "this tracker does not know job " + name +
                                        ": the job ended long ago, or the tracker was started on another journal"));
  }
  const Room room = jobs_.size() < limits::kMaxJobsPerTracker ? Room::kMade : make_room(now);
  // It asks again.
  if (room == Room::kSoon) return nullptr;
  if (room == Room::kNone) {
    return no(Status(Code::kExhausted, "this tracker serves " + std::to_string(limits::kMaxJobsPerTracker) +
                                           " jobs already, which is its limit: wait for one to end, or start "
                                           "another tracker"));
  }
  auto record = options_.journal->get(name);
  if (!record.ok()) return no(record.status());
  auto machine = make_machine(name, record.value().value_or(""), now);
  if (!machine.ok()) return no(machine.status());
  Job& job = add(name, std::move(machine).value(), now);
  if (record.value()) {
    tell_restored(job, now);
    return &job;
  }
  // Otherwise its members may know what the journal does not: the machine asks them, and says so.
  if (envelope.has_join()) {
    log(name, Severity::kInfo, "job_created",
        "job " + name + " was created by worker " + envelope.join().worker_id() + " with world size " +
            std::to_string(envelope.join().settings().world_size()),
        {{"worker", envelope.join().worker_id()}});
  }
  return &job;
}

void JobTable::on_tick(TimeMs now) {
  // One turn for each job that is due, so that a job that is due again at once cannot keep the others waiting.
  std::vector<std::string> due;
  for (auto it = deadlines_.begin(); it != deadlines_.end() && it->first <= now; ++it) due.emplace_back(it->second);
  for (const std::string& name : due) tick(*jobs_.find(name)->second, now);
}

void JobTable::tick(Job& job, TimeMs now) {
  if (job.retry_at && now >= *job.retry_at) {
    job.retry_at.reset();
    drain(job, now);
    if (job.persist_tries >= kPersistTries) return give_up(job);
  }
  if (now >= job.sweep_at) {
    job.sweep_at = now + kSweepIntervalMs;
    if (sweep(job, now)) return;
  }
  effects_.clear();
  job.machine.on_tick(now, effects_);
  carry_out(job, effects_, now);
}

void JobTable::carry_out(Job& job, std::vector<TrackerEffect>& effects, TimeMs now) {
  const bool held_up = !job.pending.empty();
  for (TrackerEffect& effect : effects) {
    // A reply to a heartbeat says only that the tracker lives, and the next one says it again.
    if (held_up && is_heartbeat_reply(effect)) continue;
    job.pending.push_back(std::move(effect));
  }
  if (!held_up) drain(job, now);
  if (!job.pending.empty() && job.pending.size() > pending_limit(job.world_size)) return give_up(job);
  reschedule(job);
}

void JobTable::drain(Job& job, TimeMs now) {
  while (!job.pending.empty()) {
    Status persisted;
    std::visit(
        [&](auto& effect) {
          using Effect = std::decay_t<decltype(effect)>;
          if constexpr (std::is_same_v<Effect, tracker_effect::Persist>) {
            persisted = options_.journal->put(job.name, effect.bytes);
          } else if constexpr (std::is_same_v<Effect, tracker_effect::Forget>) {
            // It stands in nobody's way: the sweep that removes the job tries again.
            if (const Status s = options_.journal->erase(job.name); !s.ok()) {
              ++counts_.persist_failures;
              log(job.name, Severity::kError, "forget_failed", s.describe());
            }
          } else if constexpr (std::is_same_v<Effect, tracker_effect::Send>) {
            send(job, effect);
          } else if constexpr (std::is_same_v<Effect, tracker_effect::Drop>) {
            job.routes.forget(effect.who);
          } else {
            static_assert(std::is_same_v<Effect, tracker_effect::Log>);
            if (options_.sink) options_.sink(job.name, effect.event);
          }
        },
        job.pending.front());
    if (!persisted.ok()) return on_persist_failed(job, persisted, now);
    if (std::holds_alternative<tracker_effect::Persist>(job.pending.front()) && job.persist_tries > 0) {
      log(job.name, Severity::kInfo, "persist_recovered",
          "the journal takes records of job " + job.name + " again, after " + std::to_string(job.persist_tries) +
              " failures");
      job.persist_tries = 0;
      job.trouble = {};
    }
    job.pending.pop_front();
  }
}

void JobTable::on_persist_failed(Job& job, const Status& why, TimeMs now) {
  ++counts_.persist_failures;
  const std::int64_t wait_ms = std::min(kLongestRetryMs, kFirstRetryMs << std::min(job.persist_tries, 10));
  ++job.persist_tries;
  job.trouble = why;
  job.retry_at = now + wait_ms;
  log(job.name, Severity::kError, "persist_failed",
      "nothing is announced to job " + job.name + " until its record is stored; failure " +
          std::to_string(job.persist_tries) + " of " + std::to_string(kPersistTries) + ", tried again in " +
          std::to_string(wait_ms) + " ms: " + why.describe());
}

void JobTable::give_up(Job& job) {
  const Status why =
      (job.trouble.ok() ? Status(Code::kExhausted, "too many answers wait for the journal") : job.trouble)
          .because_of_this(Code::kUnavailable, "the tracker cannot store what it decides for job " + job.name +
                                                   "; make room on its disk and start again");
  log(job.name, Severity::kError, "persist_given_up",
      "job " + job.name + " is dropped and its workers are refused: " + why.describe());
  for (const Incarnation who : job.routes.all()) {
    wire::Envelope refusal = refusal_to(job.name, who.value, why);
    refusal.mutable_refused()->set_fenced(true);
    send_refusal(*job.routes.find(who), refusal);
  }
  remove(job);
}

bool JobTable::sweep(Job& job, TimeMs now) {
  std::string why;
  if (job.machine.state() == TrackerMachine::State::kFinished) {
    if (!job.finished_since) job.finished_since = now;
    if (now - *job.finished_since >= kFinishedLingerMs) why = "it finished";
  } else if (now - job.last_message >= kFinishedLingerMs) {
    const TrackerMachine::View view = job.machine.view(now);
    const bool begun = view.generation.value != 0;
    const bool anybody = std::ranges::any_of(view.members, [](const auto& m) { return m.alive; });
    if (anybody || (begun && now - job.last_message < kLonelyMs)) return false;
    why = begun ? "nobody has been there for an hour" : "it never began";
    if (view.replicas != 0 && begun && job.pending.empty()) {
      // Its workers' disks may hold checkpoints: what is committed, and which timelines are used up, stays known.
      log(job.name, Severity::kInfo, "job_set_aside",
          "job " + job.name + " was set aside: " + why +
              "; its record stays in the journal for workers that come back");
      remove(job);
      return true;
    }
  }
  if (why.empty() || !job.pending.empty()) return false;
  return evict(job, why);
}

bool JobTable::evict(Job& job, const std::string& why) {
  if (const Status s = options_.journal->erase(job.name); !s.ok()) {
    ++counts_.persist_failures;
    log(job.name, Severity::kError, "forget_failed", s.describe());
    return false;
  }
  log(job.name, Severity::kInfo, "job_evicted", "job " + job.name + " was forgotten: " + why);
  remove(job);
  return true;
}

JobTable::Room JobTable::make_room(TimeMs now) {
  Job* oldest = nullptr;
  Room otherwise = Room::kNone;
  for (const auto& [name, job] : jobs_) {
    if (job->machine.state() != TrackerMachine::State::kFinished || !job->pending.empty()) continue;
    if (!job->machine.may_forget(now).ok()) {
      otherwise = Room::kSoon;
      continue;
    }
    if (oldest == nullptr || job->last_message < oldest->last_message) oldest = job.get();
  }
  if (oldest == nullptr) return otherwise;
  // Its workers may not have heard of that yet.
  remember_finished(*oldest);
  return evict(*oldest, "it finished, and another job needs its place") ? Room::kMade : otherwise;
}

void JobTable::send(Job& job, const tracker_effect::Send& effect) {
  const std::string* connection = job.routes.find(effect.to);
  if (connection == nullptr) {
    ++counts_.unsent;
    return;
  }
  switch (options_.send(*connection, encode(effect))) {
    case SendOutcome::kSent: return;
    case SendOutcome::kFull: ++counts_.unsent; return;
    case SendOutcome::kGone:
      ++counts_.unsent;
      job.routes.forget(effect.to);
      return;
  }
}

wire::Envelope JobTable::reply_to(const std::string& job, std::uint64_t receiver) const {
  wire::Envelope envelope;
  envelope.set_protocol(kProtocolVersion);
  envelope.set_job(job);
  envelope.set_sender(options_.self.value);
  envelope.set_receiver(receiver);
  return envelope;
}

wire::Envelope JobTable::refusal_to(const std::string& job, std::uint64_t receiver, const Status& why) const {
  wire::Envelope envelope = reply_to(job, receiver);
  envelope.mutable_refused()->set_code(static_cast<std::uint32_t>(why.code()));
  envelope.mutable_refused()->set_reason(wire_text(why.describe()));
  return envelope;
}

void JobTable::send_refusal(std::string_view connection, const wire::Envelope& refusal) {
  ++counts_.refused_by_table;
  if (options_.send(connection, encode(refusal, Side::kTracker)) != SendOutcome::kSent) ++counts_.unsent;
}

void JobTable::refuse(const Sender& from, const std::string& job, std::uint64_t receiver, const Status& why) {
  send_refusal(from.connection, refusal_to(job, receiver, why));
}

std::vector<JobStatus> JobTable::status(TimeMs now) const {
  std::vector<JobStatus> all;
  all.reserve(jobs_.size());
  for (const auto& [name, job] : jobs_) {
    all.push_back({name, job->machine.view(now), job->trouble.describe(), job->serial});
  }
  return all;
}

std::size_t JobTable::routes() const {
  std::size_t n = 0;
  for (const auto& [name, job] : jobs_) n += job->routes.size();
  return n;
}

void JobTable::log(std::string_view job, Severity severity, std::string name, std::string text,
                   std::vector<std::pair<std::string, std::string>> fields) {
  if (options_.sink) options_.sink(job, {severity, std::move(name), std::move(text), std::move(fields)});
}

}  // namespace warren::tracker
