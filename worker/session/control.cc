#include "worker/session/control.h"

#include <sodium.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "recovery/base/overloaded.h"
#include "recovery/wire/codec.h"
#include "storage/secret.h"
#include "storage/segment_memory.h"
#include "storage/start_thread.h"
#include "storage/zeromq.h"
#include "worker/life/dead_segments.h"
#include "worker/rounds/logged.h"
#include "worker/session/memberships.h"
#include "worker/session/process_traits.h"
#include "worker/settings/agreed.h"
#include "worker/system/netinfo.h"
#include "worker/system/stacks.h"

namespace warren::worker {
namespace {

constexpr std::int64_t kLookAtDrainMs = 20;
constexpr std::int64_t kStackTimeoutMs = 200;  // for one thread
// A tracker that answers no more is called again over a new connection: after this time, or some heartbeats if they are
// rarer, and then more and more seldom.
constexpr std::int64_t kLeastPatienceMs = 2000;

warren_log_level level_of(Severity severity) {
  switch (severity) {
    case Severity::kDebug:
    case Severity::kInfo: return WARREN_LOG_INFO;
    case Severity::kWarning: return WARREN_LOG_WARNING;
    case Severity::kError: return WARREN_LOG_ERROR;
  }
  return WARREN_LOG_ERROR;
}

// A process that lives and has not written any either waits or has just been called: nothing in it can be stale.
bool may_hold_stale(const KeeperLink::Kept& kept) {
  const auto segment = map_segment(kept.fd.get(), kept.bytes);
  if (!segment.ok()) return true;
  const auto view = SegmentView::open(segment.value().bytes, kept.life);
  return !view.ok() || ever_written(view.value());
}

}  // namespace

Control::Control(const Settings& settings, const Log& log, const RoundBoard& board, DataPath& data_path,
                 const Services& services)
    : log_(log),
      board_(board),
      data_path_(data_path),
      tracker_name_(to_string(HostPort{settings.tracker_host, settings.tracker_port})),
      job_(settings.job),
      host_id_(settings.host_id),
      worker_id_(settings.worker_id),
      round_timeout_ms_(settings.round_timeout_ms),
      services_(services),
      self_(services.self),
      drain_ms_(settings.drain_ms),
      hang_timeout_ms_(settings.hang_timeout_ms),
      ends_process_(settings.on_rollback == OnRollback::kExit),
      logs_(settings.replicas != 0),
      sample_ms_(sample_interval_ms(settings.round_timeout_ms)),
      progress_(sample_ms_) {}

Result<std::unique_ptr<Control>> Control::create(const Settings& settings, const Log& log, const RoundBoard& board,
                                                 DataPath& data_path, const Services& services) {
  if (sodium_init() < 0) return Status(Code::kInternal, "libsodium does not start");
  std::unique_ptr<Control> control(new Control(settings, log, board, data_path, services));
  const Status status = control->open(settings);
  if (!status.ok()) return status;
  return control;
}

Status Control::start() {
  if (hang_timeout_ms_ != 0) prepare_stacks();
  return start_thread(thread_, [this] { loop(); });
}

void Control::stop() {
  if (!thread_.joinable()) return;
  post([this](auto&) { ends_ = true; });
  thread_.join();
}

Status Control::open(const Settings& settings) {
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  watch_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (wake_fd_ < 0 || watch_fd_ < 0) {
    return {Code::kUnavailable, std::string("cannot make a descriptor: ") + std::strerror(errno)};
  }
  std::optional<storage::JobCredentials> credentials;
  if (!settings.no_auth) {
    auto secret = storage::Secret::load(settings.secret_file);
    if (!secret.ok()) return secret.status().because_of_this("cannot join job " + settings.job);
    auto loaded = secret.value().for_job(settings.job);
    if (!loaded.ok()) return loaded.status().because_of_this("cannot join job " + settings.job);
    credentials = std::move(loaded).value();
  }
  const handshake::LinkKey link_key = credentials ? credentials->link_key : handshake::LinkKey();

  if (Status s = has_room_for_zeromq(1); !s.ok()) return s.because_of_this("cannot call the tracker");
  const std::int64_t patience_ms = std::max(kLeastPatienceMs, 4 * heartbeat_interval_ms(settings.round_timeout_ms));
  tracker_ = std::make_unique<TrackerSocket>(tracker_name_, std::move(credentials), patience_ms);
  if (Status s = tracker_->renew(); !s.ok()) return s;
  tracker_->heard(now());

  const auto reach = open_links(settings, link_key);
  if (!reach.ok()) return reach.status();
  if (services_.segment != nullptr) {
    const Status status = open_segments(settings, link_key);
    if (!status.ok()) return status.because_of_this("cannot share the log with the other ranks of this host");
  }
  life_sign_ = LifeSign::from_environment();
  life_sign_.limit(settings.round_timeout_ms);
  if (settings.on_sigterm == OnSigterm::kDrain) {
    auto sigterm = SigtermCount::take();
    if (!sigterm.ok()) return sigterm.status();
    sigterm_ = std::move(sigterm).value();
  }
  return make_machine(settings, reach.value());
}

// Listens for data links. kUnavailable: no port, or no address.
Result<Control::Reach> Control::open_links(const Settings& settings, const handshake::LinkKey& link_key) {
  auto addresses = choose_data_addresses(settings.bind_address, settings.advertise_address, settings.tracker_host,
                                         settings.tracker_port, std::chrono::milliseconds(settings.join_timeout_ms));
  if (!addresses.ok()) return addresses.status().because_of_this("cannot accept data links");
  connector_ = std::make_unique<Connector>(settings.job, link_key, self_, link_events());
  auto port =
      listen_in(settings.port_range, [&](std::uint16_t at) { return connector_->listen(addresses.value().bind, at); });
  if (!port.ok()) return port.status().because_of_this("cannot accept data links");
  bool maps = settings.transport != kTcpTransport;
  if (maps) {
    if (const Status status = connector_->listen_on_host(); !status.ok()) {
      maps = false;
      log_(WARREN_LOG_WARNING, "links to ranks of this host go over TCP: " + status.describe());
    }
  }
  return Reach{addresses.value().advertise, port.value(), maps};
}

Connector::Events Control::link_events() {
  Connector::Events events;
  events.connected = [this](Generation generation, GroupId group, Rank peer, std::uint16_t stream, int fd,
                            std::unique_ptr<HostPipe> pipe) {
    // Seen at once when the peer's process dies, also while this one computes. Edge-triggered: bytes wake nobody.
    // Before the data path has it: from then on it may close the descriptor at any time, which also ends the watching.
    epoll_event event{};
    event.events = EPOLLRDHUP | EPOLLET;
    event.data.u64 = generation.value << 16 | static_cast<std::uint64_t>(static_cast<std::uint32_t>(peer.value));
    (void)epoll_ctl(watch_fd_, EPOLL_CTL_ADD, fd, &event);
    (void)data_path_.adopt(generation, group, peer, stream, fd, std::move(pipe));
  };
  events.failed = [this](GroupId group, Rank peer, const Status& why) {
    data_path_.link_failed(group, peer, why);
    link_broken(machine_->generation(), peer, why.describe());
  };
  events.gone = [this](Generation generation, Rank peer, const std::string& evidence) {
    std::vector<WorkerEffect> effects;
    machine_->on_peer_gone(generation, peer, evidence, now(), effects);
    run_effects(std::move(effects));
  };
  events.warning = [this](const std::string& text) { log_(WARREN_LOG_WARNING, text); };
  return events;
}

// Makes the worker's machine, with the join that it sends. kInvalidArgument: the settings cannot be sent.
Status Control::make_machine(const Settings& settings, const Reach& reach) {
  WorkerMachine::Options options;
  options.job = settings.job;
  options.self = self_;
  options.join_timeout_ms = settings.join_timeout_ms;
  options.join_within_ms = services_.join_within_ms;
  options.tracker_name = tracker_name_;
  options.follows = settings.spare_follows && settings.replicas != 0;
  wire::Join& join = options.join;
  join.set_worker_id(settings.worker_id);
  join.set_host_id(settings.host_id);
  join.set_join_timeout_ms(static_cast<std::uint64_t>(settings.join_timeout_ms));
  join.set_domain_id(settings.domain_id);
  auto* endpoint = join.add_endpoints();
  endpoint->set_address(reach.address);
  endpoint->set_port(reach.port);
  join.set_attempt(settings.attempt);
  join.set_resize(settings.resize);
  // Also one whose place the job has gone on without: until it is taken in again.
  join.set_waits(settings.spares != 0 || settings.min_workers != 0);
  looks_for_dead_ = join.waits();
  join.set_spare(services_.spare);
  if (services_.spare && options.follows) *join.mutable_followed() = {};
  join.set_software(WARREN_VERSION);
  *join.mutable_traits() = traits_of_process(reach.maps, services_.gpu);
  *join.mutable_settings() = agreed_settings(settings, services_.costs, services_.nccl);
  join.set_fetch_port(services_.fetch_port);
  if (segments_) join.set_segment_socket(segments_->socket());
  if (services_.held) *join.mutable_held() = *services_.held;
  if (services_.logged && !services_.spare) {
    if (auto logged = services_.logged(); !says_nothing(logged)) *join.mutable_logged() = std::move(logged);
  }
  const Status valid = warren::validate(join);
  if (!valid.ok()) return valid.because_of_this(Code::kInvalidArgument, "the settings cannot be sent to the tracker");
  machine_.emplace(std::move(options));
  return {};
}

Status Control::open_segments(const Settings& settings, const handshake::LinkKey& link_key) {
  SegmentExchange::Events events = services_.mates;
  events.complete = [this](Generation generation) {
    connector_->mates_are_there();
    data_path_.open(generation);
  };
  events.failed = [this](Generation generation, Rank mate, const Status& why) {
    link_broken(generation, mate, why.describe());
  };
  events.warning = [this](const std::string& text) { log_(WARREN_LOG_WARNING, text); };
  auto made = SegmentExchange::create(settings.job, link_key, self_, services_.segment, std::move(events));
  if (!made.ok()) return made.status();
  segments_ = std::move(made).value();
  if (!services_.spare) map_kept(offer_segment(Generation()));
  return {};
}

// Null: there is no keeper.
std::shared_ptr<KeeperLink> Control::offer_segment(Generation called) const {
  const auto keeper = process_environment()(kKeeperVariable);
  if (!keeper) return nullptr;
  auto link =
      KeeperLink::offer(*keeper, {job_, host_id_, worker_id_, self_, services_.segment, called}, round_timeout_ms_);
  if (link.ok()) return std::move(link).value();
  // The mates still have it; only the last process of the host is not outlived.
  log_(WARREN_LOG_WARNING, "the launcher does not keep this worker's log: " + link.status().describe());
  return nullptr;
}

void Control::map_kept(std::shared_ptr<KeeperLink> keeper) {
  keeper_ = std::move(keeper);
  if (!keeper_) return;
  for (KeeperLink::Kept& kept : keeper_->take()) {
    const Status status = segments_->add(kept.life, std::move(kept.fd), kept.bytes);
    if (!status.ok()) log_(WARREN_LOG_WARNING, "an earlier life's log is not used: " + status.describe());
    if (machine_) beat();
  }
}

Control::~Control() {
  stop();
  life_sign_.leave();
  connector_.reset();
  segments_.reset();
  tracker_.reset();
  if (wake_fd_ >= 0) ::close(wake_fd_);
  if (watch_fd_ >= 0) ::close(watch_fd_);
}

TimeMs Control::now() const {
  return {std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
              .count()};
}

void Control::post(Work work) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(work));
  }
  const std::uint64_t one = 1;
  (void)!::write(wake_fd_, &one, sizeof one);
}

void Control::tell(Machine what) {
  post([this, what = std::move(what)](auto& effects) { what(*machine_, now(), effects); });
}

void Control::link_broken(Generation generation, Rank peer, const std::string& evidence) {
  tell([generation, peer, evidence](auto& machine, TimeMs at, auto& effects) {
    machine.on_link_broken(generation, peer, evidence, at, effects);
  });
}

void Control::want_link(GroupId group, Rank peer) {
  post([this, group, peer](auto&) { connector_->want(group, peer, now()); });
}

void Control::finalize(Version last) {
  post([this, last](auto& effects) { machine_->finalize(last, now(), effects); });
}

void Control::leave(const std::string& reason) {
  post([this, reason](auto& effects) { machine_->leave(readable(reason), now(), effects); });
}

void Control::end_life(const Status& why) {
  post([this, why](auto& effects) {
    life_sign_.ended(readable(why), logs_);
    machine_->leave(readable(why.describe()), now(), effects);
  });
}

void Control::abort(const std::string& reason) {
  post([this, reason](auto&) { data_path_.aborted(reason); });
}

void Control::tick() {
  post([](auto&) {});
}

void Control::drain(std::int64_t within_ms, const std::string& reason) {
  post([this, within_ms, reason](auto&) { begin_drain(now() + within_ms, reason, false); });
}

void Control::map(const worker_effect::Called& call) {
  std::shared_ptr<KeeperLink> keeper = segments_ ? offer_segment(call.generation) : nullptr;
  if (keeper && call.stale) {
    for (const KeeperLink::Kept& kept : keeper->take()) {
      if (may_hold_stale(kept)) keeper->forget_stale(kept.life);
    }
  }
  post([this, keeper = std::move(keeper)](auto&) {
    map_kept(keeper);
    data_path_.mapped();
  });
}

void Control::forget_segment(Incarnation life, bool over) {
  post([this, life, over](auto&) {
    segments_->forget(life);
    if (keeper_ && over) keeper_->forget(life);
  });
}

void Control::lend(std::uint32_t memory, std::shared_ptr<const OwnedFd> fd, std::uint64_t bytes, bool on_gpu) {
  if (!segments_) return;
  post([this, memory, fd = std::move(fd), bytes, on_gpu](auto&) { segments_->lend(memory, fd, bytes, on_gpu); });
}

void Control::take_back(std::uint32_t memory) {
  if (!segments_) return;
  post([this, memory](auto&) { segments_->take_back(memory); });
}

void Control::answer(Incarnation life, std::uint32_t memory, bool mapped) {
  if (!segments_) return;
  post([this, life, memory, mapped](auto&) { segments_->answer(life, memory, mapped); });
}

// When the thread is to look again, with no word from anywhere. nullopt: never.
std::optional<TimeMs> Control::next_deadline() {
  std::optional<TimeMs> deadline = machine_->next_deadline();
  if (const auto d = connector_->next_deadline(); d && (!deadline || *d < *deadline)) deadline = d;
  if (const auto d = data_path_.tick(); d && (!deadline || *d < *deadline)) deadline = d;
  if (segments_) {
    if (const auto d = segments_->next_deadline(); d && (!deadline || *d < *deadline)) deadline = d;
  }
  // A life in a job looks at what it does.
  if (machine_->state() == WorkerMachine::State::kMember)
    deadline = std::min(deadline.value_or(next_sample_), next_sample_);
  if (drains()) {
    // A life that serves may be told to go at once, too. When its time is over its machine knows.
    const TimeMs look = now() + kLookAtDrainMs;
    const bool serves = machine_->state() == WorkerMachine::State::kServing;
    deadline = std::min({deadline.value_or(look), look, serves ? look : *leave_by_});
  }
  return deadline;
}

// Shows the launcher that this life is in its job, and goes on.
void Control::show_life() {
  // A life that has nothing to wait for is in no job any more.
  if (machine_->next_deadline()) {
    life_sign_.beat();
    if (board_.rounds_computed.load(std::memory_order_relaxed) > 0) life_sign_.worked();
  } else if (!data_path_.may_hang()) {
    life_sign_.leave();  // else it stands still: the launcher ends a process that hangs
  }
}

void Control::loop() {
  std::vector<WorkerEffect> effects;
  machine_->start(now(), effects);
  run_effects(std::move(effects));
  std::vector<pollfd> fds;
  std::vector<zmq_pollitem_t> items;
  while (true) {
    fds.clear();
    connector_->collect_pollfds(fds);
    if (segments_) segments_->collect_pollfds(fds);
    items.clear();
    tracker_->collect(items);
    items.push_back({nullptr, wake_fd_, ZMQ_POLLIN, 0});
    items.push_back({nullptr, watch_fd_, ZMQ_POLLIN, 0});
    for (const pollfd& p : fds) {
      items.push_back(
          {nullptr, p.fd,
           static_cast<short>((p.events & POLLIN ? ZMQ_POLLIN : 0) | (p.events & POLLOUT ? ZMQ_POLLOUT : 0)), 0});
    }
    const std::optional<TimeMs> deadline = next_deadline();
    show_life();
    const std::int64_t wait_ms = deadline ? std::clamp<std::int64_t>(*deadline - now(), 0, 60'000) : -1;
    if (zmq_poll(items.data(), static_cast<int>(items.size()), static_cast<long>(wait_ms)) < 0 &&
        zmq_errno() != EINTR) {
      log_(WARREN_LOG_ERROR, "waiting for the tracker failed: " + zmq_text());
      const Status why(Code::kInternal, "the control thread cannot wait: " + zmq_text());
      data_path_.carry_out(worker_effect::Fail{why, true});
      return;
    }
    do_posted();
    if (ends_) return;
    receive();
    watch_connection();
    renew_silent_connection();
    watch_links();
    look_at_drain();
    connector_->run(now());
    if (segments_) segments_->run(now());
    if (machine_->state() == WorkerMachine::State::kMember && now() >= next_sample_) {
      next_sample_ = now() + sample_ms_;
      look_at_run_delay();
      progress_.sample(board_, now());
      look_whether_hung();
    }
    if (const auto d = machine_->next_deadline(); d && *d <= now()) {
      set_progress();
      effects.clear();
      machine_->on_tick(now(), effects);
      run_effects(std::move(effects));
    }
  }
}

void Control::do_posted() {
  std::uint64_t count = 0;
  (void)!::read(wake_fd_, &count, sizeof count);
  std::vector<Work> posted;
  {
    const std::lock_guard lock(mutex_);
    posted.swap(posted_);
  }
  for (const Work& work : posted) {
    std::vector<WorkerEffect> effects;
    work(effects);
    run_effects(std::move(effects));
  }
}

void Control::receive() {
  while (auto envelope = tracker_->receive()) {
    std::vector<WorkerEffect> effects;
    if (envelope->ok()) {
      tracker_->heard(now());
      machine_->on_message(envelope->value(), now(), effects);
    } else {
      log_(WARREN_LOG_WARNING, "a message from " + tracker_name_ + " was dropped: " + envelope->status().describe());
      machine_->on_connection_trouble(envelope->status().describe(), now(), effects);
    }
    run_effects(std::move(effects));
  }
}

void Control::renew_silent_connection() {
  if (!machine_->next_deadline() || !tracker_->is_silent(now())) return;
  if (const Status s = tracker_->renew_silent(now()); !s.ok()) on_connection_trouble(s.describe());
}

void Control::watch_connection() {
  while (const auto trouble = tracker_->next_trouble(now())) on_connection_trouble(*trouble);
}

void Control::on_connection_trouble(const std::string& what) {
  std::vector<WorkerEffect> effects;
  machine_->on_connection_trouble(what, now(), effects);
  run_effects(std::move(effects));
}

std::string Control::waits_for(Rank peer) const {
  for (const RoundBoard::Entry& entry : board_.read()) {
    const bool waits =
        std::ranges::any_of(entry.waiting_for, [&](const RoundBoard::Waited& w) { return w.rank == peer; });
    if (waits) return ", while this rank waited for it in " + to_string(entry.round);
  }
  return {};
}

void Control::watch_links() {
  epoll_event events[16];
  const int n = epoll_wait(watch_fd_, events, 16, 0);
  for (int i = 0; i < n; i++) {
    if ((events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) == 0) continue;
    const Rank peer(static_cast<std::int32_t>(events[i].data.u64 & 0xffff));
    // An event of a link that closed with its generation says nothing of this one.
    if (events[i].data.u64 >> 16 != (machine_->generation().value & 0xffffffffffff)) continue;
    std::vector<WorkerEffect> effects;
    const bool failed = (events[i].events & EPOLLERR) != 0;
    machine_->on_link_broken(
        machine_->generation(), peer,
        (failed ? "the connection of a data link failed" : "its end of a data link was closed") + waits_for(peer),
        now(), effects);
    run_effects(std::move(effects));
  }
}

void Control::begin_drain(TimeMs by, const std::string& reason, bool with_launcher) {
  // A launcher that stays keeps what this process has logged, and gives it to whom it starts. It may be told after this
  // process, and with a later time, that it does not.
  const bool serves = ends_process_ && (with_launcher || keeper_ == nullptr);
  std::vector<WorkerEffect> effects;
  machine_->drain(by, reason, serves, now(), effects);
  preempted_ = true;
  begin_to_leave(by, reason);
  run_effects(std::move(effects));
}

void Control::begin_to_leave(TimeMs by, const std::string& reason) {
  if (leave_by_ && *leave_by_ <= by) return;
  leave_by_ = by;
  leave_why_ = reason;
  data_path_.begin_nothing();
}

// And has not left: who is in no job has nothing to leave.
bool Control::drains() const {
  return leave_by_ && machine_->next_deadline();
}

void Control::look_at_drain() {
  if (const std::int64_t by_ms = life_sign_.leave_by_ms(); by_ms != 0) {
    begin_drain(TimeMs{by_ms}, "its launcher was told that the machine is needed elsewhere", true);
  }
  if (sigterm_ != nullptr && sigterm_->count() != sigterms_) {
    sigterms_ = sigterm_->count();
    begin_drain(sigterms_ == 1 ? now() + drain_ms_ : now(), "SIGTERM", false);
  }
  const WorkerMachine::State state = machine_->state();
  if (sigterm_ != nullptr && (state == WorkerMachine::State::kFinished || state == WorkerMachine::State::kFailed ||
                              state == WorkerMachine::State::kBroken)) {
    // Nothing is left to drain: the signal is the program's again.
    sigterm_.reset();
  }
  // Who serves has left: its machine says when it may go.
  if (!drains() || state == WorkerMachine::State::kServing) return;
  const bool over = now() >= *leave_by_;
  // The others have only to call finalize, too: a new life would have to run the program to its end.
  if (state == WorkerMachine::State::kLeaving && (!over || !preempted_)) return;
  // A round that was interrupted waits for a plan, and goes on without this life.
  const bool at_once = over || state != WorkerMachine::State::kMember;
  std::vector<WorkerEffect> effects;
  const auto leave = [&] { machine_->leave(leave_why_, now(), effects); };
  if (machine_->may_serve(now())) {
    if (!data_path_.may_leave(at_once)) return;
    leave();
    return run_effects(std::move(effects));
  }
  const bool left = end_process(at_once, [&] {
    leave();
    std::erase_if(effects, [](const WorkerEffect& e) { return !std::holds_alternative<worker_effect::Send>(e); });
    run_effects(std::move(effects));
  });
  if (!left) return;
  life_sign_.drained();
  leave();
  run_effects(std::move(effects));
}

// For the launcher, which does not know the modules and files of this process that call sites are in.
std::string Control::readable(std::string text) const {
  return log_.readable == nullptr ? text : log_.readable(std::move(text));
}

Status Control::readable(const Status& why) const {
  return log_.readable == nullptr ? why : Status(why.code(), log_.readable(why.describe()));
}

// Ends the process of a program that others have waited for as long as the user allows, while it was in no call.
void Control::look_whether_hung() {
  const auto since = progress_.outside_since();
  if (hang_timeout_ms_ == 0 || !since) return;
  const std::int64_t outside_ms = now() - *since, awaited_ms = machine_->awaited_ms(now());
  if (outside_ms < hang_timeout_ms_ || awaited_ms < hang_timeout_ms_) return;
  const Status why(Code::kTimeout, "the program has been outside of calls for " + std::to_string(outside_ms) +
                                       " ms, and another rank has waited for it for " + std::to_string(awaited_ms) +
                                       " ms; hang_timeout_ms allows " + std::to_string(hang_timeout_ms_));
  log_.before_process_ends();
  log_(WARREN_LOG_ERROR, why.describe() + ": this process ends with exit code " + std::to_string(kExitHung) +
                             " to be started again. Its threads:");
  for (const std::string& line : stacks_of_program(kStackTimeoutMs)) log_(WARREN_LOG_ERROR, line);
  life_sign_.ended(why, false);
  _exit(kExitHung);
}

bool Control::end_process(bool at_once, const std::function<void()>& say) {
  // A place that its job has given to a spare is lost, as that of a fenced life is.
  return data_path_.leave(at_once, preempted_ ? kExitPreempted : kExitFenced, [&] {
    life_sign_.drained();
    say();
    tracker_.reset();  // what was said goes out
  });
}

void Control::look_at_run_delay() {
  // A thread that yields gives its core away by itself, and the kernel counts that, too.
  const std::uint64_t yielded_ns = board_.yielded_ns.load(std::memory_order_relaxed);
  const auto yielded_ms = static_cast<std::int64_t>((yielded_ns - std::exchange(yielded_ns_, yielded_ns)) / 1'000'000);
  const std::int64_t delay_ms = run_delay_.since_last(board_.sleeper.load(std::memory_order_relaxed));
  progress_.had_no_core(std::max<std::int64_t>(0, delay_ms - yielded_ms));
}

void Control::set_progress() {
  look_at_run_delay();
  WorkerMachine::Progress progress = progress_.read(board_, now());
  if (services_.disk_trouble) progress.disk_trouble = services_.disk_trouble();
  machine_->set_progress(std::move(progress));
}

void Control::beat() {
  life_sign_.beat();
  if (const auto d = machine_->next_deadline(); !d || *d > now()) return;
  set_progress();
  std::vector<WorkerEffect> effects;
  machine_->keep_alive(now(), effects);
  // All of them go to the tracker: the data path waits in this very thread.
  run_effects(std::move(effects));
}

void Control::install(const wire::Plan& plan) {
  life_sign_.placed();
  progress_.restart();  // a heartbeat may be due while the data path is being installed
  Connector::Membership links = links_of(plan, self_);
  data_path_.install(plan, links.self);
  progress_.restart();  // the board's links count from 0 again
  connector_->begin_generation(std::move(links), now());
  // Calls move when every rank of the host can read what this one logs.
  if (segments_) {
    segments_->begin_generation(mates_of(plan, self_), now());
  } else {
    connector_->mates_are_there();
    data_path_.open(Generation(plan.generation()));
  }
}

// The job has finished: nobody will read what the launcher keeps for it. Lives are named one by one, as a new job may
// have the name by now.
void Control::forget_kept() {
  if (!keeper_) return;
  keeper_->forget(self_);
  if (!segments_) return;
  for (const Incarnation life : segments_->kept()) keeper_->forget(life);
}

void Control::run_effects(std::vector<WorkerEffect> effects) {
  for (std::size_t i = 0; i < effects.size(); i++) {
    std::vector<WorkerEffect> more;
    std::visit(Overloaded{
                   [&](const worker_effect::Send& e) {
                     // A full queue loses the message: the machine repeats what matters.
                     tracker_->send(encode(e.envelope, Side::kWorker));
                   },
                   [&](const worker_effect::Install& e) { install(e.plan); },
                   [&](const worker_effect::StopDataPath& e) {
                     if (!e.resume) life_sign_.ended(readable(e.why), e.fenced && logs_);
                     if (const std::uint64_t bytes = connector_->suspend_generation(e.resume && looks_for_dead_, now());
                         bytes != 0) {
                       log_(WARREN_LOG_INFO, "this rank has passed on " + std::to_string(bytes) +
                                                 " bytes between other ranks, around slow links");
                     }
                     if (segments_) segments_->end_generation();
                     auto standing = data_path_.stop(e);
                     machine_->on_stopped(e.generation, std::move(standing), now(), more);
                   },
                   [&](const worker_effect::Fail& e) {
                     if (e.why.code() == Code::kFinished) forget_kept();
                     life_sign_.ended(readable(e.why), e.fenced && logs_);
                     data_path_.carry_out(e);
                   },
                   [&](const worker_effect::Spare& e) {
                     life_sign_.waits();
                     data_path_.carry_out(e);
                   },
                   [&](const worker_effect::Finished& e) {
                     forget_kept();
                     life_sign_.finished();
                     data_path_.carry_out(e);
                   },
                   [&](const worker_effect::Drain& e) { begin_to_leave(e.by, e.reason); },
                   [&](const worker_effect::Left&) { (void)end_process(true, [] {}); },
                   [&](const worker_effect::Log& e) { log_(level_of(e.event.severity), e.event.text); },
                   [&](const auto&) { data_path_.carry_out(effects[i]); },
               },
               effects[i]);
    effects.insert(effects.begin() + static_cast<std::ptrdiff_t>(i) + 1, std::make_move_iterator(more.begin()),
                   std::make_move_iterator(more.end()));
  }
}

}  // namespace warren::worker
