#include "chaos/sim/launchers.h"

#include <algorithm>
#include <utility>

namespace warren::chaos {
namespace {

constexpr std::size_t kMostLivesPerWorker = 400;
// More calls than a simulated program has outstanding (sim_worker_calls.cc): where these had no room, a job could not
// end.
constexpr std::size_t kFullLogsUnderWay = 10;

}  // namespace

void Launchers::make_slots() {
  const std::uint32_t hosts = 1 + static_cast<std::uint32_t>(run_.draws.below(run_.setting.world_size));
  // Often each rank on a machine of its own.
  const bool apart = run_.draws.chance(0.4);
  // Now and then machines that die together, two by two.
  const bool racks = run_.draws.chance(0.2);
  for (std::uint32_t w = 0; w < run_.setting.world_size; ++w) {
    Slot& slot = slots_.emplace_back();
    slot.worker_id = "w" + std::to_string(w);
    std::uint64_t host = apart ? w : run_.draws.below(hosts);
    if (run_.setting.one_host) host = 0;
    if (run_.setting.together != 0) host %= run_.setting.together;
    slot.host_id = "h" + std::to_string(host);
    slot.domain_id = racks ? "d" + std::to_string(host / 2) : slot.host_id;
    if (w < run_.options.hosts.size()) slot.host_id = slot.domain_id = run_.options.hosts[w];
  }
  for (std::uint32_t i = 0; i < run_.setting.spares; ++i) {
    // On a host of the job, or on one of its own.
    const Slot& other = slots_[(run_.setting.spares_at + i) % run_.setting.world_size];
    const bool elsewhere = (run_.setting.spares_at + i) % 3 == 0;
    Slot slot;
    slot.worker_id = "w" + std::to_string(run_.setting.world_size + i);
    slot.host_id = elsewhere ? "s" + std::to_string(i) : other.host_id;
    slot.domain_id = elsewhere ? slot.host_id : other.domain_id;
    slot.spare = slot.begins_as_spare = crowded_ = true;
    slots_.push_back(std::move(slot));
  }
  for (int spare = 0; spare < 3 && run_.world.strikes(Fault::spare_worker); ++spare) {
    Slot& slot = slots_.emplace_back();
    slot.worker_id = "x" + std::to_string(spare);
    slot.host_id = slot.domain_id = "hx";
    slot.spare = crowded_ = true;
  }
}

void Launchers::start_later(std::size_t slot, Micros delay_us) {
  const std::uint64_t due = ++slots_[slot].starts_due;
  run_.world.after(delay_us, [this, slot, due] {
    Slot& s = slots_[slot];
    if (due != s.starts_due || s.done || s.ended || run_.judge.finished()) return;
    if (s.life && lives_[*s.life]->alive()) return;
    // The same process.
    if (s.begins_again && s.attempt > 0) --s.attempt;
    start_life(slot);
    ++s.attempt;
    s.begins_again = false;
  });
}

void Launchers::see_host(wire::Join& join, std::size_t life) const {
  const Setting& setting = run_.setting;
  if (setting.gpus) join.mutable_traits()->set_gpu(setting.says_gpu);
  if (setting.sees == Setting::Sees::kNothing) {
    if (join.has_traits()) join.mutable_traits()->set_maps(true);
    return;
  }
  const bool alike = setting.sees == Setting::Sees::kTwoCores;
  const std::uint64_t seen = alike ? 0 : Random::mix(run_.options.seed * kMostLivesPerWorker + life);
  wire::Traits& traits = *join.mutable_traits();
  traits.set_cores(alike ? 2 : static_cast<std::uint32_t>(seen % 4));
  traits.set_first_core(static_cast<std::uint32_t>(seen / 4 % 2));
  traits.set_maps(seen / 8 % 4 != 1);
}

void Launchers::start_life(std::size_t slot) {
  const std::size_t life = lives_.size();
  if (life >= kMostLivesPerWorker * slots_.size()) {
    run_.world.violated("I7", std::to_string(life) + " lives did not finish the job");
  }
  SimWorker::Options o = options_of(slot, life);
  slots_[slot].started = true;
  slots_[slot].life = life;
  add_life(slot, std::move(o));
}

SimWorker::Options Launchers::options_of(std::size_t slot, std::size_t life) {
  const Slot& s = slots_[slot];
  const Setting& setting = run_.setting;
  SimWorker::Options o;
  o.life = life;
  o.job = kJob;
  o.join.set_worker_id(s.worker_id);
  o.join.set_host_id(s.host_id);
  o.join.set_domain_id(s.domain_id);
  wire::Endpoint& endpoint = *o.join.add_endpoints();
  endpoint.set_address("10.0.0." + std::to_string(1 + slot % 250));
  endpoint.set_port(static_cast<std::uint32_t>(1024 + life % 60000));
  *o.join.mutable_settings() = setting.job;
  see_host(o.join, life);
  o.join.set_attempt(s.attempt);
  o.join.set_waits(setting.spares != 0 || setting.shrinks());
  const bool spare = s.begins_as_spare || s.begins_again;
  o.join.set_spare(spare);
  o.follows = setting.follows;
  if (o.follows && spare) *o.join.mutable_followed() = {};
  o.join.set_software("simulated");
  o.join_timeout_ms = setting.join_timeout_ms;
  if (setting.job.replicas() > 0) o.join.set_fetch_port(static_cast<std::uint32_t>(1024 + life % 60000));
  o.log_bytes = log_bytes();
  o.ends_process = setting.ends_process;
  o.launcher_keeps_log = !run_.world.strikes(Fault::no_launcher);
  if (setting.disks) {
    auto& disk = run_.disks[s.host_id];
    if (!disk) disk = std::make_shared<storage::FakeResultDisk>();
    o.disk = disk;
    o.disk_takes_states_alone = setting.full_logs;
    if (run_.mirror) o.mirror = &*run_.mirror;
  }
  if (setting.gpus) {
    o.has_gpu = true;
    if (setting.nccl) o.nccl = &nccl_;
    o.nccl_fails = o.gpu_stalls = setting.gpus_fail;
  }
  return o;
}

void Launchers::add_life(std::size_t slot, SimWorker::Options options) {
  const std::size_t life = lives_.size();
  networks_.control.add_life();
  slot_of_life_.push_back(slot);
  lives_.push_back(std::make_unique<SimWorker>(run_.world, run_.judge, networks_.data, run_.hosts, run_.program,
                                               links_of(life, slot), std::move(options)));
  life_of_[lives_.back()->self()] = life;
  lives_.back()->start();
}

SimWorker::Links Launchers::links_of(std::size_t life, std::size_t slot) {
  SimWorker::Links links;
  links.send = [this, life](const std::string& bytes) { networks_.control.send_up(life, bytes); };
  links.ended = [this, slot, life](SimWorker::End end, const Status& why) { ended(slot, life, end, why); };
  links.fetch = [this, life](const worker::Replayer::Send& request) { networks_.fetch.send(life, request); };
  links.mate = [this](Incarnation who) { return find(who); };
  links.killed_at = [this, life](KillPoint point, std::uint64_t passage) {
    return events_.killed_at(life, point, passage);
  };
  links.doomed = [this, life] { events_.doomed(life); };
  links.recovers = [this] { events_.recovers(); };
  links.serves = [this, life, slot] { begin_elsewhere(slot, life); };
  return links;
}

void Launchers::ended(std::size_t slot, std::size_t life, SimWorker::End end, const Status& why) {
  const SimWorker& worker = *lives_[life];
  const bool lost = run_.hosts.ended(worker.self());
  if (lost) run_.judge.memory_lost(worker.host());
  if (lost && worker.installed()) {
    // The last process that held a part of its host's log, and no launcher.
    if (run_.world.keeps_transcript()) run_.world.tell(worker.describe() + " takes a part of its host's log with it");
    events_.log_lost(worker);
  }
  if (slot != kStranger) on_end(slot, life, end, why);
}

// When a machine is taken, a worker's next life is started elsewhere before this one ends. (A life that joins before
// the Leave has arrived would replace a member.)
void Launchers::begin_elsewhere(std::size_t slot, std::size_t life) {
  if (slot == kStranger || slots_[slot].life != life || !events_.is_taken(lives_[life]->host())) return;
  slots_[slot].life.reset();
  // Or does, or has no machine for it.
  Random& random = run_.world.random;
  const bool late = run_.world.rate(Fault::machine_taken) > 0 && random.chance(0.3);
  start_later(slot, late ? random.between(1'000, 3'000) * run_.setting.timeout_ms()
                         : random.between(20'000, random.chance(0.7) ? 60'000 : 300'000));
}

FetchNetwork::Reach Launchers::serve(Incarnation server, const wire::FetchRequest& request,
                                     std::optional<wire::FetchReply>& answer) const {
  SimWorker* life = find(server);
  if (life == nullptr || !life->alive() || life->log() == nullptr) return FetchNetwork::Reach::kGone;
  const bool early = !request.follows() && life->generation().value < request.generation();
  if (early || life->stands_still_until() > run_.world.now_us()) return FetchNetwork::Reach::kNotYet;
  if (!request.follows() && request.generation() < life->generation().value)
    return FetchNetwork::Reach::kServed;  // dropped
  answer = life->serve(request);
  return FetchNetwork::Reach::kServed;
}

void Launchers::on_end(std::size_t slot, std::size_t life, SimWorker::End end, const Status& why) {
  Slot& s = slots_[slot];
  if (s.life != life) return;  // nobody's any more
  const std::string reason = why.describe();
  const auto says = [&](const char* text) { return reason.find(text) != std::string::npos; };
  const bool lost = says("what it would go on from is lost") || says("no version is committed to which the job could");
  s.heard_lost = s.heard_lost || (loss_found_ && lost && !says("the job goes on without this worker"));
  if (end == SimWorker::End::kFinished || run_.judge.finished()) {
    s.done = true;
    return;
  }
  if (s.ended) return;
  if (end == SimWorker::End::kFailed && why.code() == Code::kExhausted) return end_launcher(slot, life, why);
  if (end == SimWorker::End::kBeginsAgain) {
    s.begins_again = true;
    return start_later(slot, run_.world.random.between(100, 5000));
  }
  const bool refused = why.code() == Code::kRefused || why.code() == Code::kClosed;
  Micros delay = run_.world.random.between(1000, refused ? 1'000'000 : 300'000);
  if (away_us_) {
    delay = *away_us_;
  } else if (run_.setting.shrinks() && run_.world.strikes(Fault::stays_away)) {
    // For ever, as far as faults go, or so that it returns about when it is given up, or soon after.
    if (run_.world.random.chance(0.2)) return;
    const Micros grace_us = static_cast<Micros>(run_.setting.job.grace_ms()) * 1000;
    delay = grace_us +
            run_.world.random.between(1000, run_.world.random.chance(0.7) ? 20'000 : 2000 * run_.setting.timeout_ms());
  }
  start_later(slot, delay);
}

// As launcher/launcher.cc: what a job has exhausted would be exhausted again. The launcher starts this worker no
// more, and where the worker had a place it ends its other workers too. Some runs have one
// launcher for each worker.
void Launchers::end_launcher(std::size_t slot, std::size_t life, const Status& why) {
  if (!run_.judge.load_has_failed()) {
    return run_.world.violated("I7", lives_[life]->describe() + " ends a job that could go on: " + why.describe());
  }
  const bool alone = run_.setting.launcher_each || !lives_[life]->installed();
  for (std::size_t other = 0; other < slots_.size(); ++other) {
    if (other == slot) {
      give_up(other);
    } else if (!alone && slots_[other].host_id == slots_[slot].host_id) {
      run_.world.after(run_.world.random.between(0, 5000), [this, other] { give_up(other); });
    }
  }
}

void Launchers::give_up(std::size_t slot) {
  Slot& s = slots_[slot];
  s.ended = s.heard_lost = true;
  if (s.life && lives_[*s.life]->alive()) lives_[*s.life]->die(false);
}

SimWorker* Launchers::any_alive() const {
  std::vector<SimWorker*> alive;
  for (const auto& life : lives_) {
    if (life->alive()) alive.push_back(life.get());
  }
  return alive.empty() ? nullptr : alive[run_.world.random.below(alive.size())];
}

void Launchers::start_stranger() {
  run_.world.count(Fault::wrong_settings);
  const std::size_t life = lives_.size();
  SimWorker::Options o;
  o.life = life;
  o.job = kJob;
  o.join.set_worker_id("stranger");
  o.join.set_host_id("hs");
  o.join.set_domain_id("hs");
  wire::Endpoint& endpoint = *o.join.add_endpoints();
  endpoint.set_address("10.9.9.9");
  endpoint.set_port(1);
  *o.join.mutable_settings() = run_.setting.job;
  wire::JobSettings& j = *o.join.mutable_settings();
  switch (run_.world.random.below(7)) {
    case 0: j.set_round_timeout_ms(j.round_timeout_ms() + 1); break;
    case 1: j.set_algorithm(j.algorithm() == "ring" ? "tree" : "ring"); break;
    case 2: j.set_chunk_bytes(j.chunk_bytes() + 1); break;
    case 3: j.set_streams(j.streams() + 1); break;
    case 4: j.set_checksums(!j.checksums()); break;
    case 5: j.set_check_call_sites(!j.check_call_sites()); break;
    default: break;
  }
  j.set_world_size(j.world_size() + 1);  // alone it can never be a job
  if (run_.setting.shrinks()) j.set_min_workers(j.world_size());
  if (j.replicas() > 0) o.join.set_fetch_port(1);
  o.join.set_waits(run_.setting.shrinks());
  o.log_bytes = log_bytes();
  o.join_timeout_ms = 500;
  add_life(kStranger, std::move(o));
}

bool Launchers::recovering() const {
  return std::any_of(lives_.begin(), lives_.end(), [](const auto& life) {
    return life->alive() && !life->serving() && (life->suspended() || (life->installed() && life->behind()));
  });
}
void Launchers::start_all() {
  World& world = run_.world;
  const Setting& setting = run_.setting;
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (world.strikes(Fault::absent_worker)) {
      slots_[slot].absent = true;
      continue;
    }
    Micros delay = world.random.between(0, 20'000);
    if (world.strikes(Fault::slow_start)) {
      delay = world.random.between(0, world.random.chance(0.05) ? 14'000'000 : 3000 * setting.timeout_ms());
    }
    const bool late = slot < setting.world_size && slot + setting.late >= setting.world_size;
    if (late) {
      // Often soon after the beginning: most programs are short.
      const Micros begun_us = (setting.timeout_ms() + static_cast<std::int64_t>(setting.job.grace_ms())) * 1000;
      delay = world.random.chance(0.3) ? world.random.between(0, setting.safety_us)
                                       : begun_us + world.random.between(0, 60'000);
    }
    start_later(slot, delay);
  }
}

std::size_t Launchers::log_bytes() const {
  const Program& program = run_.program;
  // Or for what has to stay there and the calls that are under way at once.
  if (run_.setting.full_logs) {
    // Beside the calls, parts of the log that hold little else.
    const std::uint64_t under_way = program.most_result_bytes(kFullLogsUnderWay) + 2 * program.most_result_bytes(1);
    return kMinSegmentBytes + static_cast<std::size_t>(program.result_bytes(true) + under_way) / 4096 * 4096;
  }
  // Or for little more than what has to stay there: the rest spills.
  if (run_.setting.spills) {
    return kMinSegmentBytes + static_cast<std::size_t>(4 * program.result_bytes(true)) / 4096 * 4096;
  }
  return (std::size_t{1} << 20) + static_cast<std::size_t>(2 * program.result_bytes()) / 4096 * 4096;
}

bool Launchers::has_spares() const {
  return std::ranges::any_of(slots_, &Slot::spare);
}

SimWorker* Launchers::find(Incarnation life) const {
  const auto found = life_of_.find(life);
  return found == life_of_.end() ? nullptr : lives_[found->second].get();
}

bool Launchers::is_current(std::size_t life) const {
  const std::size_t slot = slot_of_life_[life];
  return slot != kStranger && slots_[slot].life == life;
}

void Launchers::move(const std::string& host, const std::string& to) {
  for (Slot& slot : slots_) {
    if (slot.host_id != host) continue;
    crowded_ = crowded_ || slot.domain_id != host;  // the rest of the domain has it no more
    slot.host_id = slot.domain_id = to;
  }
}

void Launchers::scatter(const std::string& host) {
  for (Slot& slot : slots_) {
    if (slot.host_id != host) continue;
    const Slot& other = slots_[run_.world.random.below(slots_.size())];
    crowded_ = true;
    slot.host_id = std::string(other.host_id);
    slot.domain_id = std::string(other.domain_id);
  }
}

std::string Launchers::domain_of(const std::string& host) const {
  const auto slot = std::ranges::find(slots_, host, &Slot::host_id);
  return slot == slots_.end() ? "" : slot->domain_id;
}

void Launchers::give_up_life(std::size_t slot) {
  run_.judge.given_up(lives_[*slots_[slot].life]->self());
  slots_[slot].life.reset();
}

bool Launchers::all_heard_of_loss() const {
  return std::ranges::all_of(slots_, &Slot::heard_lost);
}

void Launchers::become_live() {
  for (std::size_t i = 0; i < lives_.size(); ++i) {
    // So does a rank that has left a call out where ranks may wait for each other in different groups, or for messages:
    // that no heartbeat can tell from a slow rank.
    SimWorker& life = *lives_[i];
    if (life.alive() && !life.serving() && (!is_current(i) || (life.desynced() && !run_.program.one_group()))) {
      life.die(false);
    }
  }
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    slots_[slot].absent = false;
    if (!slots_[slot].life || !lives_[*slots_[slot].life]->alive()) {
      start_later(slot, run_.world.random.between(0, 1000));
    }
  }
}

}  // namespace warren::chaos
