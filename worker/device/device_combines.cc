#include "worker/device/device_combines.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

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
  if (!flow_ || flow_->under_way() == 0) return;
  for (Job& job : jobs_) job.pinned->abandon();
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
  const Work& work = job.work;
  const auto on_gpu = static_cast<std::size_t>(std::ranges::count(work.operands, true, &Operand::on_gpu));
  if (kernel_for(work)) job.made_at = shares_.take_result(work.bytes, job.number);
  const std::size_t bytes = job.made_at != nullptr ? work.bytes : on_gpu * work.bytes;
  auto pinned = arena_.take(bytes);
  if (!pinned.ok()) {
    const std::lock_guard lock(mutex_);
    // What others have ends, and makes room.
    if (jobs_.empty() && done_.empty()) return pinned.status();
    waiting_.push_front(std::move(job));
    return false;
  }
  job.pinned = std::make_shared<PinnedArena::Block>(std::move(pinned).value());
  std::byte* to = job.pinned->data();
  if (job.made_at != nullptr) {
    job.parts.push_back({to, job.made_at.get(), work.bytes});
  } else {
    for (const Operand& operand : work.operands) {
      for (std::size_t at = 0; operand.on_gpu && at < work.bytes; at += kDeviceChunkBytes) {
        job.parts.push_back({to + at, operand.at + at, std::min(kDeviceChunkBytes, work.bytes - at)});
      }
      if (operand.on_gpu) to += work.bytes;
    }
  }
  jobs_.push_back(std::move(job));
  return true;
}

// As far as there is room.
Status DeviceCombines::queue(Job& job) {
  while (job.queued < job.parts.size() && flow_->has_room()) {
    const Part& part = job.parts[job.queued++];
    const Status status = job.made_at != nullptr ? flow_->reduced(part.to, job.made_at.get(), *kernel_for(job.work))
                                                 : flow_->to_host(part.to, part.from, part.bytes);
    if (!status.ok()) return status;
    job.ends = ++queued_;
  }
  return {};
}

// Those that have come; true if there was one.
bool DeviceCombines::conclude() {
  bool some = false;
  while (!jobs_.empty() && jobs_.front().queued == jobs_.front().parts.size() &&
         jobs_.front().ends <= flow_->arrived()) {
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    Done done;
    done.id = job.id;
    const std::byte* at = job.pinned->data();
    done.memory = std::move(job.pinned);
    if (job.made_at != nullptr) {
      done.made = at;
      done.on_gpu = {job.made_at.get(), job.number};
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
Status DeviceCombines::fail(const Status& why) {
  for (Job& job : jobs_) job.pinned->abandon();
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
