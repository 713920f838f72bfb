#include "chaos/sim/sim_tracker.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

#include "recovery/base/text.h"
#include "recovery/wire/codec.h"
#include "tracker/topology.h"

namespace warren::chaos {
namespace {

constexpr Micros kRetryWriteUs = 250'000;
constexpr std::size_t kMostPending = 1 << 16;
constexpr std::size_t kMostRecords = 16;

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string describe_plan(const wire::Plan& plan) {
  std::string text = "Plan " + std::to_string(plan.generation()) + " of timeline " + std::to_string(plan.timeline()) +
                     describe_positions(plan.frontier());
  for (const wire::Setup& s : plan.setups()) {
    text += " set-up " + hex(s.name()) + "@" + std::to_string(s.timeline()) + (s.done() ? " done" : "");
  }
  return text;
}

std::string body_of(const wire::Envelope& e) {
  if (e.has_plan()) return describe_plan(e.plan());
  if (e.has_interrupt())
    return "Interrupt " + std::to_string(e.interrupt().generation()) + ": " + e.interrupt().reason();
  if (e.has_refused()) return "Refused: " + e.refused().reason();
  if (e.has_welcome()) return "Welcome " + std::to_string(e.welcome().joined());
  if (e.has_finished()) return "Finished";
  if (e.has_loaded()) return "Loaded " + std::to_string(e.loaded().version());
  if (e.has_committed()) return "Committed " + std::to_string(e.committed().version());
  return "";
}

}  // namespace

SimTracker::SimTracker(World& world, Judge& judge, Links links, std::string job, std::int64_t round_timeout_ms)
    : world_(world),
      judge_(judge),
      links_(std::move(links)),
      job_(std::move(job)),
      round_timeout_ms_(round_timeout_ms),
      counts_(TrackerMachine::transition_names().size(), 0) {}

SimTracker::~SimTracker() = default;

const std::string* SimTracker::durable() const {
  const auto it = disk_->durable.find(job_);
  return it == disk_->durable.end() ? nullptr : &it->second;
}

bool SimTracker::has_plan() const {
  wire::JobRecord record;
  return durable() != nullptr && record.ParseFromString(*durable()) && record.has_plan() && !record.finished();
}

bool SimTracker::may_resume() const {
  wire::JobRecord record;
  return has_plan() && record.ParseFromString(*durable()) && (!record.has_interrupt() || record.interrupt().resume());
}

void SimTracker::later(Micros delay_us, std::function<void()> what) {
  world_.after(delay_us, [this, life = life_, what = std::move(what)]() mutable {
    if (!running_ || life != life_) return;
    if (world_.now_us() < stands_still_until_us_) {
      return later(stands_still_until_us_ - world_.now_us(), std::move(what));
    }
    what();
  });
}

void SimTracker::start() {
  if (running_) return;
  running_ = true;
  ++life_;
  do {
    self_ = Incarnation(world_.random.next());
  } while (self_.value == 0);
  journal_.emplace(disk_);
  stands_still_until_us_ = 0;
  armed_us_.reset();
  retrying_ = false;
  // A write that failed may have happened all the same, and the tracker died before it tried again.
  if (durable() != nullptr) links_.stored(*durable());
  judge_.tracker_started(durable());
  if (world_.keeps_transcript()) world_.tell("tracker starts");
  if (durable() == nullptr) return;
  auto machine =
      TrackerMachine::make({job_, self_, tracker::plan_topology, kMostPlanBytesOut}, *durable(), world_.now());
  if (!machine.ok()) return world_.violated("I5", "the journal cannot be read: " + machine.status().describe());
  machine_.emplace(std::move(machine).value());
  arm();
}

void SimTracker::add_counts() {
  if (!machine_) return;
  const auto counts = machine_->transition_counts();
  for (std::size_t i = 0; i < counts.size(); ++i) counts_[i] += counts[i];
}

std::vector<std::uint64_t> SimTracker::transition_counts() const {
  std::vector<std::uint64_t> all = counts_;
  if (machine_) {
    const auto counts = machine_->transition_counts();
    for (std::size_t i = 0; i < counts.size(); ++i) all[i] += counts[i];
  }
  return all;
}

void SimTracker::crash() {
  if (!running_) return;
  if (world_.keeps_transcript()) world_.tell("tracker dies");
  running_ = false;
  ++life_;
  add_counts();
  machine_.reset();
  invariants_ = {};
  pending_.clear();
  routes_.clear();
  links_.connections_lost();
  using Crash = storage::FakeDisk::Crash;
  disk_->crash(world_.random.chance(0.5) ? Crash::kLosesUnconfirmed : Crash::kKeepsUnconfirmed);
  disk_->fail_writes = 0;
}

void SimTracker::restore(std::size_t record) {
  records_.resize(record + 1);
  disk_->durable[job_] = records_.back();
}

void SimTracker::stand_still(Micros for_us) {
  stands_still_until_us_ = std::max(stands_still_until_us_, world_.now_us() + for_us);
}

void SimTracker::receive(std::size_t life, const std::string& bytes) {
  if (!running_) return;
  if (world_.now_us() < stands_still_until_us_) {
    return later(stands_still_until_us_ - world_.now_us(), [this, life, bytes] { receive(life, bytes); });
  }
  auto decoded = decode_envelope(as_bytes(bytes), Side::kWorker);
  if (!decoded.ok()) return;
  const wire::Envelope& e = decoded.value();
  if (!machine_) {
    if (e.has_stopped() || (e.has_leave() && !e.leave().finalize())) {
      wire::Envelope no;
      no.set_protocol(kProtocolVersion);
      no.set_job(e.job());
      no.set_sender(self_.value);
      no.set_receiver(e.sender());
      no.mutable_refused()->set_code(static_cast<std::uint32_t>(Code::kClosed));
      no.mutable_refused()->set_reason("this tracker does not know job " + e.job());
      return links_.send(life, encode(no, Side::kTracker));
    }
    auto machine = TrackerMachine::make({job_, self_, tracker::plan_topology, kMostPlanBytesOut}, "", world_.now());
    machine_.emplace(std::move(machine).value());
  }
  links_.check_claim(e);
  if (world_.failed()) return;
  routes_[Incarnation(e.sender())] = life;
  if (world_.is(Mutant::forgets_whole_results) && decoded.value().has_report()) {
    for (wire::Position& p : *decoded.value().mutable_report()->mutable_positions()) p.clear_total_bytes();
  }
  if (world_.is(Mutant::compares_no_states) && decoded.value().has_vote())
    decoded.value().mutable_vote()->clear_state();
  // What is too much to say is not said: then it must not be served either.
  if (world_.is(Mutant::serves_what_was_begun) && decoded.value().has_leave()) {
    for (wire::Position& p : *decoded.value().mutable_leave()->mutable_logged()->mutable_positions()) {
      p.clear_total_bytes();
    }
  }
  if (world_.is(Mutant::server_not_heard) && decoded.value().leave().has_logged()) {
    decoded.value().mutable_leave()->mutable_logged()->clear_positions();
    decoded.value().mutable_leave()->clear_setups();
  }
  std::vector<TrackerEffect> effects;
  machine_->on_message(e, world_.now(), effects);
  after_event(effects);
  if (world_.is(Mutant::commits_without_one) || world_.is(Mutant::keeps_vote_after_load)) break_votes(e);
}

// Votes that nobody has given, or that are void.
void SimTracker::break_votes(const wire::Envelope& said) {
  const wire::Plan& plan = judge_.plan();
  const auto member = std::find_if(plan.members().begin(), plan.members().end(),
                                   [&](const wire::Member& m) { return m.incarnation() == said.sender(); });
  if (member == plan.members().end() || !machine_ || !running_) return;
  std::vector<TrackerEffect> effects;
  const auto forge = [&](wire::Envelope vote, std::uint64_t sender) {
    vote.set_sender(sender);
    vote.mutable_vote()->set_generation(plan.generation());
    machine_->on_message(vote, world_.now(), effects);
  };
  if (said.has_load() && world_.is(Mutant::keeps_vote_after_load) && votes_.contains(member->rank())) {
    forge(votes_[member->rank()], said.sender());
  }
  if (said.has_vote()) {
    votes_[member->rank()] = said;
    if (world_.is(Mutant::commits_without_one) && plan.members_size() > 1 &&
        machine_->view(world_.now()).votes + 1 == static_cast<std::size_t>(plan.members_size())) {
      for (const wire::Member& m : plan.members()) forge(said, m.incarnation());
    }
  }
  after_event(effects);
}

void SimTracker::arm() {
  if (!machine_) return;
  const auto deadline = machine_->next_deadline();
  if (!deadline) return;
  const Micros at = std::max(deadline->value * 1000, world_.now_us());
  if (armed_us_ && *armed_us_ <= at) return;
  armed_us_ = at;
  later(at - world_.now_us(), [this, timer = ++timer_] {
    if (timer == timer_) on_timer();
  });
}

void SimTracker::on_timer() {
  armed_us_.reset();
  if (!machine_) return;
  std::vector<TrackerEffect> effects;
  machine_->on_tick(world_.now(), effects);
  after_event(effects);
}

void SimTracker::after_event(std::vector<TrackerEffect>& effects) {
  invariants_.look(*machine_);
  if (world_.is(Mutant::announce_before_persist)) {
    std::stable_partition(effects.begin(), effects.end(),
                          [](const TrackerEffect& e) { return !std::holds_alternative<tracker_effect::Persist>(e); });
  }
  for (TrackerEffect& effect : effects) pending_.push_back(std::move(effect));
  if (pending_.size() > kMostPending) return world_.violated("I8", "the tracker's effects pile up");
  drain();
  if (running_) arm();
}

void SimTracker::drain() {
  if (retrying_) return;
  while (!pending_.empty() && running_ && !world_.failed()) {
    if (crash_before_effect_ == effects_ || world_.strikes(Fault::tracker_crash_between_effects)) {
      crash_before_effect_.reset();
      crash();
      links_.died();
      // Its launcher starts it again, whatever else happens.
      const Micros drawn_us = world_.random.between(1000, 1500 * round_timeout_ms_);
      world_.after(std::exchange(away_us_, std::nullopt).value_or(drawn_us), [this] { start(); });
      return;
    }
    if (!carry_out(pending_.front())) {
      retrying_ = true;
      return later(kRetryWriteUs, [this] {
        retrying_ = false;
        drain();
      });
    }
    ++effects_;
    pending_.pop_front();
  }
}

bool SimTracker::write(std::optional<std::string> record) {
  if (world_.is(Mutant::journal_lies) && world_.random.chance(0.5)) {
    disk_->unconfirmed[job_] = std::move(record);
    return true;
  }
  return (record ? journal_->put(job_, *record) : journal_->erase(job_)).ok();
}

bool SimTracker::carry_out(const TrackerEffect& effect) {
  return std::visit(
      [this](const auto& e) {
        using E = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<E, tracker_effect::Persist>) {
          if (!write(e.bytes)) return false;
          records_.push_back(e.bytes);
          if (records_.size() > kMostRecords) records_.pop_front();
          links_.stored(e.bytes);
        } else if constexpr (std::is_same_v<E, tracker_effect::Forget>) {
          // A try that fails may have happened all the same.
          judge_.job_forgotten();
          if (!write(std::nullopt)) return false;
          forgotten_ = true;
        } else if constexpr (std::is_same_v<E, tracker_effect::Send>) {
          const wire::Envelope envelope = envelope_of(e);
          judge_.announced(envelope, durable());
          const std::string bytes = encode(e);
          const auto route = routes_.find(e.to);
          if (world_.keeps_transcript() && !envelope.has_heartbeat_reply()) {
            world_.tell("tracker → " + (route == routes_.end() ? "nowhere" : "life " + std::to_string(route->second)) +
                        ": " + body_of(envelope));
          }
          if (route != routes_.end()) links_.send(route->second, bytes);
        } else if constexpr (std::is_same_v<E, tracker_effect::Drop>) {
          routes_.erase(e.who);
        } else {
          judge_.sign();
          judge_.heard(e.event);
          if (world_.keeps_transcript()) world_.tell("tracker: " + e.event.name + ": " + e.event.text);
        }
        return true;
      },
      effect);
}

}  // namespace warren::chaos
