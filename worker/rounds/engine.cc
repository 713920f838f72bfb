#include "worker/rounds/engine_parts.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "recovery/base/text.h"
#include "worker/rounds/logged.h"
#include "worker/rounds/progress.h"
#include "worker/schedule/copies.h"

namespace warren::worker {
namespace {

constexpr std::size_t kMostKeptInput = std::size_t{64} << 20;  // between two rounds

// Bytes of the larger of one rank's two buffers: what the choice of an algorithm goes by.
std::uint64_t larger_buffer(const CallSpec& spec, std::uint64_t size) {
  const std::uint64_t width = element_bytes(spec);
  switch (spec.collective) {
    case Collective::kAllgather:
    case Collective::kReduceScatter:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll: return spec.count * size * width;
    case Collective::kAllgatherv:
    case Collective::kReduceScatterv: {
      std::uint64_t total = 0;
      for (const std::uint64_t c : spec.counts) total += c;
      return total * width;
    }
    default: return spec.count * width;
  }
}

// Its one buffer is its input.
bool is_root_of_broadcast(const CallSpec& spec, std::int32_t rank) {
  return spec.collective == Collective::kBroadcast && spec.root == rank;
}

std::string name_of(const Call& call) {
  return call.setup.empty() ? to_string(call.round) : "set-up round \"" + call.setup + "\"";
}

}  // namespace

void Engine::install(const Plan& plan) {
  WARREN_CHECK(!open_ && broken_.ok() && plan.generation > plan_.generation, "one generation after the other (I6)");
  WARREN_CHECK((plan.replicas == 0) == (recall_ == nullptr), "what is logged has a log");
  plan_ = plan;
  known_.install();
  board_.open_links(plan.world_size);
  if (recall_ != nullptr) recall_->log().belong(plan.run);
  if (!installed_) {
    installed_ = true;
    const Status status = add_group(kWorldGroup, plan.present, 0);
    WARREN_CHECK(status.ok(), "the first group fits");
  }
  for (auto& [id, group] : groups_) {
    if (plan.shrinks) reseat(*group);
    place(*group);
  }
  if (exchange_ != nullptr)
    exchange_->open(plan.generation, plan.self.value, static_cast<std::int32_t>(plan.world_size));
}

void Engine::open() {
  WARREN_CHECK(installed_ && !open_, "a generation is opened once");
  if (stopped() || failed_) return;
  open_ = true;
  for (auto& [id, group] : groups_) {
    group->points.open(plan_.generation, plan_.timeline, plan_.resumes);
    if (group->active != nullptr) {
      begin(*group);
    } else {
      start_next(*group);
    }
    check(*group);
  }
  for (auto& [id, group] : departed_) {
    group->points.open(plan_.generation, plan_.timeline, plan_.resumes);
    check(*group);
  }
  begin_question();
}

WorkerMachine::Standing Engine::suspend() {
  if (!stopped()) transport_.close_all();
  if (exchange_ != nullptr) exchange_->close();
  open_ = false;
  if (!failure_ || !failure_->by_program) {
    failed_ = false;
    failure_.reset();
  }
  gap_.reset();
  prepares_.clear();
  if (recall_ != nullptr) recall_->suspend();
  for (auto& [id, group] : groups_) {
    if (group->active != nullptr && recall_ != nullptr) {
      Ranges fresh;
      if (group->phase == Phase::kRuns) {
        const std::uint64_t width = element_bytes(group->active->spec);
        const std::uint64_t begin =
            result_shape(group->active->spec, {group->rank, static_cast<std::int32_t>(group->members.size())}).begin;
        for (const Executor::Final& f : group->light.runs() ? group->light.finals() : group->executor.finals()) {
          fresh.add((begin + f.at) * width, (begin + f.at + f.count) * width);
        }
      } else if (group->phase == Phase::kRecalls) {
        fresh = recall_->cancel(group->recall_id);
      }
      group->have.add(fresh);
      // In memory that outlives this process, whoever goes next. What cannot be logged no plan will know of: begin()
      // sees whether that matters.
      const Ranges held = recall_->reader().held(result_key(group->active->round));
      const Status logged = log_pieces(*group, group->have.minus(held));
      if (!logged.ok() && group->unlogged.ok()) group->unlogged = logged;
    }
    if (group->active != nullptr) {
      enter(*group, Phase::kWaits);
      group->interrupted = true;
      if (group->active->prepare == Call::Prepare::kAsked) group->active->prepare = Call::Prepare::kNot;
      // All loans have ended. What moves because of that is moved between two generations, too.
      if (BufferStream* stream = stream_of(*group->active); stream != nullptr) stream->bring_home();
      forget_exchange(*group);
      move_on(*group->active);
    }
    group->executor.abandon();
    group->light.abandon();
    group->points.suspend();
    settle(*group);
  }
  light_ = nullptr;
  for (auto& [id, group] : departed_) {
    group->points.suspend();
    settle(*group);
  }
  release_departed();
  return standing();
}

bool Engine::has_room_for_version() const {
  return closed_.size() + 2 * (groups_.size() + 1) <= limits::kMaxPositions;
}

Status Engine::begin_version(Version version) {
  WARREN_CHECK(version > version_, "versions rise");
  for (const Frontier& f : plan_.frontier) {
    const auto it = groups_.find(f.group);
    if (f.version != version_ || it == groups_.end()) continue;
    if (it->second->next_sequence.value < f.rounds) {
      return {Code::kDesync, "other ranks have done " + rounds_text(f.rounds) + " before this point, this rank " +
                                 std::to_string(it->second->next_sequence.value) +
                                 "; a program must make the same calls in each of its lives"};
    }
  }
  for (auto& [id, group] : groups_) {
    WARREN_CHECK(group->active == nullptr && group->queue.empty(), "no round crosses a checkpoint");
    remember(*group);
    group->next_sequence = Sequence(0);
    group->rounds_done = 0;
  }
  const RingOrder* const before = known_.ring_order(version_);
  version_ = version;
  closed_is_complete_ = true;
  if (known_.ring_order(version_) != before) {
    for (auto& [id, group] : groups_) place(*group);
  }
  heard_.reset();
  for (auto& [id, group] : groups_) {
    const Status status = group->points.begin_version(version);
    if (!status.ok()) return status;
    check(*group);
  }
  return {};
}

void Engine::committed(Version version) {
  std::erase_if(closed_,
                [&](const auto& entry) { return entry.first.second < version && entry.first.second != kPreamble; });
  for (auto& [id, group] : groups_) group->points.committed(version);
  for (auto& [id, group] : departed_) group->points.committed(version);
  release_departed();
  if (recall_ != nullptr) recall_->log().drop_below(version);
}

// Where the job goes on without lost ranks there is the world's group alone, and its members are those that are there.
void Engine::reseat(Group& group) {
  WARREN_CHECK(group.id == kWorldGroup, "a job that shrinks has no other groups");
  if (group.members != plan_.present) {
    group.members = plan_.present;
    group.rank = static_cast<std::int32_t>(std::ranges::find(group.members, plan_.self) - group.members.begin());
    WARREN_CHECK(static_cast<std::size_t>(group.rank) < group.members.size(), "who has a plan is there");
    group.executor.reseat(group.members);
    group.light.reseat();
  }
  if (group.active != nullptr) rename(group, *group.active);
  group.queue.for_each([&](Call* call) { rename(group, *call); });
}

// A round has the name of the timeline in which it is, or was, computed, and is made for those who take part in it.
void Engine::rename(Group& group, Call& call) {
  const RoundId name = round_of(group.id, call.round.sequence);
  if (name == call.round) return;
  call.round = name;
  // What another attempt has made, with other inputs, is no part of it (I6).
  if (&call == group.active) {
    group.have = group.final = {};
    group.unlogged = {};
  }
  resize(group, call);
  if (&call == group.active) board_.begin(group.slot / 2, call.round, call.fingerprint);
}

// What a call is made with depends on how many take part in its round; nothing is made for one that is in the log.
void Engine::resize(Group& group, Call& call) {
  const RoundId& name = call.round;
  if (known_.known_of(name).done) return;
  const std::int32_t size = size_of(group, name);
  call.fingerprint.algorithm = static_cast<std::uint8_t>(algorithm_for(group, call.spec, size));
  if (call.spec.collective == Collective::kBarrier) return;
  auto reducer = Reducer::make(call.spec.type, call.spec.op, static_cast<std::uint32_t>(size), call.spec.custom_bytes,
                               call.spec.custom, call.spec.custom_context);
  WARREN_CHECK(reducer.ok(), "it was made for another size");
  call.reducer = std::move(reducer).value();
}

std::int32_t Engine::size_of(const Group& group, const RoundId& round) const {
  if (!plan_.shrinks) return static_cast<std::int32_t>(group.members.size());
  const auto ranks = known_.contributors_to(round);
  return static_cast<std::int32_t>(ranks != nullptr ? ranks->size() : plan_.world_size);
}

// The round may have to be run again with other inputs beside this one, when a part of its result stands in the output:
// also of one that comes from the log, should that prove wrong.
Status Engine::keep_input(Group& group) {
  const CallSpec& spec = group.active->spec;
  if (!plan_.shrinks || group.input_kept || spec.input == nullptr || spec.input != spec.output) return {};
  const std::uint64_t bytes = spec.count * element_bytes(spec);
  if (bytes == 0) return {};
  std::byte* const copy = group.kept_input.try_reserve(bytes);
  if (copy == nullptr) {
    return {Code::kExhausted,
            "mode shrink keeps a copy of an input that its result takes the place of, and there is no "
            "memory for " +
                std::to_string(bytes) + " bytes in " + name_of(*group.active) +
                ": give the result another buffer, make several smaller calls, or give the "
                "process more memory"};
  }
  std::memcpy(copy, spec.input, bytes);
  group.input_kept = true;
  return {};
}

// A small one stays for the next round, faulted in.
void Engine::forget_input(Group& group) {
  group.input_kept = false;
  if (group.kept_input.bytes() > kMostKeptInput) group.kept_input.give_back();
}

// Who sits where, for the schedules of this generation and version.
void Engine::place(Group& group) {
  group.schedules.clear();
  group.words_schedule = nullptr;
  group.hosts.clear();
  group.domains.clear();
  group.host = {};
  group.order.clear();
  group.read_here = true;
  if (const RingOrder* ring = known_.ring_order(version_); ring != nullptr) {
    std::vector<std::size_t> position(ring->ranks.size());
    for (std::size_t i = 0; i < position.size(); ++i) position[static_cast<std::size_t>(ring->ranks[i].value)] = i;
    for (std::uint32_t i = 0; i < group.members.size(); ++i) group.order.push_back(i);
    std::ranges::sort(group.order, {},
                      [&](std::uint32_t i) { return position[static_cast<std::size_t>(group.members[i].value)]; });
    if (std::ranges::is_sorted(group.order)) group.order.clear();
  }
  if (plan_.hosts.empty()) return;
  for (const Rank r : group.members) {
    group.hosts.push_back(plan_.hosts[static_cast<std::size_t>(r.value)]);
    group.domains.push_back(plan_.domains[static_cast<std::size_t>(r.value)]);
  }
  // Who has a host alone shares nothing.
  bool any = false;
  for (std::size_t host = 0; host < plan_.shared.size(); ++host) {
    if (std::ranges::count(group.hosts, static_cast<std::uint32_t>(host)) < 2) continue;
    const schedule::Host& shared = plan_.shared[host];
    group.host.maps = group.host.maps && shared.maps;
    group.host.cores = any ? std::min(group.host.cores, shared.cores) : shared.cores;  // 0: not known
    group.host.gpus = (!any || group.host.gpus) && shared.gpus;
    any = true;
  }
  const std::uint32_t own = group.hosts[static_cast<std::size_t>(group.rank)];
  group.read_here = std::ranges::count(group.hosts, own) > 1 && (own >= plan_.shared.size() || plan_.shared[own].maps);
}

// Ranks take turns, since who makes finals logs them; seldom, so that schedules are found in the cache. Set-up rounds
// have no number that counts.
std::int32_t Engine::owner_of(const RoundId& round, std::int32_t size) {
  constexpr std::uint64_t kRoundsOfAnOwner = 16;
  if (is_setup(round)) return 0;
  return static_cast<std::int32_t>(round.sequence.value / kRoundsOfAnOwner % static_cast<std::uint64_t>(size));
}

Engine::Channels Engine::used_channels() const {
  Channels used{};
  for (const auto* groups : {&groups_, &departed_}) {
    for (const auto& [id, group] : *groups) {
      if (group->channel == kMeetingChannel) continue;
      used[group->channel / 64] |= std::uint64_t{1} << group->channel % 64;
    }
  }
  return used;
}

std::optional<std::uint32_t> Engine::free_channel(const Channels& used) {
  for (std::uint32_t channel = 0; channel < limits::kMaxGroups; channel++) {
    if ((used[channel / 64] >> channel % 64 & 1) == 0) return channel;
  }
  return std::nullopt;
}

Status Engine::add_group(GroupId id, std::vector<Rank> members, std::uint32_t channel) {
  if (groups_.contains(id) || departed_.contains(id)) return {Code::kInvalidArgument, "this group exists already"};
  if (groups_.size() + departed_.size() >= limits::kMaxGroups) {
    return {Code::kExhausted, "over " + std::to_string(limits::kMaxGroups) + " groups at once, " +
                                  std::to_string(departed_.size()) +
                                  " of which are destroyed and have messages that are not obsolete: destroy "
                                  "communicators that are no longer needed, and take a checkpoint"};
  }
  if (!has_room_for_version()) {
    return {Code::kExhausted, std::to_string(closed_.size()) +
                                  " groups of versions that are not obsolete have been destroyed or checkpointed: make "
                                  "fewer of them between two checkpoints"};
  }
  insert_group(id, std::move(members), channel);
  return {};
}

void Engine::move_group(GroupId id, std::uint32_t channel) {
  const auto it = groups_.find(id);
  WARREN_CHECK(it != groups_.end() && it->second->channel == kMeetingChannel, "a group that meets is moved, once");
  Group& group = *it->second;
  WARREN_CHECK(idle(id) && !group.points.unsettled(), "a group is moved when it has made collectives alone");
  const Sequence next = group.next_sequence;
  const std::uint64_t done = group.rounds_done;
  std::vector<Rank> members = group.members;
  by_slot_[group.slot] = by_slot_[group.slot + 1] = nullptr;
  if (called_ == &group) called_ = nullptr;
  groups_.erase(it);
  insert_group(id, std::move(members), channel);
  Group& moved = *groups_.at(id);
  moved.next_sequence = next;
  moved.rounds_done = done;
}

void Engine::insert_group(GroupId id, std::vector<Rank> members, std::uint32_t channel) {
  WARREN_CHECK(channel <= kMeetingChannel, "channels are those of Channels, and the one for meeting");
  const auto self = std::find(members.begin(), members.end(), plan_.self);
  WARREN_CHECK(self != members.end(), "a rank is a member of its groups");
  const auto rank = static_cast<std::int32_t>(self - members.begin());
  std::uint32_t slot = 0;
  while (slot < by_slot_.size() && by_slot_[slot] != nullptr) slot += 2;
  auto group = std::make_unique<Group>(transport_, id, channel, std::move(members), rank, slot, plan_.chunk_bytes,
                                       recall_, version_, board_);
  group->recall = recall_;
  place(*group);
  // One of this name may have been destroyed in this version.
  if (const auto it = closed_.find({id, version_}); it != closed_.end()) {
    group->next_sequence = Sequence(it->second);
    group->rounds_done = it->second;
  }
  if (slot >= by_slot_.size()) by_slot_.resize(slot + 2, nullptr);
  by_slot_[slot] = by_slot_[slot + 1] = group.get();
  if (open_) group->points.open(plan_.generation, plan_.timeline, plan_.resumes);
  groups_.emplace(id, std::move(group));
}

void Engine::remove_group(GroupId id) {
  const auto it = groups_.find(id);
  if (it == groups_.end()) return;
  Group& group = *it->second;
  WARREN_CHECK(group.active == nullptr && group.queue.empty(), "a group is removed when its calls have finished");
  remember(group);
  group.departed = true;
  group.points.depart();
  settle(group);
  if (called_ == &group) called_ = nullptr;
  departed_.insert(groups_.extract(it));
  release_departed();
}

// Channels and slots that nothing can come for any more. Between two generations there are no links.
void Engine::release_departed() {
  std::erase_if(departed_, [&](const auto& entry) {
    Group& group = *entry.second;
    if ((open_ && !group.points.clean()) || !group.points.obsolete()) return false;
    by_slot_[group.slot] = by_slot_[group.slot + 1] = nullptr;
    return true;
  });
}

void Engine::settle(Group& group) {
  const bool now = group.points.unsettled();
  if (now != group.unsettled) unsettled_groups_ = now ? unsettled_groups_ + 1 : unsettled_groups_ - 1;
  group.unsettled = now;
}

bool Engine::idle(GroupId id) const {
  const auto it = groups_.find(id);
  return it == groups_.end() ||
         (it->second->active == nullptr && it->second->queue.empty() && !it->second->points.busy());
}

schedule::Algorithm Engine::algorithm_for(Group& group, const CallSpec& spec, std::int32_t size) {
  if (spec.algorithm != 0) return static_cast<schedule::Algorithm>(spec.algorithm);
  const auto serving = schedule::algorithms_for(spec.collective);
  if (std::find(serving.begin(), serving.end(), plan_.algorithm) != serving.end()) return plan_.algorithm;
  const std::uint64_t bytes = larger_buffer(spec, static_cast<std::uint64_t>(size));
  return group.schedules.choose({spec.collective, size, bytes, plan_.chunk_bytes, plan_.replicas}, costs_);
}

schedule::Request Engine::request_for(const Group& group, const Call& call) const {
  schedule::Request request;
  request.collective = call.spec.collective;
  request.algorithm = static_cast<schedule::Algorithm>(call.fingerprint.algorithm);
  request.rank = group.rank;
  request.size = static_cast<std::int32_t>(group.members.size());
  request.root = std::max(call.spec.root, 0);
  request.count = call.spec.count;
  request.counts = call.spec.collective == Collective::kAllToAllv ? call.all_counts : call.counts;
  const std::uint64_t chunk_bytes = schedule::chunk_bytes_of(request.algorithm, request.size, plan_.chunk_bytes);
  request.partial_bytes = call.reducer.bytes(Form::kPartial);
  request.chunk_elements = std::max<std::uint64_t>(1, chunk_bytes / request.partial_bytes);
  request.replicas = plan_.replicas;
  request.settles = plan_.shrinks;
  request.hosts = group.hosts;
  request.domains = group.domains;
  request.host = group.host;
  // A set-up round is of no version: who goes on with it may be in another one.
  if (request.collective == Collective::kAllreduce && request.algorithm == schedule::Algorithm::kRing &&
      !is_setup(call.round)) {
    request.order = group.order;
  }
  request.element_bytes = std::max<std::uint64_t>(1, element_bytes(call.spec));
  if (schedule::has_owner(request)) request.owner = owner_of(call.round, request.size);
  return request;
}

Result<std::shared_ptr<const PreparedSchedule>> Engine::schedule_for(Group& group, const Call& call, bool exchanges) {
  schedule::Request request = request_for(group, call);
  request.exchanges = exchanges;
  return group.schedules.schedule_for(request);
}

// `round`: what the call would be.
ScheduleCache::Repeated* Engine::repeats(Group& group, const CallSpec& spec, const RoundId& round, std::int32_t size) {
  ScheduleCache::Repeated* const r = group.schedules.repeated(spec, size);
  if (r == nullptr || r->owner < 0) return r;
  return r->owner == owner_of(round, static_cast<std::int32_t>(group.members.size())) ? r : nullptr;
}

// Of a call that has a schedule.
void Engine::repeat(Group& group, const Call& call, std::int32_t size) const {
  const CallSpec& s = call.spec;
  if (!ScheduleCache::may_repeat(s)) return;
  ScheduleCache::Repeated r;
  r.algorithm = static_cast<schedule::Algorithm>(call.fingerprint.algorithm);
  r.reducer = call.reducer;
  r.schedule = call.schedule;
  r.width = element_bytes(s);
  r.total_bytes = result_shape(s, {group.rank, static_cast<std::int32_t>(group.members.size())}).total * r.width;
  r.light = LightRound::serves(*r.schedule, r.reducer);
  const schedule::Request request = request_for(group, call);
  r.owner = schedule::has_owner(request) ? request.owner : -1;
  r.round.schedule = r.schedule.get();
  r.round.generation = plan_.generation;
  r.round.fingerprint = call.fingerprint;
  r.round.reducer = call.reducer;
  r.round.publisher = recall_ == nullptr ? nullptr : &group;
  group.schedules.repeat(s, size, std::move(r));
}

Engine::Group* Engine::group_of(GroupId id) {
  if (called_ != nullptr && called_->id == id) return called_;
  const auto it = groups_.find(id);
  return called_ = it == groups_.end() ? nullptr : it->second.get();
}

// A program's call sites are compared where the job wants it.
std::uint64_t Engine::told_site(std::uint64_t site) const {
  site &= ~kSiteCompared;
  return plan_.check_call_sites && site != 0 ? site | kSiteCompared : site;
}

bool Engine::run_at_once(GroupId id, const CallSpec& spec, int looks) {
  // What is under way, or is shown or drawn, needs books.
  if (!open_ || failed_ || outstanding_ != 0 || unsettled_groups_ != 0 || trace_ != nullptr || plan_.shrinks)
    return false;
  if (recall_ != nullptr && !recall_->shows_at_once()) return false;
  Group* const group = group_of(id);
  if (group == nullptr) return false;
  const RoundId next = round_of(id, group->next_sequence);
  ScheduleCache::Repeated* const r = repeats(*group, spec, next, static_cast<std::int32_t>(group->members.size()));
  if (r == nullptr || !r->light) return false;
  // As known_of(): others have it, or a part of it.
  const Frontier* const others = known_.frontier_of(id, version_);
  if (others != nullptr && group->next_sequence.value <= others->rounds) return false;
  Round& round = r->round;
  round.id = next;
  round.fingerprint.site = told_site(spec.site);
  round.input = static_cast<const std::byte*>(spec.input != nullptr ? spec.input : spec.output);
  round.output = static_cast<std::byte*>(spec.output);
  publish_as(*group, round.id, round.fingerprint, r->width, r->total_bytes);
  group->resumed = false;
  board_.at_once.store(true, std::memory_order_relaxed);
  LightRound::Outcome outcome{};
  try {
    group->light.begin(round);
    outcome = group->light.go();
    for (; outcome == LightRound::Outcome::kWaits && looks > 0; looks--) outcome = group->light.go();
  } catch (...) {
    // A part of the round may have left.
    board_.at_once.store(false, std::memory_order_relaxed);
    stop(Status(Code::kExhausted, "no memory for " + to_string(round.id)));
    throw;
  }
  board_.at_once.store(false, std::memory_order_relaxed);
  if (outcome != LightRound::Outcome::kDone) return false;
  group->next_sequence = group->next_sequence.next();
  group->rounds_done++;
  group->begun[round.id.sequence.value % Group::kNewestRounds] = {round.id, round.fingerprint};
  board_.computed(group->light.bytes_sent());
  RoundBoard::add(board_.rounds_finished, 1);
  return true;
}

Status Engine::submit_point(Group& group, Call& call) {
  if (call.spec.sends) {
    const Status status = group.points.send(call);
    if (!status.ok()) return status;
  } else {
    group.points.recv(call);
  }
  outstanding_++;
  if (trace_ != nullptr && !call.traced) trace_->issued(call);
  check(group);
  return {};
}

Status Engine::submit(GroupId id, Call& call) {
  if (!broken_.ok()) return broken_;
  WARREN_CHECK(installed_, "calls come after the plan");
  Group* const found = group_of(id);
  if (found == nullptr) return {Code::kClosed, "this communicator has been destroyed"};
  Group& group = *found;
  if (outstanding_ >= limits::kMaxOutstandingRounds) {
    return {Code::kExhausted, "over " + std::to_string(limits::kMaxOutstandingRounds) +
                                  " asynchronous calls are outstanding: wait for some of them"};
  }
  const Collective c = call.spec.collective;
  WARREN_CHECK(!plan_.shrinks || ((c == Collective::kAllreduce || c == Collective::kBarrier) && call.setup.empty() &&
                                  call.spec.prepare == nullptr),
               "the owner refuses what a job that shrinks does not have");
  if (c == Collective::kPoint) return submit_point(group, call);
  if (c == Collective::kAllToAllv) {
    if (const Status told = tell_counts(id, call); !told.ok()) return told;
  }
  call.round = round_of(group.id, group.next_sequence);
  const std::int32_t size = size_of(group, call.round);
  const bool setup = !call.setup.empty() && recall_ != nullptr;
  // Where the ring has an order, set-up rounds go by others than rounds of a version.
  // Nor the same owner.
  const bool may_repeat = !setup || (group.order.empty() && group.host.cores == 0);
  const ScheduleCache::Repeated* const repeated = may_repeat ? repeats(group, call.spec, call.round, size) : nullptr;
  if (repeated != nullptr) {
    call.reducer = repeated->reducer;
  } else if (call.spec.collective != Collective::kBarrier) {
    auto reducer = Reducer::make(call.spec.type, call.spec.op, static_cast<std::uint32_t>(size), call.spec.custom_bytes,
                                 call.spec.custom, call.spec.custom_context);
    if (!reducer.ok()) return reducer.status();
    call.reducer = std::move(reducer).value();
  }
  if (c != Collective::kAllToAllv) {
    call.counts.assign(call.spec.counts.begin(), call.spec.counts.end());
    call.spec.counts = call.counts;
  }
  const schedule::Algorithm algorithm =
      repeated != nullptr ? repeated->algorithm : algorithm_for(group, call.spec, size);
  call.fingerprint = fingerprint_of(call.spec, static_cast<std::uint8_t>(algorithm));
  call.fingerprint.site = told_site(call.spec.site);
  if (setup) {
    const Status status = name_setup(group, call);
    if (!status.ok()) return status;
  }
  if (!known_.known_of(call.round).done && c != Collective::kAllToAllv) {
    if (repeated != nullptr) {
      call.schedule = repeated->schedule;
    } else {
      // Here, where a schedule that cannot be made is still an error of this call alone.
      auto prepared = schedule_for(group, call);
      if (!prepared.ok()) return prepared.status();
      call.schedule = std::move(prepared).value();
      if (may_repeat) repeat(group, call, size);
    }
    call.schedule_generation = plan_.generation;
  }
  if (!setup) group.next_sequence = group.next_sequence.next();
  group.queue.push() = &call;
  outstanding_++;
  if (trace_ != nullptr && !call.traced) trace_->issued(call);
  if (group.active == nullptr) {
    start_next(group);
    check(group);
  }
  return {};
}

// An all_to_allv is two rounds: in the first one ranks tell each other how much each sends to each, so that all know
// where everything stands in the result of the second one, and its fingerprint is of all counts.
Status Engine::tell_counts(GroupId id, Call& call) {
  if (!call.setup.empty()) {
    return {Code::kInvalidArgument, name_of(call) +
                                        " is an all_to_allv, which is no set-up round: its counts are told in "
                                        "a round of their own"};
  }
  if (outstanding_ + 2 > limits::kMaxOutstandingRounds) {
    return {Code::kExhausted, "an all_to_allv is two of " + std::to_string(limits::kMaxOutstandingRounds) +
                                  " asynchronous calls that may be outstanding: wait for some of them"};
  }
  const std::size_t size = call.spec.counts.size();
  call.counts.assign(call.spec.counts.begin(), call.spec.counts.end());
  call.counts.insert(call.counts.end(), call.spec.counts_from.begin(), call.spec.counts_from.end());
  call.spec.counts = std::span(call.counts).first(size);
  call.spec.counts_from = std::span(call.counts).subspan(size);
  call.all_counts.assign(size * size, 0);
  call.telling = std::make_unique<Call>();
  CallSpec& spec = call.telling->spec;
  spec.collective = Collective::kAllgather;
  spec.type = DataType::kU64;
  spec.counted = call.spec.type;
  spec.input = call.counts.data();
  spec.output = call.all_counts.data();
  spec.count = size;
  spec.site = call.spec.site;
  call.telling->blocking = call.blocking;
  return submit(id, *call.telling);
}

void Engine::hear_counts(Call& call) const {
  call.spec.all_counts = call.all_counts;
  call.fingerprint = fingerprint_of(call.spec, call.fingerprint.algorithm);
  call.fingerprint.site = told_site(call.spec.site);
}

// What of these bytes of the round's result nobody needs to compute: all ranks leave out the same pieces. Of a piece
// that is there in part nothing was sent: its owner died, or its log was full, before the rest of it was published.
Result<Ranges> Engine::whole_pieces(const Group& group, const Call& call, const Ranges& final) const {
  if (final.empty()) return Ranges();
  const schedule::Request request = request_for(group, call);
  const std::uint64_t width = request.element_bytes;
  const std::uint64_t total =
      result_shape(call.spec, {group.rank, static_cast<std::int32_t>(group.members.size())}).total * width;
  if (final.intervals().back().end > total) {
    return Status(Code::kDesync, "the log has " + std::to_string(final.intervals().back().end) + " bytes of " +
                                     to_string(call.round) + ", which has " + std::to_string(total) + " as " +
                                     to_string(call.fingerprint) + ": it is not what other ranks called");
  }
  Ranges elements;
  for (const Interval& i : final.intervals()) elements.add((i.begin + width - 1) / width, i.end / width);
  const Ranges whole = schedule::whole_pieces(request, elements);
  Ranges bytes;
  for (const Interval& i : whole.intervals()) bytes.add(i.begin * width, i.end * width);
  return bytes;
}

// Gives the call its name's number. What one life calls is bounded: it stays in the log.
Status Engine::name_setup(const Group& group, Call& call) {
  const Sequence name = setup_sequence(call.setup);
  call.round = known_.setup_round(group.id, name);
  const std::uint64_t bytes =
      result_shape(call.spec, {group.rank, static_cast<std::int32_t>(group.members.size())}).total *
      element_bytes(call.spec);
  if (known_.call_setup(group.id, name, bytes)) return {};
  return {Code::kExhausted, name_of(call) + ": set-up rounds stay in the log for as long as the job lasts; a process " +
                                "calls at most " + std::to_string(limits::kMaxSetups) + ", with " +
                                std::to_string(limits::kMaxSetupBytes) + " bytes of results"};
}

void Engine::start_next(Group& group) {
  if (group.queue.empty() || failed_ || !open_) return;
  group.active = group.queue.front();
  group.queue.pop();
  group.have = {};
  group.unlogged = {};
  group.awaited = 0;
  group.interrupted = false;
  forget_exchange(group);
  if (group.active->telling != nullptr) hear_counts(*group.active);
  const RoundId& round = group.active->round;
  if (!is_setup(round)) {
    group.begun[round.sequence.value % Group::kNewestRounds] = {round, group.active->fingerprint};
  }
  board_.begin(group.slot / 2, group.active->round, group.active->fingerprint);
  if (trace_ != nullptr) trace_->round_began(group.slot / 2, *group.active);
  begin(group);
}

void Engine::enter(Group& group, Phase phase) {
  group.phase = phase;
  if (trace_ == nullptr) return;
  switch (phase) {
    case Phase::kWaits:
    case Phase::kAgrees: return trace_->round_does(group.slot / 2, Trace::Stage::kWaits);
    case Phase::kPrepares: return trace_->round_does(group.slot / 2, Trace::Stage::kPrepares);
    case Phase::kRecalls: return trace_->round_does(group.slot / 2, Trace::Stage::kReplays);
    case Phase::kRuns: return trace_->round_does(group.slot / 2, Trace::Stage::kRuns);
    case Phase::kIdle: return trace_->round_ended(group.slot / 2);
    case Phase::kDone: return;
  }
}

// Decides how the active call comes to its result in this generation.
void Engine::begin(Group& group) {
  Call& call = *group.active;
  const auto fail = [&](const Status& why, Rank peer) { this->fail(why.about(call.round), peer); };
  Known known = known_.known_of(call.round);
  if (call.telling != nullptr) {
    const GroupShape shape{group.rank, static_cast<std::int32_t>(group.members.size())};
    if (const Status agree = check_counts(call.spec, shape, group.members); !agree.ok()) {
      enter(group, Phase::kWaits);
      return fail(agree.because_of_this("all_to_allv, " + name_of(call)), kNoRank);
    }
  }
  auto whole = whole_pieces(group, call, known.final);
  if (!whole.ok()) return fail(whole.status(), kNoRank);
  known.final = group.final = std::move(whole).value();
  group.resumed = !known.final.empty();
  // It was taken for one that the log has whole, and that has proved wrong: the prepare function overwrites what came.
  if (!known.done && call.spec.prepare != nullptr && call.prepare == Call::Prepare::kNot) group.have = {};
  // What stands final in the output may stand where the input was: it must not be computed again.
  if (!known.done && !group.have.minus(known.final).empty()) {
    const Status why = group.unlogged.ok() ? Status(Code::kInternal, "the plan does not name it") : group.unlogged;
    return fail(why.because_of_this("part of the result of " + name_of(call) + " is known here alone"), kNoRank);
  }
  // Before anything final comes to the output, which may be the same memory as the input.
  if (const Status kept = keep_input(group); !kept.ok()) return fail(kept, kNoRank);
  if (waits_for_words(group, known)) return;
  if (waits_for_prepare(group, !known.done)) return;
  if (waits_for_input(group, !known.done && known.final.empty() && !group.interrupted && !group.comes_home)) return;
  if (known.beyond) {
    return fail(Status(Code::kDesync, "other ranks have done " + rounds_text(call.round.sequence.value) +
                                          " and no more in this version, this rank calls " +
                                          to_string(call.fingerprint) + " as " + to_string(call.round) +
                                          "; a program must make the same calls in each of its lives"),
                kNoRank);
  }
  if (!known.done && known.final.empty()) {
    return run(group, call.schedule_generation == plan_.generation ? call.schedule : nullptr);
  }
  take_from_log(group);
}

// The result of the active call, or the part of it that is final, comes from the log.
void Engine::take_from_log(Group& group) {
  Call& call = *group.active;
  const auto fail = [&](const Status& why, Rank peer) { this->fail(why.about(call.round), peer); };
  const std::uint64_t width = std::max<std::uint64_t>(1, element_bytes(call.spec));
  const ResultShape shape = result_shape(call.spec, {group.rank, static_cast<std::int32_t>(group.members.size())});
  enter(group, Phase::kRecalls);
  group.recall_id = 0;
  Replayer::Want want;
  want.key = result_key(call.round);
  want.fingerprint = call.fingerprint;
  want.total_bytes = shape.total * width;
  want.bytes = Ranges(shape.begin * width, (shape.begin + shape.count) * width);
  if (group.resumed) {
    // What was final stays; the rest of what the log has comes from there.
    want.bytes = want.bytes.intersect(group.final).minus(group.have);
  }
  want.base = static_cast<std::byte*>(call.spec.output);
  want.base_at = shape.begin * width;
  // Where results differ by rank, this host kept copies of other ranks' too. A schedule that resumes copies them anew.
  want.refill =
      !group.resumed && schedule::results_differ(call.spec.collective) && recall_->replayer().refills(group.members);
  if (want.bytes.empty() && (!want.refill || shape.total == 0)) {
    const auto info = recall_->reader().info(want.key);
    if (info.ok() && info.value() && !agree(info.value()->fingerprint, call.fingerprint)) {
      return fail(Status(Code::kDesync, "the log has " + to_string(info.value()->fingerprint) + " as " + name_of(call) +
                                            ", this rank calls " + to_string(call.fingerprint)),
                  kNoRank);
    }
    if (group.resumed) return run_rest(group);
    // Nothing is fetched, and no bytes show whose segment has the record: each life that replays the round logs it
    // again, so that it stays known which round it was (docs/decisions/0010).
    const bool has = is_setup(call.round) && known_.completed_setup(group.id, call.round.sequence);
    if (shape.total == 0 && !has) {
      const Status logged = recall_->publish(want.key, {call.fingerprint, 0}, 0, {});
      if (!logged.ok()) return fail(logged.because_of_this("cannot log " + name_of(call)), kNoRank);
    }
    group.phase = Phase::kDone;
    return;
  }
  group.recall_id = recall_->fetch(std::move(want));
}

void Engine::recalled(Replayer::Done done) {
  for (auto& [id, group] : groups_) {
    if (group->active == nullptr || group->phase != Phase::kRecalls || group->recall_id != done.id) continue;
    Call& call = *group->active;
    // However it has ended: the output may be where the input was, and suspend() says what stands there.
    group->have.add(done.written);
    if (done.status.code() == Code::kUnavailable) {
      gap_ = Gap{.reason = done.status.describe(), .setup = {}};
      if (is_setup(call.round) && !group->resumed) gap_->setup = done_setup(call.round);
      return;
    }
    if (!done.status.ok()) return fail(done.status.because_of_this(name_of(call)), kNoRank);
    for (const Replayer::Done::Piece& piece : done.refill) {
      const Status logged = recall_->publish(result_key(call.round), *done.info, piece.begin, piece.bytes);
      if (!logged.ok()) return fail(logged, kNoRank);
    }
    if (group->resumed) {
      run_rest(*group);
    } else {
      Ranges again = done.log_again;
      if (plan_.shrinks) {
        // As where a round is run: whoever returns it leaves it whole on its host (DESIGN section 4).
        const RecordKey key = result_key(call.round);
        const std::uint64_t bytes = call.spec.count * element_bytes(call.spec);
        again.add(Ranges(0, bytes).minus(recall_->reader().held(key)));
      }
      const Status logged = log_pieces(*group, recall_->room_for(result_key(call.round), again));
      if (!logged.ok()) return fail(logged, kNoRank);
      group->phase = Phase::kDone;
    }
    return check(*group);
  }
  if (const auto it = wanted_.find(done.id); it != wanted_.end()) it->second = std::move(done);
}

std::uint64_t Engine::fetch(Replayer::Want want) {
  const std::uint64_t id = recall_->fetch(std::move(want));
  wanted_.emplace(id, std::nullopt);
  return id;
}

std::optional<Replayer::Done> Engine::take_recalled(std::uint64_t id) {
  const auto it = wanted_.find(id);
  if (it == wanted_.end() || !it->second) return std::nullopt;
  std::optional<Replayer::Done> done = std::move(it->second);
  wanted_.erase(it);
  return done;
}

RoundId Engine::next_round(GroupId group) const {
  const auto it = groups_.find(group);
  return round_of(group, it == groups_.end() ? Sequence(0) : it->second->next_sequence);
}

// Publishes these bytes of the active call's whole result, as far as they stand in its output.
Status Engine::log_pieces(Group& group, const Ranges& bytes) {
  if (bytes.empty()) return {};
  const Call& call = *group.active;
  const std::uint64_t width = element_bytes(call.spec);
  const ResultShape shape = result_shape(call.spec, {group.rank, static_cast<std::int32_t>(group.members.size())});
  const RecordKey key = result_key(call.round);
  const RecordInfo info{call.fingerprint, shape.total * width};
  const Ranges mine = bytes.intersect(shape.begin * width, (shape.begin + shape.count) * width);
  for (const Interval& i : mine.intervals()) {
    const auto* from = static_cast<const std::byte*>(call.spec.output) + (i.begin - shape.begin * width);
    const Status status = recall_->publish(key, info, i.begin, {from, i.end - i.begin});
    if (!status.ok()) return status.because_of_this("cannot log " + name_of(call));
  }
  return {};
}

// The rest of a round that was interrupted: what the log holds of it has come.
void Engine::run_rest(Group& group) {
  const Call& call = *group.active;
  // Every host has the whole round before any of its ranks returns (DESIGN section 4). What dead lives of this host
  // have logged will do: their segments stay while it lies in them alone (dead_segments.h). A log that took it anew at
  // each interruption would fill up.
  const Ranges held = recall_->reader().held(result_key(call.round));
  if (const Status logged = log_pieces(group, group.final.minus(held)); !logged.ok()) return fail(logged, kNoRank);
  // What the interrupt found unfinished, and what this life had published by then.
  group.awaited = recall_->newest();
  schedule::Request request = request_for(group, call);
  request.resumed = true;
  for (const Interval& i : group.final.intervals()) {
    request.final.add(i.begin / request.element_bytes, i.end / request.element_bytes);
  }
  auto made = schedule::make(request);
  if (!made.ok()) return fail(made.status().because_of_this("cannot finish " + to_string(call.round)), kNoRank);
  run(group, std::make_shared<const PreparedSchedule>(std::move(made).value()));
}

Call* Engine::take_prepare() {
  if (prepares_.empty()) return nullptr;
  Call* call = prepares_.back();
  prepares_.pop_back();
  call->prepare = Call::Prepare::kRuns;
  return call;
}

void Engine::prepared(Call& call) {
  call.prepare = Call::Prepare::kDone;
  for (auto& [id, group] : groups_) {
    if (group->active != &call) continue;
    if (stopped()) {
      group->active = nullptr;
      enter(*group, Phase::kIdle);
      board_.end(group->slot / 2);
      return end(call, broken_);
    }
    move_on(call);
    // In a generation that has begun meanwhile, or not yet.
    if (group->phase != Phase::kPrepares) return;
    begin(*group);
    return check(*group);
  }
}

// Whether the call's prepare function has to run, or is running, before anything else may touch its buffers.
bool Engine::waits_for_prepare(Group& group, bool runs) {
  Call& call = *group.active;
  if (call.spec.prepare == nullptr || call.prepare == Call::Prepare::kDone) return false;
  if (call.prepare == Call::Prepare::kNot && !runs) return false;
  if (group.phase != Phase::kPrepares) enter(group, Phase::kPrepares);
  if (call.prepare == Call::Prepare::kNot) {
    if (BufferStream* stream = stream_of(call); stream != nullptr) order_input(group, *stream);
    call.prepare = Call::Prepare::kAsked;
    prepares_.push_back(&call);
  }
  return true;
}

// Whether all peers that are to read this rank's input can do so in this memory of a GPU. Only in a first attempt: any
// other may take finals from the log, which needs all of the input, or the rest of it, in memory of the CPU.
bool Engine::may_lend(const Group& group, const std::byte* memory) const {
  const Call& call = *group.active;
  if (gpu_work_ == nullptr || plan_.shrinks || group.interrupted || group.resumed || call.schedule == nullptr ||
      call.schedule_generation != plan_.generation || !call.schedule->lends_all()) {
    return false;
  }
  return std::ranges::all_of(call.schedule->readers(), [&](std::int32_t peer) {
    return transport_.lends(GroupId(group.channel), group.members[static_cast<std::size_t>(peer)], memory);
  });
}

void Engine::order_input(Group& group, BufferStream& stream) const {
  const Call& call = *group.active;
  const std::byte* const memory = stream.lendable();
  if (memory != nullptr && group.exchange_schedule == nullptr && may_lend(group, memory) && stream.lend()) {
    RoundBoard::add(board_.inputs_lent, 1);
  }
  const std::uint64_t width = element_bytes(call.spec);
  // Without a schedule it was issued when the log was to serve it.
  const PreparedSchedule* const prepared =
      group.exchange_schedule != nullptr ? group.exchange_schedule.get() : call.schedule.get();
  const GroupShape shape{group.rank, static_cast<std::int32_t>(group.members.size())};
  const BufferBytes sizes = buffer_bytes(call.spec, shape);
  const std::uint64_t input_bytes = is_root_of_broadcast(call.spec, group.rank) ? sizes.output : sizes.input;
  group.pieces = input_order(prepared == nullptr ? schedule::Schedule() : prepared->schedule(), input_bytes / width,
                             std::max<std::uint64_t>(1, stream.most_bytes(shape.size) / width));
  std::vector<ByteRange> bytes;
  for (const InputPiece& piece : group.pieces) bytes.push_back({piece.at * width, piece.count * width});
  stream.order(std::move(bytes));
}

// While a part of the input is still to come, which may be over the output, only a first attempt goes on: it makes
// nothing final but what it has read. What comes from the log would be overwritten.
bool Engine::waits_for_input(Group& group, bool begins) {
  const Call& call = *group.active;
  const BufferStream* stream = stream_of(call);
  if (begins || stream == nullptr || call.prepare != Call::Prepare::kDone || stream->all_arrived()) return false;
  if (group.phase != Phase::kPrepares) enter(group, Phase::kPrepares);
  return true;
}

Call* Engine::take_moving() {
  if (moving_.empty()) return nullptr;
  Call* call = moving_.front();
  moving_.erase(moving_.begin());
  call->moves = Call::Moves::kTaken;
  return call;
}

void Engine::moved(Call& call, const Status& status) {
  call.moves = Call::Moves::kNot;
  if (call.concluded) return end(call, call.status.ok() ? status : call.status);
  WARREN_CHECK(status.ok(), "whoever cannot move a buffer has stopped this");
  move_on(call);
  for (auto& [id, group] : groups_) {
    if (group->active != &call) continue;
    if (group->phase == Phase::kRuns) {
      while (const auto brought = stream_of(call)->take_brought()) {
        group->executor.on_brought(brought->number, brought->stood);
      }
      group->executor.arrive(stream_of(call)->arrived());
    } else if (group->phase == Phase::kPrepares && call.prepare == Call::Prepare::kDone &&
               stream_of(call)->all_arrived()) {
      begin(*group);
    }
    return check(*group);
  }
}

// Lists the call if its buffers move. The prepare function moves the first ones itself.
void Engine::move_on(Call& call) {
  const BufferStream* stream = stream_of(call);
  if (stream == nullptr || call.prepare == Call::Prepare::kRuns || call.moves != Call::Moves::kNot ||
      !stream->moves()) {
    return;
  }
  moving_.push_back(&call);
  call.moves = Call::Moves::kListed;
}

// The call is over for its group, and has finished when nothing of it moves any more.
void Engine::end(Call& call, const Status& status) {
  BufferStream* stream = stream_of(call);
  if (stream == nullptr) return finish(call, status);
  call.concluded = true;
  call.status = status;
  if (!status.ok()) stream->give_up();
  move_on(call);
  if (call.moves == Call::Moves::kTaken || stream->moves()) return;
  if (call.moves == Call::Moves::kListed) std::erase(moving_, &call);
  finish(call, status);
}

void Engine::run(Group& group, std::shared_ptr<const PreparedSchedule> prepared) {
  Call& call = *group.active;
  if (prepared == nullptr) {
    // It was issued when the log was to serve it.
    auto made = schedule_for(group, call);
    if (!made.ok()) return fail(made.status(), kNoRank);
    prepared = std::move(made).value();
  }
  enter(group, Phase::kRuns);
  call.schedule = std::move(prepared);
  Round round;
  round.schedule = call.schedule.get();
  round.generation = plan_.generation;
  round.id = call.round;
  round.fingerprint = call.fingerprint;
  round.input = group.input_kept ? group.kept_input.reserve(0) : static_cast<const std::byte*>(call.spec.input);
  round.output = static_cast<std::byte*>(call.spec.output);
  // A broadcast's data stands in the one buffer that the call names.
  if (round.input == nullptr) round.input = round.output;
  round.reducer = call.reducer;
  round.publisher = group.recall == nullptr ? nullptr : &group;
  if (const BufferStream* stream = stream_of(call); stream != nullptr) {
    round.landing = &group;
    if (!stream->all_arrived()) round.pieces = group.pieces;
    round.arrived = stream->arrived();
    round.input_keeper = stream->lent();
    round.input_on_gpu = round.input_keeper != nullptr;
    if (round.input_on_gpu) round.input = static_cast<const std::byte*>(round.input_keeper.get());
    round.output_keeper = stream->output_keeper();
  }
  round.gpu_work = gpu_work_;
  if (round.schedule->exchanges()) {
    round.exchange = exchange_;
    round.gpu_scratch = std::move(group.gpu_scratch);
  }
  // Not what was interrupted: the executor knows what stood where. Nor what a disk may have to see first.
  const bool light = call.blocking && light_ == nullptr && !group.interrupted && !group.resumed &&
                     call.spec.prepare == nullptr && (recall_ == nullptr || recall_->shows_at_once()) &&
                     LightRound::serves(*round.schedule, round.reducer);
  group.ran_light = light;
  publish_as(group, call.round, call.fingerprint, element_bytes(call.spec),
             result_shape(call.spec, {group.rank, static_cast<std::int32_t>(group.members.size())}).total *
                 element_bytes(call.spec));
  // run_at_once() may have begun it.
  WARREN_CHECK(!group.light.runs() || (light && group.light.round() == call.round), "what was begun is gone on with");
  if (!light) return group.executor.start(round);
  light_ = &group;
  if (!group.light.runs()) group.light.begin(round);
  (void)go_light(group);
}

// Whether something may have moved: it is over, or the executor's.
bool Engine::go_light(Group& group) {
  const LightRound::Outcome outcome = group.light.go();
  if (outcome == LightRound::Outcome::kWaits) return false;
  light_ = nullptr;
  if (outcome == LightRound::Outcome::kStuck) hand_over(group);
  if (outcome == LightRound::Outcome::kProgramFailed) fail_by_program(group.light.status());
  return true;
}

void Engine::hand_over(Group& group) {
  group.ran_light = false;
  group.light.hand_over();
}

bool Engine::post_all() {
  if (light_ == nullptr) return false;
  Group& group = *std::exchange(light_, nullptr);
  hand_over(group);
  check(group);
  return true;
}

void Engine::publish_as(Group& group, const RoundId& round, const Fingerprint& fingerprint, std::uint64_t width,
                        std::uint64_t total_bytes) {
  group.key = result_key(round);
  group.info = {fingerprint, total_bytes};
  group.width = width;
}

Status Engine::Group::publish(std::uint64_t first, std::uint64_t count, const std::byte* values, LogPlace& place) {
  if (!resumed || count == 0) {
    return recall->publish(key, info, first * width, {values, count * width}, read_here ? &place : nullptr);
  }
  // Each attempt copies an owner's finals to their keepers again, and this host may be the keeper that has them.
  const Ranges missing = Ranges(first * width, (first + count) * width).minus(recall->reader().held(key));
  for (const Interval& i : missing.intervals()) {
    const Status status = recall->publish(key, info, i.begin, {values + (i.begin - first * width), i.end - i.begin});
    if (!status.ok()) return status;
  }
  return {};
}

std::span<std::byte> Engine::Group::room(std::uint64_t count) {
  // What this host may have of it is not published again: publish() looks.
  // A program's function may want its elements better aligned than the log's records lie.
  if (resumed || count == 0 || active->spec.type == DataType::kCustom) return {};
  return recall->room(key, count * width);
}

void Engine::Group::publish_room(std::uint64_t first, std::uint64_t count, LogPlace& place) {
  recall->publish_room(key, info, first * width, count * width, &place);
}

void Engine::Group::landed(std::uint64_t at, std::uint64_t count) {
  stream_of(*active)->landed({at * width, count * width});
}

bool Engine::Group::bring(std::uint64_t at, std::uint64_t count, const std::shared_ptr<const FinalOnGpu>& from,
                          std::uint64_t number) {
  return stream_of(*active)->bring({at * width, count * width}, from, number);
}

void Engine::complete(Group& group) {
  Call& call = *group.active;
  if (is_setup(call.round)) {
    known_.complete_setup(group.id, call.round.sequence);
  } else {
    group.rounds_done++;
    if (group.phase != Phase::kRuns) RoundBoard::add(board_.rounds_replayed, 1);
    if (group.phase == Phase::kRuns && call.schedule != nullptr && call.schedule->exchanges()) exchange_->proved();
  }
  call.contributors = known_.contributors_to(call.round);
  forget_input(group);
  group.active = nullptr;
  BufferStream* const stream = stream_of(call);
  if (stream != nullptr && is_root_of_broadcast(call.spec, group.rank) && group.phase == Phase::kRuns &&
      !group.interrupted && !group.resumed) {
    stream->result_is_there();
  }
  enter(group, Phase::kIdle);
  board_.end(group.slot / 2);
  RoundBoard::add(board_.rounds_finished, 1);
  conclude(call, Status());
  start_next(group);
}

// The call's round is over: the interrupt of a generation undoes it no more.
void Engine::conclude(Call& call, const Status& status) {
  if (BufferStream* stream = stream_of(call); stream != nullptr) {
    if (status.ok()) stream->conclude();
    return end(call, status);
  }
  if (!status.ok() || call.buffers == nullptr || !call.buffers->delivers()) return finish(call, status);
  deliveries_.push_back(&call);
}

Call* Engine::take_delivery() {
  if (deliveries_.empty()) return nullptr;
  Call* call = deliveries_.front();
  deliveries_.erase(deliveries_.begin());
  return call;
}

void Engine::finish(Call& call, const Status& status) {
  outstanding_--;
  call.status = status.ok() || call.setup.empty() ? status : status.because_of_this(name_of(call));
  if (!call.status.ok() && call.status.round().empty()) call.status = call.status.about(call.round);
  if (trace_ != nullptr) trace_->ended(call);
  std::shared_ptr<Call> self = std::move(call.self);
  for (const auto& part : std::exchange(call.parts, {})) end_unsent(part, call.status);
  // The caller may free a blocking call as soon as it sees this.
  if (call.callback == nullptr) call.settled.store(true, std::memory_order_release);
  call.finished.store(true, std::memory_order_release);
  if (self) finished_calls_.push_back(std::move(self));
}

void Engine::end_unsent(const std::shared_ptr<Call>& call, const Status& status) {
  call->status = status;
  if (trace_ != nullptr && call->traced) trace_->ended(*call);
  if (call->callback == nullptr) call->settled.store(true, std::memory_order_release);
  call->finished.store(true, std::memory_order_release);
  finished_calls_.push_back(call);
}

void Engine::fail(const Status& status, Rank peer) {
  if (failed_) return;
  failed_ = true;
  failure_ = Failure{peer == kNoRank ? status : status.about(peer), peer};
}

// Instead of what has failed beside it, which another generation would mend.
void Engine::fail_by_program(const Status& status) {
  failed_ = true;
  failure_ = Failure{status, kNoRank, true};
}

void Engine::check(Group& group) {
  const auto runs = [&] { return group.phase == Phase::kRuns || group.phase == Phase::kAgrees; };
  while (group.active != nullptr &&
         (group.phase == Phase::kDone || (runs() && !group.light.runs() && group.executor.done()))) {
    if (runs() && !group.executor.status().ok()) {
      // The call ends with the generation: the tracker's word says who is to blame.
      const Status status = group.executor.status().about(group.active->round);
      if (group.executor.program_failed()) {
        fail_by_program(status);
      } else {
        fail(status, group.executor.failed_peer());
      }
      break;
    }
    if (group.phase == Phase::kAgrees) {
      enter(group, Phase::kWaits);
      hear_words(group);
      if (group.agreed) begin(group);
      continue;
    }
    // On disk too, where mode sync says so, before the call returns.
    if (group.phase == Phase::kRuns && group.awaited != 0 && !recall_->may_be_seen(group.awaited)) break;
    if (group.phase == Phase::kRuns) {
      board_.computed(group.ran_light ? group.light.bytes_sent() : group.executor.bytes_sent());
    }
    complete(group);
  }
  if (group.active != nullptr) move_on(*group.active);
  for (auto& [call, status] : group.points.finished()) {
    RoundBoard::add(board_.rounds_finished, 1);
    if (call->spec.sends) RoundBoard::add(board_.bytes_moved, call->spec.count * element_bytes(call->spec));
    conclude(*call, status);
  }
  group.points.finished().clear();
  if (auto gap = group.points.take_gap()) gap_ = Gap{.reason = std::move(*gap), .setup = {}};
  if (group.point_shown && group.active == nullptr && !group.points.busy()) {
    board_.end(group.slot / 2);
    group.point_shown = false;
  }
  if (!group.points.status().ok()) fail(group.points.status(), group.points.failed_peer());
  settle(group);
}

void Engine::cancel(std::uint64_t id) {
  (void)recall_->cancel(id);
  wanted_.erase(id);
}

bool Engine::drain_recalls() {
  if (recall_ == nullptr || (!question_ && !recall_->has_done())) return false;
  bool some = false;
  for (Replayer::Done& done : recall_->take_done()) {
    some = true;
    recalled(std::move(done));
  }
  look_at_question();
  return some;
}

// Rounds that have waited until a disk has what they published.
bool Engine::settle_published() {
  if (recall_ == nullptr || recall_->newest() == 0) return false;
  bool some = false;
  for (auto& [id, group] : groups_) {
    if (group->active == nullptr || group->phase != Phase::kRuns) continue;
    const bool settled = group->executor.settle();
    if (!settled && group->awaited == 0) continue;
    const Call* before = group->active;
    check(*group);
    some = some || settled || group->active != before;
  }
  return some;
}

bool Engine::take_done_gpu_work() {
  bool some = false;
  while (const auto done = gpu_work_->take_done()) {
    some = true;
    for (auto& [id, group] : groups_) {
      if (!group->executor.on_done(*done)) continue;
      check(*group);
      break;
    }
  }
  return some;
}

bool Engine::take_done_exchanged() {
  bool some = false;
  while (const auto done = exchange_->take_done()) {
    some = true;
    Group& world = *groups_.at(kWorldGroup);
    if (world.executor.on_exchanged(*done)) check(world);
  }
  return some;
}

bool Engine::progress() {
  if (stopped() || !open_) return false;
  if (light_ != nullptr) {
    Group& group = *light_;
    if (go_light(group)) {
      check(group);
      return true;
    }
  }
  const bool recalled_some = drain_recalls();
  const bool settled_some = settle_published();
  completions_.resize(64);
  const std::size_t n = transport_.poll(completions_);
  for (std::size_t i = 0; i < n; i++) {
    Completion& c = completions_[i];  // what it holds of a mate's memory goes with it
    const auto slot = static_cast<std::uint32_t>(c.token >> 32);
    WARREN_CHECK(slot < by_slot_.size(), "tokens carry a slot of this engine");
    Group* group = by_slot_[slot];
    if (group == nullptr) continue;  // a send of a group that was removed when its bytes had been taken
    if (slot == group->slot) {
      group->executor.on_completion(c.token, c.status, std::move(c.view));
    } else {
      group->points.on_completion(c.token, c.status);
    }
    check(*group);
    if (group->departed && group->points.clean()) release_departed();
  }
  return n != 0 || recalled_some || settled_some;
}

void Engine::stop(const Status& why) {
  WARREN_CHECK(!why.ok(), "a generation ends for a reason");
  if (stopped()) return;
  broken_ = why;
  open_ = false;
  light_ = nullptr;
  prepares_.clear();
  for (Call* call : std::exchange(deliveries_, {})) finish(*call, why);
  if (recall_ != nullptr) recall_->suspend();
  transport_.close_all();
  if (exchange_ != nullptr) exchange_->close();
  for (auto& [id, group] : groups_) {
    const bool by_program = group->executor.program_failed();
    const auto reason = [&](const Status& own) {
      // Where ranks disagree, both ends find the same, and one of them has been told to all.
      const bool told = own.code() == Code::kDesync && why.code() == Code::kDesync;
      // What the owner was told is what it stops this for.
      const bool own_end = by_program && !failure_;
      return own.ok() || told || own_end ? why : own.because_of_this(why.code(), std::string(why.describe()));
    };
    forget_exchange(*group);
    if (group->active != nullptr && group->active->prepare != Call::Prepare::kRuns) {
      end(*std::exchange(group->active, nullptr), reason(group->executor.status()));
      forget_input(*group);
      enter(*group, Phase::kIdle);
      board_.end(group->slot / 2);
    }
    group->executor.abandon();
    group->light.abandon();
    for (; !group->queue.empty(); group->queue.pop()) finish(*group->queue.front(), why);
    const Status point_reason = reason(group->points.status());
    for (Call* call : group->points.abandon()) finish(*call, point_reason);
    settle(*group);
  }
  for (auto& [id, group] : departed_) {
    (void)group->points.abandon();
    settle(*group);
  }
}

std::optional<Engine::Failure> Engine::take_failure() {
  return std::exchange(failure_, std::nullopt);
}

}  // namespace warren::worker
