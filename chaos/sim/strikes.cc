#include "chaos/sim/strikes.h"

#include <algorithm>
#include <set>
#include <utility>

namespace warren::chaos {

void Strikes::inject(Fault fault, std::function<void()> strike) {
  const double rate = run_.world.rate(fault);
  if (rate <= 0) return;
  const auto mean = static_cast<Micros>(1e6 / rate);
  run_.world.after(run_.world.random.between(0, 2 * mean), [this, fault, strike = std::move(strike)] {
    if (run_.world.is_calm()) return;
    strike();
    inject(fault, strike);
  });
}

void Strikes::inject_on_any(Fault fault, std::function<void(SimWorker&)> strike) {
  inject(fault, [this, fault, strike = std::move(strike)] {
    SimWorker* life = launchers_.any_alive();
    if (life == nullptr) return;
    run_.world.count(fault);
    strike(*life);
  });
}

void Strikes::schedule() {
  schedule_losses();
  schedule_leaving();
  schedule_trouble();
  schedule_tracker();
  if (run_.options.straggler && run_.options.straggler->what == Straggler::What::kHung) hang_now_and_then();
}

// Processes, machines and failure domains go.
void Strikes::schedule_losses() {
  inject_on_any(Fault::death, [this](SimWorker& life) { kill(life, false); });
  inject_on_any(Fault::silent_death, [this](SimWorker& life) { kill(life, true); });
  if (run_.setting.job.replicas() > 0) {
    inject(Fault::host_loss, [this] {
      const Launchers::Slot& slot = launchers_.slots()[run_.world.random.below(launchers_.slots().size())];
      if (!copies_.may_lose(slot.domain_id)) return;
      run_.world.count(Fault::host_loss);
      lose_host(std::string(slot.host_id));
    });
    inject(Fault::domain_loss, [this] {
      const std::string domain = some_domain();
      if (!copies_.may_lose(domain)) return;
      run_.world.count(Fault::domain_loss);
      lose_domain(domain);
    });
  }
  inject(Fault::all_die, [this] {
    run_.world.count(Fault::all_die);
    all_die();
  });
  inject(Fault::cluster_loss, [this] {
    run_.world.count(Fault::cluster_loss);
    lose_cluster(false);
  });
}

// Programs give up, and places and machines are needed elsewhere.
void Strikes::schedule_leaving() {
  const Micros timeout_us = run_.setting.timeout_ms() * 1000;
  inject_on_any(Fault::gave_up, [this](SimWorker& life) {
    if (run_.world.random.chance(0.7)) return life.give_up();
    for (const auto& other : launchers_.lives()) {
      if (other->alive()) other->give_up();
    }
  });
  inject_on_any(Fault::preempted, [this, timeout_us](SimWorker& life) {
    launchers_.struck();
    const Micros most = run_.world.random.chance(0.3) ? 10'000 : 3 * timeout_us;
    if (run_.world.random.chance(0.7)) return life.drain(run_.world.random.between(0, most), !life.kept());
    for (const auto& other : launchers_.lives()) {
      if (!other->alive() || !run_.world.random.chance(0.5)) continue;
      other->drain(run_.world.random.between(0, most), !other->kept());
    }
  });
  inject(Fault::machine_taken, [this, timeout_us] {
    const SimWorker* life = launchers_.any_alive();
    if (life == nullptr || !copies_.may_lose(life->domain())) return;
    run_.world.count(Fault::machine_taken);
    take_machine(*life, run_.world.random.between(0, (run_.world.random.chance(0.4) ? 2 : 10) * timeout_us));
    // And another goes without a word.
    run_.world.after(run_.world.random.between(0, run_.world.random.chance(0.7) ? 20'000 : timeout_us), [this] {
      const std::string domain = some_domain();
      if (!run_.world.is_calm() && copies_.may_lose(domain)) lose_domain(domain);
    });
  });
}

// Processes stand still or exist twice; links, messages and strangers.
void Strikes::schedule_trouble() {
  const Micros timeout_us = run_.setting.timeout_ms() * 1000;
  inject_on_any(Fault::pause, [this, timeout_us](SimWorker& life) {
    launchers_.struck();
    life.stand_still(run_.world.random.between(1000, 3 * timeout_us));
  });
  inject_on_any(Fault::connection_drop,
                [this](SimWorker& life) { control_.drop_connection(launchers_.number_of(life)); });
  inject_on_any(Fault::twin_life, [this, timeout_us](SimWorker& life) {
    // Its launcher takes it for dead and starts another, while it runs or stands still and comes back.
    const std::size_t number = launchers_.number_of(life);
    if (!launchers_.is_current(number)) return;
    if (run_.world.random.chance(0.6)) life.stand_still(run_.world.random.between(1000, 4 * timeout_us));
    const std::size_t slot = launchers_.slot_of(number);
    launchers_.give_up_life(slot);
    launchers_.start_later(slot, run_.world.random.between(0, 2 * timeout_us));
  });
  inject(Fault::link_cut, [this] { data_.cut_one(); });
  inject(Fault::link_silent,
         [this, timeout_us] { data_.silence_one(run_.world.random.between(1000, 3 * timeout_us)); });
  inject(Fault::message_replayed, [this] { control_.replay(); });
  inject(Fault::message_misdirected, [this] {
    if (SimWorker* life = launchers_.any_alive()) control_.misdirect(launchers_.number_of(*life), life->self());
  });
  inject(Fault::garbage, [this] {
    if (SimWorker* life = launchers_.any_alive()) control_.garbage(launchers_.number_of(*life));
  });
  inject(Fault::wrong_settings, [this] { launchers_.start_stranger(); });
}

void Strikes::schedule_tracker() {
  const Micros timeout_us = run_.setting.timeout_ms() * 1000;
  inject(Fault::tracker_crash, [this, timeout_us] {
    if (!tracker_.running()) return;
    run_.world.count(Fault::tracker_crash);
    // Now and then for longer than a worker waits for an answer.
    const Micros most = run_.world.random.chance(0.3) ? run_.setting.join_timeout_ms * 1500 : 3 * timeout_us;
    tracker_faults_.crash(false, most);
  });
  inject(Fault::tracker_loss, [this, timeout_us] {
    if (tracker_.running()) tracker_faults_.crash(true, run_.world.random.chance(0.5) ? 100'000 : 2 * timeout_us);
  });
  inject(Fault::older_journal, [this, timeout_us] {
    if (!tracker_.running()) return;
    tracker_faults_.crash(false, run_.world.random.chance(0.5) ? 100'000 : 2 * timeout_us);
    tracker_faults_.restore_journal();
  });
  inject(Fault::tracker_pause, [this, timeout_us] {
    run_.world.count(Fault::tracker_pause);
    tracker_.stand_still(run_.world.random.between(1000, 2 * timeout_us));
  });
  inject(Fault::second_tracker, [this] { second_tracker_.start(); });
  inject(Fault::disk_failure, [this] {
    run_.world.count(Fault::disk_failure);
    tracker_.fail_writes(1 + run_.world.random.below(3));
  });
}

void Strikes::hang_now_and_then() {
  const Straggler& s = *run_.options.straggler;
  run_.world.after(s.off_us + s.on_us, [this, &s] {
    for (const auto& life : launchers_.lives()) {
      if (life->runs() && life->rank() == s.rank) life->stand_still(s.on_us);
    }
    hang_now_and_then();
  });
}

bool Strikes::killed_at(std::size_t life, KillPoint point, std::uint64_t passage) {
  for (const SimOptions::Death& d : run_.options.deaths) {
    if (launchers_.slot_of(life) != d.worker || d.at != point || d.passage != passage) continue;
    if (launchers_.lives().size() <= life || launchers_.life(life).attempt() != d.attempt) continue;
    launchers_.delay_next_start(d.away_us);
    silently_ = d.silently;
    doom_[life] = d.with_disks     ? Doom::kDisks
                  : d.with_cluster ? Doom::kCluster
                  : d.with_host    ? Doom::kHost
                                   : Doom::kAlone;
    return true;
  }
  for (const SimOptions::Notice& n : run_.options.notices) {
    if (launchers_.slot_of(life) != n.worker || n.at != point || n.passage != passage) continue;
    if (launchers_.lives().size() <= life || launchers_.life(life).attempt() != 0) continue;
    take_machine(launchers_.life(life), n.within_us);
    if (n.then)
      run_.world.after(n.then_us, [this, then = *n.then] { lose_host(std::string(launchers_.slots()[then].host_id)); });
  }
  static constexpr Fault kDeaths[] = {Fault::death_between_effects, Fault::death_at_completion,
                                      Fault::death_at_send,         Fault::death_at_return,
                                      Fault::death_at_recall,       Fault::death_at_checkpoint};
  if (!run_.world.strikes(kDeaths[static_cast<std::size_t>(point)])) return false;
  doom_[life] = Doom::kAlone;
  return true;
}

void Strikes::doomed(std::size_t life) {
  SimWorker& worker = launchers_.life(life);
  switch (doom_[life]) {
    case Doom::kAlone: {
      const bool drawn = run_.world.random.chance(0.3);
      kill(worker, silently_.value_or(drawn));
      break;
    }
    case Doom::kHost: lose_host(worker.host()); break;
    case Doom::kCluster: lose_cluster(true); break;
    case Doom::kDisks: lose_cluster(true, true); break;
  }
  launchers_.delay_next_start(std::nullopt);
  silently_.reset();
}

void Strikes::kill(SimWorker& life, bool silently) {
  launchers_.struck();
  life.die(silently);
}

void Strikes::lose_host(const std::string& host) {
  launchers_.struck();
  if (run_.world.keeps_transcript()) run_.world.tell("host " + host + " is lost");
  for (const auto& life : launchers_.lives()) {
    if (life->alive() && life->host() == host) life->die(run_.world.random.chance(0.8));
  }
  run_.hosts.lose(host);
  run_.judge.memory_lost(host);
  run_.disks.erase(host);
  const std::string domain = launchers_.domain_of(host);
  const std::uint64_t where = run_.world.random.below(3);
  const std::string fresh = "n" + std::to_string(++new_hosts_);
  // Else it comes back, empty.
  if (where == 1) launchers_.move(host, fresh);
  if (where == 2) launchers_.scatter(host);
  if (!domain.empty()) copies_.domain_lost(domain);
}

// A cloud's notice: the machine is there for so long, its launcher goes with it, and its workers' next lives begin
// elsewhere.
void Strikes::take_machine(const SimWorker& life, Micros within_us) {
  const std::string& host = life.host();
  if (!taken_.emplace(host, life.domain()).second) return;
  copies_.taken(life.domain());
  launchers_.struck();
  if (run_.world.keeps_transcript())
    run_.world.tell("host " + host + " is taken in " + std::to_string(within_us) + " us");
  launchers_.move(host, "n" + std::to_string(++new_hosts_));
  for (const auto& other : launchers_.lives()) {
    if (other->alive() && other->host() == host) other->drain(within_us, true);
  }
  // They are given a moment more: it is theirs to go in time.
  run_.world.after(within_us + 50'000, [this, host] { lose_machine(host); });
}

void Strikes::lose_machine(const std::string& host) {
  for (const auto& life : launchers_.lives()) {
    if (life->alive() && life->host() == host) life->die(true);
  }
  look_at_taken();
  taken_.erase(host);
  run_.hosts.lose(host);
  run_.disks.erase(host);
}

void Strikes::look_at_taken() {
  for (const auto& taken : taken_) {
    const std::string &host = taken.first, &domain = taken.second;
    if (!copies_.answers_for(host)) continue;
    const bool answers = std::ranges::any_of(launchers_.lives(), [&](const auto& life) {
      return life->alive() && life->host() == host && (!tracker_.running() || tracker_.counts_on(life->self()));
    });
    if (!answers) copies_.no_copy_left(host, domain);
  }
}

void Strikes::lose_domain(const std::string& domain) {
  std::set<std::string> hosts;
  for (const Launchers::Slot& slot : launchers_.slots()) {
    if (slot.domain_id == domain) hosts.insert(slot.host_id);
  }
  for (const std::string& host : hosts) lose_host(host);
}

std::string Strikes::some_domain() {
  return launchers_.slots()[run_.world.random.below(launchers_.slots().size())].domain_id;
}

// Every worker's process, and sometimes the tracker's: launchers live on, and what they keep.
void Strikes::all_die() {
  launchers_.struck();
  if (run_.world.keeps_transcript()) run_.world.tell("all workers die");
  for (const auto& life : launchers_.lives()) {
    if (life->alive()) life->die(run_.world.random.chance(0.5));
  }
  if (tracker_.running() && run_.world.random.chance(0.3))
    tracker_faults_.crash(false, 2000 * run_.setting.timeout_ms());
}

// Every process of the job and its tracker, at once. `gently`: disks keep what was written.
void Strikes::lose_cluster(bool gently, bool with_disks) {
  launchers_.struck();
  if (run_.world.keeps_transcript()) run_.world.tell("all processes are lost");
  // Results that are not durable may be on one disk only, which a second fault takes.
  run_.judge.excuse_rollback();
  for (const auto& life : launchers_.lives()) {
    if (life->alive()) life->die(true);
  }
  std::set<std::string> lost;
  while (!gently && run_.world.random.chance(0.5)) {
    const std::string domain = some_domain();
    if (copies_.may_lose(domain)) {
      lost.insert(domain);
      copies_.domain_lost(domain);
    }
  }
  for (const Launchers::Slot& slot : launchers_.slots()) {
    run_.hosts.lose(slot.host_id);
    run_.judge.memory_lost(slot.host_id);
    if (lost.contains(slot.domain_id)) run_.disks.erase(slot.host_id);
  }
  for (auto& [host, disk] : run_.disks) {
    disk->crash([&] { return gently || run_.world.random.chance(0.5); });
  }
  tracker_.crash();
  if (with_disks || (!gently && tracker_.has_journal() && run_.world.strikes(Fault::disks_loss))) lose_disks();
  if (!gently && run_.world.strikes(Fault::journal_loss)) tracker_faults_.lose_journal();
  if (!gently && run_.world.rate(Fault::older_journal) > 0 && run_.world.random.chance(0.5))
    tracker_faults_.restore_journal();
  run_.world.after(run_.world.random.between(1000, 2000 * run_.setting.timeout_ms()), [this] { tracker_.start(); });
}

// All but the tracker's: the mirror is what is left.
void Strikes::lose_disks() {
  if (run_.world.keeps_transcript()) run_.world.tell("all disks of workers are lost");
  run_.disks.clear();
  run_.judge.disks_lost(run_.mirror ? run_.mirror->held() : std::nullopt, tracker_.may_resume());
}

void Strikes::on_recovery() {
  if (!run_.world.strikes(Fault::second_strike)) return;
  const Micros most = run_.world.random.chance(0.5) ? 1000 : 20'000;
  run_.world.after(run_.world.random.between(0, most), [this] {
    if (!run_.world.is_calm()) strike_again();
  });
}

void Strikes::strike_again() {
  const std::uint64_t at = run_.world.random.below(10);
  if (at == 0) {
    const std::string domain = some_domain();
    if (copies_.may_lose(domain)) return lose_domain(domain);
  }
  if (at == 1 && tracker_.running()) {
    return tracker_faults_.crash(run_.world.rate(Fault::tracker_loss) > 0, 2000 * run_.setting.timeout_ms());
  }
  SimWorker* life = launchers_.any_alive();
  if (life == nullptr) return;
  if (at == 2) {
    launchers_.struck();
    return life->stand_still(run_.world.random.between(1000, 3000 * run_.setting.timeout_ms()));
  }
  kill(*life, run_.world.random.chance(0.3));
}

}  // namespace warren::chaos
