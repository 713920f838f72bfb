#include "worker/device/device_exchange.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>

#include "recovery/base/check.h"
#include "storage/xxh3.h"
#include "worker/device/device_combines.h"
#include "worker/device/device_library.h"

namespace warren::worker {
namespace {

constexpr auto kLook = std::chrono::milliseconds(1);

std::string said_by(const warren_device_table& table) {
  const char* const text = table.error_text();
  return text == nullptr || *text == 0 ? "no reason was given" : text;
}

// What NCCL, or a GPU that does not answer, may still read and write: it is nobody's any more, for as long as the
// process lives.
void leave(std::map<std::uint64_t, GpuExchange::Turn> what) {
  static std::mutex& mutex = *new std::mutex;
  static auto& all = *new std::vector<std::map<std::uint64_t, GpuExchange::Turn>>;
  const std::lock_guard lock(mutex);
  all.push_back(std::move(what));
}

}  // namespace

Result<NcclLibrary> find_nccl(const warren_device_table& table) {
  NcclLibrary found;
  const char* file = nullptr;
  if (table.nccl_version(&found.version, &file) != WARREN_DEVICE_OK) return Status(Code::kUnavailable, said_by(table));
  found.file = file;
  return found;
}

DeviceExchange::~DeviceExchange() {
  const auto until = Clock::now() + timeout_;
  for (const Holder& c : ending_) {
    std::unique_lock lock(c->mutex);
    if (c->changed.wait_until(lock, until, [&] { return c->ended || c->lost; }) && c->ended) continue;
    leave(std::move(c->under_way));
    arena_.abandon();
  }
  while (flow_ && flow_->under_way() != 0) {
    const auto some = flow_->look();
    if (!some.ok()) break;
    if (!some.value()) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  if (flow_ && flow_->under_way() != 0) {
    for (Job& job : jobs_) {
      if (job.pinned != nullptr) job.pinned->abandon();
    }
    arena_.abandon();  // and what is landed on
  }
  if (stream_ && arena_.abandoned()) stream_->abandon();
  if (landing_ == nullptr || arena_.abandoned()) return;
  (void)table_.free_pinned(landing_);
  if (checksums_on_gpu_ != nullptr) (void)table_.release(shares_.device(), checksums_on_gpu_);
}

void DeviceExchange::prepare() {
  start_root();
  const std::int32_t device = shares_.device();
  {
    const std::lock_guard lock(mutex_);
    if (device == WARREN_DEVICE_HOST || landing_ != nullptr || std::exchange(prepares_, true)) return;
  }
  const Status taken = take_memory(device);
  const std::lock_guard lock(mutex_);
  prepares_ = false;  // what was refused may be there for a later call
  if (taken.ok() || std::exchange(told_of_memory_, true)) return;
  tell_(true, taken.describe() + "; until there is, large allreduces among GPUs go by way of the CPU");
}

// Nothing of NCCL's is on the GPU: without this memory no round is exchanged.
Status DeviceExchange::take_memory(std::int32_t device) {
  const std::string what = "what goes by NCCL has no room on GPU " + std::to_string(device) + ", or beside it";
  // Behind what waits for peers a kernel could not be loaded.
  if (const auto code = table_.load(device); code != WARREN_DEVICE_OK) return device_error(table_, code, what);
  void *landing = nullptr, *on_gpu = nullptr;
  auto code = table_.allocate_pinned(kDeviceChunkBytes + kChecksumBytes, &landing);
  if (code != WARREN_DEVICE_OK) return device_error(table_, code, what);
  if (checks_) code = table_.allocate(device, kChecksumBytes, &on_gpu);
  if (code != WARREN_DEVICE_OK) {
    Status refused = device_error(table_, code, what);
    (void)table_.free_pinned(landing);
    return refused;
  }
  const std::lock_guard lock(mutex_);
  landing_ = static_cast<std::byte*>(landing);
  checksums_on_gpu_ = static_cast<std::uint64_t*>(on_gpu);
  return {};
}

// A process takes a while to be started.
void DeviceExchange::start_root() {
  std::uint64_t generation = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!wants_root_ || root_starts_ || root_ != nullptr || current_ != nullptr || !may_take_part()) return;
    root_starts_ = true;
    generation = generation_;
  }
  auto root = roots_();
  const std::lock_guard lock(mutex_);
  root_starts_ = false;
  if (generation != generation_ || !open_) return;
  if (!root.ok()) return has_no_root(root.status());
  root_ = std::move(root).value();
}

void DeviceExchange::has_no_root(const Status& why) {
  root_failed_ = true;
  root_ = nullptr;
  failures_++;
  tell_(true, why.describe() + "; large allreduces among GPUs go by way of the CPU until the next generation");
}

void DeviceExchange::open(Generation generation, std::int32_t rank, std::int32_t size) {
  const std::lock_guard lock(mutex_);
  open_ = true;
  generation_ = generation.value;
  rank_ = rank;
  size_ = size;
  wants_root_ = root_failed_ = false;
}

// Whoever drives the engine drops what has been begun.
void DeviceExchange::close() {
  const std::lock_guard lock(mutex_);
  open_ = false;
  generation_ = 0;
  root_ = nullptr;
  id_ = std::nullopt;
  open_count_ -= waiting_.size();
  waiting_.clear();
  done_.clear();
  if (current_ == nullptr) return;
  bool joined = false;
  {
    const std::lock_guard its(current_->mutex);
    joined = current_->joined;
  }
  // That not all have joined, and nobody has asked until now, is most likely why the generation ends: a rank has died.
  if (joined) tell_of(*current_);
  {
    const std::lock_guard its(current_->mutex);
    current_->ends = true;
    current_->ends_since = Clock::now();
    if (current_->joined) without_since_ = current_->ends_since;
    current_->changed.notify_all();
  }
  ending_.push_back(std::move(current_));
  current_ = nullptr;
}

bool DeviceExchange::serves(DataType type, ReduceOp op, std::int32_t size) const {
  return reduced_as(type, op).has_value() && size > 1 && size <= WARREN_DEVICE_MAX_INPUTS;
}

// Finals stay among what is made until they have left, a few at once.
std::shared_ptr<std::byte> DeviceExchange::take_scratch(std::uint64_t bytes, std::uint64_t piece_bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (landing_ == nullptr) return nullptr;
  }
  if (piece_bytes == 0 || piece_bytes > kMostMessageBytes || shares_.most_results() / piece_bytes < kResultsAtOnce)
    return nullptr;
  return shares_.take(bytes);
}

Status DeviceExchange::overdue() const {
  const std::lock_guard lock(mutex_);
  if (broken_ || !is_overdue()) return {};
  return {Code::kTimeout, "NCCL's communicator of a generation that is over has not ended in " +
                              std::to_string(timeout_.count()) + " ms, or cannot"};
}

bool DeviceExchange::is_overdue() const {
  return std::ranges::any_of(ending_, [&](const Holder& c) {
    const std::lock_guard its(c->mutex);
    return c->lost || (!c->ended && Clock::now() - c->ends_since > timeout_);
  });
}

// Once that it is ready, and once that it has failed.
void DeviceExchange::tell_of(Communicator& c) {
  std::string why;
  Clock::time_point ready_since;
  {
    const std::lock_guard its(c.mutex);
    if (c.stage == Communicator::Stage::kJoins || c.stage == c.told) return;
    c.told = c.stage;
    why = c.why;
    ready_since = c.ready_since;
  }
  if (why.empty()) {
    std::string text = "NCCL moves the bytes of large allreduces among GPUs from here on";
    if (without_since_) {
      const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(ready_since - *without_since_);
      text += ": its communicator was there " + std::to_string(took.count()) +
              " ms after the end of the generation that had one before";
    }
    return tell_(false, text);
  }
  failures_++;
  tell_(true, why + "; large allreduces among GPUs go by way of the CPU" +
                  (failures_ >= kMostFailures ? " for the rest of this life" : " until the next generation"));
}

bool DeviceExchange::ready() const {
  const std::lock_guard lock(mutex_);
  if (!open_ || broken_ || current_ == nullptr) return false;
  const std::lock_guard its(current_->mutex);
  return current_->stage == Communicator::Stage::kReady;
}

bool DeviceExchange::may_take_part() const {
  return open_ && !broken_ && !root_failed_ && failures_ < kMostFailures &&
         std::ranges::all_of(ending_,
                             [](const Holder& c) {
                               const std::lock_guard its(c->mutex);
                               return c->ended;
                             }) &&
         shares_.device() != WARREN_DEVICE_HOST;
}

GpuExchange::Word DeviceExchange::word(bool could) {
  const std::lock_guard lock(mutex_);
  std::erase_if(ending_, [](const Holder& c) {
    const std::lock_guard its(c->mutex);
    return c->ended;
  });
  bool ready = false, failed = false;
  if (current_ != nullptr) {
    tell_of(*current_);
    const std::lock_guard its(current_->mutex);
    ready = current_->stage == Communicator::Stage::kReady;
    failed = current_->stage == Communicator::Stage::kFailed;
  }
  Word word;
  word.ready = could && ready && open_ && !broken_;
  word.takes_part = !failed && may_take_part();
  wants_root_ = wants_root_ || rank_ == 0;
  if (!word.takes_part || ready || root_ == nullptr) return word;
  if (!id_) {
    auto id = root_->id();
    if (!id.ok()) {
      has_no_root(id.status());
      word.takes_part = false;
      return word;
    }
    id_ = id.value();
  }
  word.id = id_;
  return word;
}

// The same words on all ranks: all join, or none does.
void DeviceExchange::heard(std::span<const Word> words) {
  const std::lock_guard lock(mutex_);
  if (!open_ || words.empty()) return;
  if (std::ranges::all_of(words, &Word::ready)) root_ = nullptr;  // all have met
  if (current_ != nullptr || !words[0].id || !std::ranges::all_of(words, &Word::takes_part)) return;
  current_ = std::make_shared<Communicator>();
  try {
    std::thread(live, current_, std::cref(table_), shares_.device(), *words[0].id, size_, rank_, timeout_).detach();
  } catch (const std::system_error& e) {
    current_->stage = Communicator::Stage::kFailed;
    current_->why = std::string("there is no thread for NCCL: ") + e.what();
    current_->ended = true;
  }
}

// What fails now and then is no reason to do without: most of it is others' deaths.
void DeviceExchange::proved() {
  const std::lock_guard lock(mutex_);
  failures_ = 0;
}

void DeviceExchange::distrust(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (current_ != nullptr) fail(*current_, why);
}

// The communicator's thread.
void DeviceExchange::live(const Holder& c, const warren_device_table& table, std::int32_t device, const Word::Id& id,
                          std::int32_t size, std::int32_t rank, std::chrono::milliseconds timeout) {
  const auto until = Clock::now() + timeout;
  void* handle = nullptr;
  auto code = table.nccl_join(device, id.data(), size, rank, &handle);
  std::string why = code == WARREN_DEVICE_OK || code == WARREN_DEVICE_NOT_READY ? "" : said_by(table);
  std::unique_lock lock(c->mutex);
  c->handle = handle;
  while (!c->ends && why.empty()) {
    lock.unlock();
    code = table.nccl_state(handle);
    if (code == WARREN_DEVICE_FAILED) why = said_by(table);
    lock.lock();
    if (code != WARREN_DEVICE_NOT_READY) break;
    if (Clock::now() > until) why = "not all ranks have joined in " + std::to_string(timeout.count()) + " ms";
    c->changed.wait_for(lock, kLook, [&] { return c->ends; });
  }
  if (!why.empty()) {
    c->stage = Communicator::Stage::kFailed;
    c->why = "NCCL's communicator was not made: " + why;
  } else if (!c->ends) {
    c->stage = Communicator::Stage::kReady;
    c->joined = true;
    c->ready_since = Clock::now();
  }
  c->changed.wait(lock, [&] { return c->ends || c->stage == Communicator::Stage::kFailed; });
  lock.unlock();
  const bool ended = handle == nullptr || end(table, device, *c, timeout);
  lock.lock();
  c->ended = ended;
  c->lost = !ended;
  if (ended) c->under_way.clear();
  c->changed.notify_all();
}

// What is under way is told to end; then it is aborted, never destroyed. False: it is still there.
bool DeviceExchange::end(const warren_device_table& table, std::int32_t device, Communicator& c,
                         std::chrono::milliseconds timeout) {
  {
    // Whoever is at it sees next time that it ends.
    const std::lock_guard posts(c.posts);
  }
  const auto until = Clock::now() + timeout / 4;
  if (table.nccl_revoke(c.handle) != WARREN_DEVICE_FAILED) {
    while (table.nccl_state(c.handle) == WARREN_DEVICE_NOT_READY && Clock::now() < until) {
      std::this_thread::sleep_for(kLook);
    }
  }
  if (table.nccl_abort(c.handle) == WARREN_DEVICE_FAILED) return false;
  if (c.stream == nullptr) return true;
  // That the call has returned does not say that the GPU is done.
  void* event = nullptr;
  if (table.make_event(device, &event) != WARREN_DEVICE_OK ||
      table.record(device, event, c.stream) != WARREN_DEVICE_OK) {
    return false;
  }
  auto code = WARREN_DEVICE_NOT_READY;
  const auto most = Clock::now() + timeout;
  while ((code = table.query(device, event)) == WARREN_DEVICE_NOT_READY && Clock::now() < most) {
    std::this_thread::sleep_for(kLook);
  }
  if (code == WARREN_DEVICE_OK) (void)table.end_event(device, event);
  return code == WARREN_DEVICE_OK;
}

std::uint64_t DeviceExchange::begin(Turn turn) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = ++newest_;
  if (broken_ || !open_) return id;
  open_count_++;
  waiting_.emplace_back(id, std::move(turn));
  return id;
}

bool DeviceExchange::busy() const {
  return open_count_ != 0 || !overdue().ok();
}

std::optional<GpuExchange::Done> DeviceExchange::take_done() {
  const std::lock_guard lock(mutex_);
  if (done_.empty()) return std::nullopt;
  Done done = std::move(done_.front());
  done_.pop_front();
  return done;
}

Status DeviceExchange::open_streams() {
  if (flow_) return {};
  DeviceCopies& copies = copies_on_(shares_.device());
  auto stream = copies.make_stream();
  if (!stream.ok()) return stream.status();
  stream_ = std::move(stream).value();
  flow_.emplace(copies);
  return {};
}

// Of no use any more, to anybody: the engine hears it, and the generation ends.
void DeviceExchange::fail(Communicator& c, const std::string& why) {
  const std::lock_guard its(c.mutex);
  if (c.stage == Communicator::Stage::kFailed) return;
  c.stage = Communicator::Stage::kFailed;
  c.why = "NCCL has failed: " + why;
  c.changed.notify_all();
}

// Gives NCCL the next turn, if it has taken the one before.
Status DeviceExchange::post() {
  if (!jobs_.empty() && jobs_.back().stage == Job::Stage::kPosted) return {};
  if (jobs_.size() == kTurnsAtOnce) return {};
  Job job;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) return {};
    job.id = waiting_.front().first;
    job.turn = std::move(waiting_.front().second);
    job.generation = generation_;
    job.communicator = current_;
    waiting_.pop_front();
  }
  WARREN_CHECK(job.communicator != nullptr, "what is exchanged has a communicator");
  Communicator& c = *job.communicator;
  std::vector<warren_device_message> messages;
  for (const Message& m : job.turn) messages.push_back({m.at, m.bytes, m.peer, m.sends ? 1 : 0});
  auto reached = copies_on_(shares_.device()).make_event();
  if (!reached.ok()) return reached.status();
  job.reached = std::move(reached).value();
  while (std::ranges::any_of(jobs_, [&](const Job& other) { return other.place == job.place; })) job.place++;
  job.since = Clock::now();
  std::string why;
  {
    const std::lock_guard posts(c.posts);
    {
      const std::lock_guard its(c.mutex);
      if (c.ends || c.stage != Communicator::Stage::kReady) why = c.why.empty() ? "the generation is over" : c.why;
      if (why.empty()) {
        c.under_way[job.id] = job.turn;
        c.stream = stream_->get();
      }
    }
    if (why.empty() &&
        table_.nccl_exchange(c.handle, messages.data(), messages.size(), stream_->get()) == WARREN_DEVICE_FAILED) {
      why = said_by(table_);
    }
  }
  jobs_.push_back(std::move(job));
  if (!why.empty()) {
    fail(c, why);
    done_with(jobs_.back(), Status(Code::kPeerLost, "NCCL does not take messages among GPUs: " + why));
    jobs_.pop_back();
  }
  return {};
}

void DeviceExchange::done_with(Job& job, const Status& status) {
  const std::lock_guard lock(mutex_);
  open_count_--;
  if (job.generation != generation_ || generation_ == 0) return;
  Done done;
  done.id = job.id;
  done.status = status;
  done.on_cpu = std::move(job.on_cpu);
  done.on_cpu.resize(job.turn.size(), nullptr);
  done.memory = std::move(job.memory);
  done.checksums = std::move(job.checksums);
  done.checksums.resize(job.turn.size(), 0);
  done_.push_back(std::move(done));
}

// Behind the turn: of what it has sent and received, on their way to the CPU.
Status DeviceExchange::queue_checksums(Job& job) {
  if (!checks_) return {};
  const std::int32_t device = shares_.device();
  const auto begin = checksums_on_gpu_ + job.place * kChecksumsOfTurn;
  std::size_t count = 0;
  for (const Message& m : job.turn) {
    // A final goes to all others.
    const auto same = std::ranges::find_if(
        job.turn, [&](const Message& other) { return other.at == m.at && other.bytes == m.bytes; });
    if (const auto first = static_cast<std::size_t>(same - job.turn.begin()); first < job.sums_at.size()) {
      job.sums_at.push_back(job.sums_at[first]);
      continue;
    }
    job.sums_at.push_back(count);
    const std::size_t blocks = (m.bytes + WARREN_DEVICE_CHECKSUM_BLOCK - 1) / WARREN_DEVICE_CHECKSUM_BLOCK;
    WARREN_CHECK(count + blocks <= kChecksumsOfTurn, "messages are as few, and as small, as take_scratch() allows");
    const auto code = table_.checksum(device, begin + count, m.at, m.bytes, stream_->get());
    if (code != WARREN_DEVICE_OK) return device_error(table_, code, "a checksum of what NCCL has moved");
    count += blocks;
  }
  const auto code = table_.to_host(device, landing_ + kDeviceChunkBytes + job.place * kChecksumsOfTurn * sizeof *begin,
                                   begin, count * sizeof *begin, stream_->get());
  return code == WARREN_DEVICE_OK ? Status() : device_error(table_, code, "checksums of what NCCL has moved");
}

// They have come.
void DeviceExchange::take_checksums(Job& job) {
  if (!checks_) return;
  const std::byte* const all = landing_ + kDeviceChunkBytes + job.place * kChecksumsOfTurn * sizeof(std::uint64_t);
  for (std::size_t m = 0; m < job.turn.size(); m++) {
    const std::size_t blocks = (job.turn[m].bytes + WARREN_DEVICE_CHECKSUM_BLOCK - 1) / WARREN_DEVICE_CHECKSUM_BLOCK;
    job.checksums.push_back(xxh3({all + job.sums_at[m] * sizeof(std::uint64_t), blocks * sizeof(std::uint64_t)}));
  }
}

// True: it is done, and to be taken off.
Result<bool> DeviceExchange::advance(Job& job) {
  Communicator& c = *job.communicator;
  if (job.stage != Job::Stage::kCopies) {
    std::string why;
    bool reached = false;
    {
      // Nothing of this is aborted meanwhile: what has been reached is there.
      const std::lock_guard posts(c.posts);
      bool gone = false;
      {
        const std::lock_guard its(c.mutex);
        gone = c.ends;
        if (c.stage == Communicator::Stage::kFailed) why = c.why;
      }
      if (gone) {
        done_with(job, Status(Code::kClosed, "the generation is over"));
        return true;
      }
      if (why.empty() && job.stage == Job::Stage::kPosted) {
        const auto state = table_.nccl_state(c.handle);
        if (state == WARREN_DEVICE_FAILED) why = said_by(table_);
        if (state == WARREN_DEVICE_OK) {
          if (const Status queued = queue_checksums(job); !queued.ok()) return queued;
          const Status marked = copies_on_(shares_.device()).record(*job.reached, stream_->get());
          if (!marked.ok()) return marked;
          job.stage = Job::Stage::kQueued;
        }
      }
      if (why.empty() && job.stage == Job::Stage::kQueued) {
        // First what has been reached: a kernel that leaves because of an error does so when NCCL knows of that.
        const auto code = table_.query(shares_.device(), job.reached->get());
        if (code != WARREN_DEVICE_OK && code != WARREN_DEVICE_NOT_READY) {
          return device_error(table_, code, "NCCL on GPU " + std::to_string(shares_.device()));
        }
        const auto state = table_.nccl_state(c.handle);
        if (state == WARREN_DEVICE_FAILED) why = said_by(table_);
        reached = code == WARREN_DEVICE_OK && state == WARREN_DEVICE_OK;
      }
    }
    if (why.empty() && !reached) {
      if (Clock::now() - job.since < timeout_) return false;
      why = "nothing has come of a turn for " + std::to_string(timeout_.count()) + " ms";
    }
    if (!why.empty()) {
      fail(c, why);
      done_with(job, Status(Code::kPeerLost, "NCCL has not moved messages among GPUs: " + why));
      return true;
    }
    {
      const std::lock_guard its(c.mutex);
      c.under_way.erase(job.id);
    }
    take_checksums(job);
    job.stage = Job::Stage::kCopies;
    // They are on one stream: only now can something come of the one behind it.
    const auto next = std::ranges::find_if(jobs_, [](const Job& other) { return other.stage != Job::Stage::kCopies; });
    if (next != jobs_.end()) next->since = Clock::now();
    std::size_t bytes = 0;
    for (const Message& m : job.turn) bytes += m.to_cpu ? m.bytes : 0;
    if (bytes == 0) {
      done_with(job, {});
      return true;
    }
  }
  const auto copied = copy(job);
  if (!copied.ok() || !copied.value()) return copied;
  done_with(job, {});
  return true;
}

// Memory of the CPU for what is wanted there. False: not yet.
Result<bool> DeviceExchange::find_memory(Job& job) {
  std::size_t bytes = 0;
  for (const Message& m : job.turn) bytes += m.to_cpu ? m.bytes : 0;
  auto pinned = arena_.take(bytes);
  if (pinned.ok()) {
    job.pinned = std::make_shared<PinnedArena::Block>(std::move(pinned).value());
    job.memory = {job.pinned, job.pinned->data()};
  } else {
    if (pinned.status().code() != Code::kExhausted) return pinned.status();
    // The calls that have it all may wait for this: it comes by way of what is there for that, one after the other.
    if (landing_for_ != 0) return false;
    job.memory = {new (std::nothrow) std::byte[bytes], std::default_delete<std::byte[]>()};
    if (job.memory == nullptr) {
      return pinned.status().because_of_this("the process has no " + std::to_string(bytes) +
                                             " bytes of memory in the place of pinned memory");
    }
    landing_for_ = job.id;
  }
  std::byte* to = job.memory.get();
  for (const Message& m : job.turn) {
    job.on_cpu.push_back(m.to_cpu ? to : nullptr);
    if (!m.to_cpu) continue;
    for (std::size_t at = 0; at < m.bytes; at += kDeviceChunkBytes) {
      job.parts.push_back({to + at, m.at + at, std::min(kDeviceChunkBytes, m.bytes - at)});
    }
    to += m.bytes;
  }
  return true;
}

// To the CPU, what is wanted there. True: it has come.
Result<bool> DeviceExchange::copy(Job& job) {
  if (job.memory == nullptr) {
    const auto found = find_memory(job);
    if (!found.ok() || !found.value()) return found;
  }
  const bool lands = landing_for_ == job.id;
  while (true) {
    const bool came = job.ends <= flow_->arrived();
    if (lands && came && job.taken < job.begun) {
      const Job::Part& part = job.parts[job.taken++];
      std::memcpy(part.to, landing_, part.bytes);
    }
    if (job.begun == job.parts.size()) {
      if (came && lands) landing_for_ = 0;
      return came;
    }
    if (!flow_->has_room() || (lands && !came)) return false;
    const Job::Part& part = job.parts[job.begun++];
    if (const Status status = flow_->to_host(lands ? landing_ : part.to, part.from, part.bytes); !status.ok())
      return status;
    job.ends = ++queued_;
  }
}

// The GPU may still write to the memory, or read it.
Status DeviceExchange::give_up(const Status& why) {
  for (Job& job : jobs_) {
    if (job.pinned != nullptr) job.pinned->abandon();
  }
  arena_.abandon();
  const std::lock_guard lock(mutex_);
  broken_ = true;
  waiting_.clear();
  open_count_ = 0;
  return why;
}

Result<bool> DeviceExchange::move() {
  {
    const std::lock_guard lock(mutex_);
    if (broken_) return false;
  }
  if (const Status late = overdue(); !late.ok()) return give_up(late);
  if (open_count_ == 0) return false;
  Status status = open_streams();
  if (!status.ok()) return give_up(status);
  if (const auto looked = flow_->look(); !looked.ok()) return give_up(looked.status());
  bool some = false;
  status = post();
  for (auto job = jobs_.begin(); job != jobs_.end() && status.ok();) {
    const auto done = advance(*job);
    if (!done.ok()) return give_up(done.status());
    some = some || done.value();
    job = done.value() ? jobs_.erase(job) : std::next(job);
  }
  if (status.ok()) status = post();
  if (!status.ok()) return give_up(status);
  return some;
}

}  // namespace warren::worker
