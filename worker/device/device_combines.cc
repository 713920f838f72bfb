#include "worker/device/device_combines.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <string>
#include <utility>

#include "recovery/base/check.h"
#include "worker/transport/host_memory.h"

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
  if ((flow_ && flow_->under_way() != 0) || uploads_.under_way()) give_up();
}

std::uint64_t DeviceCombines::begin(Work work) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t id = ++newest_;
  // Whoever has begun it ends with this life.
  if (failed_) return id;
  open_.fetch_add(1, std::memory_order_release);
  if (work.copies && !work.operands.front().on_gpu) {
    uploads_.begin({id, std::move(work.operands.front()), work.bytes});
  } else {
    waiting_.push_back({{{id, work.bytes, work.made_bytes}}, std::move(work)});
  }
  return id;
}

std::optional<GpuWork::Done> DeviceCombines::take_done() {
  const std::lock_guard lock(mutex_);
  if (done_.empty()) return std::nullopt;
  Done done = std::move(done_.front());
  done_.pop_front();
  return done;
}

// Null: the GPU does not serve it.
std::optional<DeviceCopies::Flow::Reduction> DeviceCombines::kernel_for(const Work& work) {
  const auto type = reduced_as(work.type, work.op);
  if (!type || work.operands.size() < 2 || work.operands.size() > WARREN_DEVICE_MAX_INPUTS) return std::nullopt;
  DeviceCopies::Flow::Reduction reduction;
  for (std::size_t k = 0; k < work.operands.size(); k++) {
    const Operand& operand = work.operands[k];
    const bool comes = k == 0 && !operand.on_gpu && operand.at != nullptr;
    WARREN_CHECK(!operand.on_gpu || k != 0 || work.first_form == Form::kValue, "what is on a GPU are values");
    // A place that a peer has told may be any.
    const bool aligned = reinterpret_cast<std::uintptr_t>(operand.at) % (work.bytes / work.count) == 0;
    if (!comes && (!operand.on_gpu || !aligned)) return std::nullopt;
    reduction.operands.push_back(operand.on_gpu ? operand.at : nullptr);
  }
  reduction.count = work.count;
  reduction.how.inputs = work.operands.size();
  reduction.how.type = *type;
  reduction.how.op = static_cast<warren_op>(work.op);
  reduction.how.bracketing = work.bracketing == Bracketing::kChain ? WARREN_DEVICE_CHAIN : WARREN_DEVICE_BALANCED;
  reduction.how.first_is_partial = work.first_form == Form::kPartial ? 1 : 0;
  reduction.how.unfinished = work.made_form == Form::kPartial ? 1 : 0;
  reduction.how.contributors = work.contributors;
  return reduction;
}

// Whether `next` is just what follows, in each of the operands, and can be found by its number when both are made.
// Should they come to the CPU, all of them come there at once.
bool DeviceCombines::continues(const Job& job, const Work& next) const {
  const Work& work = job.work;
  const std::size_t made = work.made_bytes + next.made_bytes;
  if (work.copies || next.copies || next.type != work.type || next.op != work.op ||
      next.bracketing != work.bracketing || next.first_form != work.first_form || next.made_form != work.made_form ||
      next.contributors != work.contributors || next.stays != work.stays ||
      next.operands.size() != work.operands.size() || work.operands.size() < 2 || !reduced_as(work.type, work.op) ||
      made > kMostJoinedBytes || made > shares_.most_results() / 2 ||
      (work.bytes + next.bytes) * work.operands.size() > kMostUnderWayBytes ||
      work.made_bytes % MadeThere::kAlignment != 0) {
    return false;
  }
  for (std::size_t k = 0; k < work.operands.size(); k++) {
    if (!work.operands[k].on_gpu || !next.operands[k].on_gpu ||
        next.operands[k].at != work.operands[k].at + work.bytes) {
      return false;
    }
  }
  return true;
}

void DeviceCombines::join(Job& job, Job next) {
  std::vector<std::shared_ptr<const void>>& keepers = job.keepers.emplace_back();
  for (Operand& operand : next.work.operands) keepers.push_back(std::move(operand.keeper));
  job.work.count += next.work.count;
  job.work.bytes += next.work.bytes;
  job.work.first_bytes += next.work.first_bytes;
  job.work.made_bytes += next.work.made_bytes;
  std::ranges::move(next.shares, std::back_inserter(job.shares));
  std::ranges::move(next.keepers, std::back_inserter(job.keepers));
}

// Begins the one that has waited longest, if it gets what it needs, with those that continue it.
Result<bool> DeviceCombines::next_job() {
  Job job;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) return false;
    job = std::move(waiting_.front());
    waiting_.pop_front();
    while (!waiting_.empty() && continues(job, waiting_.front().work)) {
      join(job, std::move(waiting_.front()));
      waiting_.pop_front();
    }
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
    auto& upload = job.kernel.upload;
    if (upload.bytes != 0) std::memcpy(to, job.work.operands.front().at, upload.bytes);
    upload.from = to;
    cut(job, to, job.made_at.get(), job.work.made_bytes, lands ? kSlotBytes : job.work.made_bytes);
  } else {
    for (const Operand& operand : job.work.operands) {
      if (!operand.on_gpu) continue;
      cut(job, to, operand.at, job.work.bytes, lands ? kSlotBytes : kDeviceChunkBytes);
      to += job.work.bytes;
    }
  }
  for (const Part& part : job.parts) job.bytes += part.bytes;
  under_way_bytes_ += job.bytes;
  jobs_.push_back(std::move(job));
  return true;
}

// On the GPU, for what is made, and for an operand that comes there: in the same place, if it is as large. What others
// read there lies in the ring of results; what is not finished, and what comes, would push those out.
bool DeviceCombines::find_place(Job& job) {
  const Work& work = job.work;
  const bool comes = !work.operands.front().on_gpu;
  if (comes && work.first_bytes != work.made_bytes) {
    job.upload_at = shares_.take(work.first_bytes);
    if (job.upload_at == nullptr) return false;
  }
  job.made_at = work.made_form == Form::kPartial ? shares_.take(work.made_bytes)
                                                 : shares_.take_result(work.made_bytes, job.number);
  if (job.made_at == nullptr) {
    job.upload_at = nullptr;
    return false;
  }
  if (comes) {
    job.kernel.upload = {(job.upload_at != nullptr ? job.upload_at : job.made_at).get(), nullptr, work.first_bytes};
    job.kernel.operands.front() = job.kernel.upload.to;
  }
  return true;
}

// False: there is some when others have ended. A place on the GPU comes last: to have taken it, and to wait, would push
// out results that stand there.
Result<bool> DeviceCombines::find_memory(Job& job) {
  const Work& work = job.work;
  const auto kernel = kernel_for(work);
  const bool makes = kernel || work.copies;
  const bool comes = kernel && !work.operands.front().on_gpu;
  const std::size_t bytes_of_all =
      static_cast<std::size_t>(std::ranges::count(work.operands, true, &Operand::on_gpu)) * work.bytes;
  if (work.stays && (!kernel || work.made_bytes > shares_.most_results())) {
    return Status(Code::kExhausted,
                  "the GPU has no room for a piece of " + std::to_string(work.bytes) + " bytes that it is to combine");
  }
  WARREN_CHECK(!work.stays || !comes, "what is exchanged lies on the GPU");
  if (kernel) job.kernel = *kernel;
  auto pinned = arena_.take(!makes  ? bytes_of_all
                            : comes ? std::max(work.made_bytes, work.first_bytes)
                                    : work.made_bytes);
  if (pinned.ok() && makes) {
    // What was made before leaves, and makes room.
    const bool has_place = find_place(job);
    // That has room when what is being made there has left it.
    const bool in_ring = work.made_form == Form::kValue && !comes;
    if (!has_place && (work.stays || (in_ring && !jobs_.empty()))) return false;
    if (!has_place) {
      { const PinnedArena::Block other = std::move(pinned).value(); }
      pinned = arena_.take(bytes_of_all);
    }
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
  // The calls that have it all may wait for this. What would come from the CPU would need some, too.
  WARREN_CHECK(shares_.landing() != nullptr, "who has anything on the GPU has that");
  const bool has_place = makes && !comes && find_place(job);
  if (!has_place && work.stays) return false;
  const std::size_t bytes = has_place ? work.made_bytes : bytes_of_all;
  job.landed = {new (std::nothrow) std::byte[bytes], std::default_delete<std::byte[]>()};
  if (job.landed != nullptr) return true;
  return pinned.status().because_of_this("the process has no " + std::to_string(bytes) +
                                         " bytes of memory in the place of pinned memory");
}

void DeviceCombines::cut(Job& job, std::byte* to, const std::byte* from, std::size_t bytes, std::size_t most_bytes) {
  for (std::size_t at = 0; at < bytes; at += most_bytes) {
    job.parts.push_back({to + at, from + at, std::min(most_bytes, bytes - at)});
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
    if (job.queued++ == 0 && job.made_at != nullptr && job.work.copies) {
      status = flow_->copied(to, job.made_at.get(), job.work.operands.front().at, job.work.made_bytes, part.bytes);
    } else if (job.queued == 1 && job.made_at != nullptr) {
      job.kernel.bytes = part.bytes;
      status = flow_->reduced(to, job.made_at.get(), job.kernel);
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
    under_way_bytes_ -= job.bytes;
    const std::shared_ptr<const void> memory =
        job.pinned != nullptr ? std::shared_ptr<const void>(job.pinned) : job.landed;
    std::size_t operand_at = 0, made_at = 0;
    for (const Share& share : job.shares) {
      Done done;
      done.id = share.id;
      done.memory = memory;
      if (job.made_at != nullptr) {
        done.made = job.memory() + made_at;
        if (job.work.made_form == Form::kValue) {
          done.on_gpu = {job.made_at.get() + made_at, job.number + made_at};
          done.here = shares_.find(done.on_gpu);
        }
        if (job.work.stays) done.stays = job.made_at;
      } else {
        const std::byte* at = job.memory() + operand_at;
        for (const Operand& operand : job.work.operands) {
          done.operands.push_back(operand.on_gpu ? at : nullptr);
          if (operand.on_gpu) at += job.work.bytes;
        }
      }
      operand_at += share.operand_bytes;
      made_at += share.made_bytes;
      const std::lock_guard lock(mutex_);
      done_.push_back(std::move(done));
    }
    open_.fetch_sub(job.shares.size(), std::memory_order_release);
    some = true;
  }
  return some;
}

Result<bool> DeviceCombines::move() {
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return false;
  }
  if (!flow_) flow_.emplace(copies_on_(shares_.device()), DeviceCopies::kWindowOnGpu);
  const auto looked = flow_->look();
  if (!looked.ok()) return fail(looked.status());
  bool some = conclude();
  for (;;) {
    if (jobs_.empty() || jobs_.back().queued == jobs_.back().parts.size()) {
      if (!flow_->has_room() || under_way_bytes_ >= kMostUnderWayBytes) break;
      const auto begun = next_job();
      if (!begun.ok()) return fail(begun.status());
      if (!begun.value()) break;
    }
    if (const Status status = queue(jobs_.back()); !status.ok()) return fail(status);
    if (jobs_.back().queued != jobs_.back().parts.size()) break;
  }
  auto uploaded = uploads_.move();
  if (!uploaded.ok()) return fail(uploaded.status());
  some = some || !uploaded.value().empty();
  const std::lock_guard lock(mutex_);
  open_.fetch_sub(uploaded.value().size(), std::memory_order_release);
  std::ranges::move(uploaded.value(), std::back_inserter(done_));
  return some;
}

// The GPU may still write to the memory, or read it.
void DeviceCombines::give_up() {
  for (Job& job : jobs_) {
    if (job.pinned != nullptr) job.pinned->abandon();
  }
  // And the landing, and what is brought to the GPU.
  if (!jobs_.empty() || uploads_.under_way()) arena_.abandon();
}

Status DeviceCombines::fail(const Status& why) {
  give_up();
  const std::lock_guard lock(mutex_);
  failed_ = true;
  waiting_.clear();
  uploads_.drop();
  open_.store(0, std::memory_order_release);
  return why;
}

void DeviceCombines::settle() {
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
  }
  uploads_.settle();
  if (flow_) flow_->settle();
}

}  // namespace warren::worker
