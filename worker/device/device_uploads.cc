#include "worker/device/device_uploads.h"

#include <algorithm>
#include <utility>

namespace warren::worker {

void DeviceUploads::begin(Upload upload) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(upload));
}

std::optional<DeviceUploads::Upload> DeviceUploads::take_waiting() {
  const std::lock_guard lock(mutex_);
  if (waiting_.empty()) return std::nullopt;
  std::optional<Upload> upload(std::move(waiting_.front()));
  waiting_.pop_front();
  return upload;
}

Result<std::vector<GpuWork::Done>> DeviceUploads::move() {
  std::vector<GpuWork::Done> done;
  const auto end = [&done](const Upload& upload, const MadeOnGpu& made) {
    GpuWork::Done& one = done.emplace_back();
    one.id = upload.id;
    one.on_gpu = made;
  };
  if (flow_) {
    const auto looked = flow_->look();
    if (!looked.ok()) return looked.status();
    for (;
         !jobs_.empty() && jobs_.front().queued == jobs_.front().upload.bytes && jobs_.front().ends <= flow_->arrived();
         jobs_.pop_front()) {
      end(jobs_.front().upload, {jobs_.front().to.get(), jobs_.front().number});
    }
  }
  for (;;) {
    if (jobs_.empty() || jobs_.back().queued == jobs_.back().upload.bytes) {
      // A place comes last: to have one, and to wait, would push out results that stand there.
      if (flow_ && !flow_->has_room()) break;
      auto upload = take_waiting();
      if (!upload) break;
      if (!flow_) flow_.emplace(copies_on_(shares_.device()));
      Job job;
      job.upload = *std::move(upload);
      job.to = shares_.take_result(job.upload.bytes, job.number);
      if (job.to == nullptr) {
        end(job.upload, {});
        continue;
      }
      jobs_.push_back(std::move(job));
    }
    Job& job = jobs_.back();
    for (; job.queued < job.upload.bytes && flow_->has_room(); job.ends = ++queued_) {
      const std::size_t bytes = std::min(job.upload.bytes - job.queued, kDeviceChunkBytes);
      const Status status = flow_->to_device(job.to.get() + job.queued, job.upload.from.at + job.queued, bytes);
      if (!status.ok()) return status;
      job.queued += bytes;
    }
    if (job.queued < job.upload.bytes) break;
  }
  return done;
}

void DeviceUploads::drop() {
  const std::lock_guard lock(mutex_);
  waiting_.clear();
}

void DeviceUploads::settle() {
  if (flow_) flow_->settle();
}

}  // namespace warren::worker
