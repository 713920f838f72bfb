#include "worker/device/device_combines.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include "recovery/check.h"

namespace warren::worker {

std::optional<warren_type> reduced_as(DataType type, ReduceOp op) {
  if (op != ReduceOp::kSum && op != ReduceOp::kProduct && op != ReduceOp::kMin && op != ReduceOp::kMax &&
      op != ReduceOp::kAverage) {
    return std::nullopt;
  }
  switch (type) {
    case DataType::kF32: return WARREN_F32;
    case DataType::kF16:
    case DataType::kF32AsF16: return WARREN_F16;
    case DataType::kBF16:
    case DataType::kF32AsBF16: return WARREN_BF16;
    default: return std::nullopt;
  }
}

DeviceCombines::~DeviceCombines() {
  if (flow_ && flow_->under_way() != 0) give_up();
}

std::uint64_t DeviceCombines::begin(Work work) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = ++newest_;
  // Whoever has begun it ends with this life.
  if (failed_) return id;
  open_.fetch_add(1, std::memory_order_release);
  waiting_.push_back({id, std::move(work)});
  return id;
}

std::optional<Elsewhere::Done> DeviceCombines::take_done() {
  const std::lock_guard lock(mutex_);
  if (done_.empty()) return std::nullopt;
  Done done = std::move(done_.front());
  done_.pop_front();
  return done;
}

Status DeviceCombines::open_flow() {
  DeviceCopies& copies = copies_on_(shares_.device());
  auto never = copies.make_event();
  if (!never.ok()) return never.status();
  never_ = std::move(never).value();
  // One that was kept may stand on a stream of the program's.
  const auto stream = copies.make_stream();
  if (!stream.ok()) return stream.status();
  if (const Status status = copies.record(*never_, stream.value()->get()); !status.ok()) return status;
  flow_.emplace(copies, *never_);
  return {};
}

// Null: the GPU does not serve it.
std::optional<DeviceCopies::Flow::Reduction> DeviceCombines::kernel_for(const Work& work) {
  const auto type = reduced_as(work.type, work.op);
  if (!type || work.operands.size() > WARREN_DEVICE_MAX_INPUTS) return std::nullopt;
  // It divides by what it has read.
  if (work.op == ReduceOp::kAverage && work.contributors != work.operands.size()) return std::nullopt;
  DeviceCopies::Flow::Reduction reduction;
  for (const Operand& operand : work.operands) {
    // A place that a peer has told may be any.
    const bool aligned = reinterpret_cast<std::uintptr_t>(operand.at) % (work.bytes / work.count) == 0;
    if (!operand.on_gpu || !aligned) return std::nullopt;
    reduction.operands.push_back(operand.at);
  }
  reduction.count = work.count;
  reduction.bytes = work.bytes;
  reduction.type = *type;
  reduction.op = static_cast<warren_op>(work.op);
  reduction.bracketing = work.bracketing == Bracketing::kChain ? WARREN_DEVICE_CHAIN : WARREN_DEVICE_BALANCED;
  return reduction;
}

// Begins the one that has waited longest, if it gets what it needs.
Result<bool> DeviceCombines::next_job() {
  Job job;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) return false;
    job = std::move(waiting_.front());
    waiting_.pop_front();
  }
  const auto found = find_memory(job);
  if (!found.ok()) return found;
  if (!found.value()) {
    const std::lock_guard lock(mutex_);
    waiting_.push_front(std::move(job));
    return false;
  }
  const bool lands = job.landed != nullptr;
  std::byte* to = job.memory();
  if (job.made_at != nullptr) {
    cut(job, to, job.made_at.get(), lands ? kSlotBytes : job.work.bytes);
  } else {
    for (const Operand& operand : job.work.operands) {
      if (!operand.on_gpu) continue;
      cut(job, to, operand.at, lands ? kSlotBytes : kDeviceChunkBytes);
      to += job.work.bytes;
    }
  }
  jobs_.push_back(std::move(job));
  return true;
}

// False: there is some when others have ended. A place on the GPU comes last: to have taken it, and to wait, would push
// out results that stand there.
Result<bool> DeviceCombines::find_memory(Job& job) {
  const Work& work = job.work;
  const bool is_kernel = kernel_for(work).has_value();
  const std::size_t bytes_of_all =
      static_cast<std::size_t>(std::ranges::count(work.operands, true, &Operand::on_gpu)) * work.bytes;
  if (work.stays && (!is_kernel || work.bytes > shares_.most_results())) {
    return Status(Code::kExhausted,
                  "the GPU has no room for a piece of " + std::to_string(work.bytes) + " bytes that it is to combine");
  }
  auto pinned = arena_.take(is_kernel ? work.bytes : bytes_of_all);
  if (pinned.ok() && is_kernel) {
    job.made_at = shares_.take_result(work.bytes, job.number);
    // What was made before leaves, and makes room.
    if (job.made_at == nullptr && work.stays) return false;
    if (job.made_at == nullptr) pinned = arena_.take(bytes_of_all);
  }
  if (pinned.ok()) {
    job.pinned = std::make_shared<PinnedArena::Block>(std::move(pinned).value());
    return true;
  }
  if (pinned.status().code() != Code::kExhausted) return pinned.status();
  {
    const std::lock_guard lock(mutex_);
    if (!jobs_.empty() || !done_.empty()) return false;
  }
  // The calls that have it all may wait for this.
  WARREN_CHECK(shares_.landing() != nullptr, "who has anything on the GPU has that");
  if (is_kernel) job.made_at = shares_.take_result(work.bytes, job.number);
  if (job.made_at == nullptr && work.stays) return false;
  const std::size_t bytes = job.made_at != nullptr ? work.bytes : bytes_of_all;
  job.landed = {new (std::nothrow) std::byte[bytes], std::default_delete<std::byte[]>()};
  if (job.landed != nullptr) return true;
  return pinned.status().because_of_this("the process has no " + std::to_string(bytes) +
                                         " bytes of memory in the place of pinned memory");
}

void DeviceCombines::cut(Job& job, std::byte* to, const std::byte* from, std::size_t most_bytes) {
  for (std::size_t at = 0; at < job.work.bytes; at += most_bytes) {
    job.parts.push_back({to + at, from + at, std::min(most_bytes, job.work.bytes - at)});
  }
}

// As far as there is room.
Status DeviceCombines::queue(Job& job) {
  while (job.queued < job.parts.size() && flow_->has_room()) {
    const bool lands = job.landed != nullptr;
    if (lands && job.queued - job.taken == kSlots) break;
    const Part& part = job.parts[job.queued];
    std::byte* const to = lands ? slot(job.queued) : part.to;
    Status status;
    if (job.queued++ == 0 && job.made_at != nullptr) {
      auto kernel = *kernel_for(job.work);
      kernel.bytes = part.bytes;
      status = flow_->reduced(to, job.made_at.get(), kernel);
    } else {
      status = flow_->to_host(to, part.from, part.bytes);
    }
    if (!status.ok()) return status;
    job.ends = ++queued_;
  }
  return {};
}

// Makes room for the next ones.
void DeviceCombines::take_landed(Job& job) {
  while (job.taken < job.queued && job.ends - (job.queued - job.taken) < flow_->arrived()) {
    const Part& part = job.parts[job.taken];
    std::memcpy(part.to, slot(job.taken), part.bytes);
    job.taken++;
  }
}

// Those that have come; true if there was one.
bool DeviceCombines::conclude() {
  bool some = false;
  if (!jobs_.empty() && jobs_.front().landed != nullptr) take_landed(jobs_.front());
  while (!jobs_.empty() && jobs_.front().queued == jobs_.front().parts.size() &&
         jobs_.front().ends <= flow_->arrived()) {
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    Done done;
    done.id = job.id;
    const std::byte* at = job.memory();
    done.memory = job.pinned != nullptr ? std::shared_ptr<const void>(job.pinned) : job.landed;
    if (job.made_at != nullptr) {
      done.made = at;
      done.on_gpu = {job.made_at.get(), job.number};
      if (job.work.stays) done.stays = std::move(job.made_at);
    } else {
      for (const Operand& operand : job.work.operands) {
        done.operands.push_back(operand.on_gpu ? at : nullptr);
        if (operand.on_gpu) at += job.work.bytes;
      }
    }
    const std::lock_guard lock(mutex_);
    done_.push_back(std::move(done));
    open_.fetch_sub(1, std::memory_order_release);
    some = true;
  }
  return some;
}

Result<bool> DeviceCombines::move() {
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return false;
  }
  if (!flow_) {
    if (const Status status = open_flow(); !status.ok()) return fail(status);
  }
  const auto looked = flow_->look();
  if (!looked.ok()) return fail(looked.status());
  const bool some = conclude();
  for (;;) {
    if (jobs_.empty() || jobs_.back().queued == jobs_.back().parts.size()) {
      if (!flow_->has_room()) break;
      const auto begun = next_job();
      if (!begun.ok()) return fail(begun.status());
      if (!begun.value()) break;
    }
    if (const Status status = queue(jobs_.back()); !status.ok()) return fail(status);
    if (jobs_.back().queued != jobs_.back().parts.size()) break;
  }
  return some;
}

// The GPU may still write to the memory, or read it.
void DeviceCombines::give_up() {
  for (Job& job : jobs_) {
    if (job.pinned != nullptr) job.pinned->abandon();
    arena_.abandon();  // and the landing
  }
}

Status DeviceCombines::fail(const Status& why) {
  give_up();
  const std::lock_guard lock(mutex_);
  failed_ = true;
  waiting_.clear();
  open_.store(0, std::memory_order_release);
  return why;
}

void DeviceCombines::settle() {
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
  }
  while (flow_ && flow_->under_way() != 0) {
    const auto some = flow_->look();
    if (!some.ok()) return;
    if (!some.value()) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace warren::worker
