#include "worker/session/gpus.h"

#include <cstdlib>
#include <string>
#include <utility>

namespace warren::worker {

void Gpus::serve(const warren_device_table& table, Engine& engine) {
  staging_ = std::make_unique<Staging>(table, settings_.device_pinned_bytes, settings_.device_snapshot_bytes,
                                       settings_.device_shared_bytes, settings_.round_timeout_ms);
  engine.use(staging_->combines());
}

Result<std::uint32_t> Gpus::use_nccl(const DeviceLibrary& device, DeviceExchange::Tell tell, Engine& engine) {
  const std::string what = "NCCL is to move what GPUs exchange (WARREN_NCCL), and ";
  if (device.table == nullptr) {
    return Status(Code::kUnavailable,
                  what + "this worker has no GPU" + (device.says.empty() ? "" : ": " + device.says));
  }
  const auto nccl = find_nccl(*device.table);
  if (!nccl.ok()) return nccl.status().because_of_this(what + "this worker has none");
  // Calls that wait for peers would hold up whoever makes them, also when the peers are gone.
  // NCCL reads numbers in any base.
  if (const char* blocks = getenv("NCCL_COMM_BLOCKING"); blocks != nullptr && std::strtoll(blocks, nullptr, 0) == 1) {
    return Status(Code::kInvalidArgument, what + "NCCL_COMM_BLOCKING=1 has its calls wait for peers; leave it out");
  }
  const std::string program = settings_.nccl_root.empty() ? beside_this(kNcclRoot) : settings_.nccl_root;
  engine.use(staging_->exchange_by(
      settings_.checksums,
      [this, program, library = nccl.value()] {
        return NcclRoot::start(program, device_library_path(settings_.device_library), library,
                               settings_.round_timeout_ms);
      },
      std::move(tell)));
  return static_cast<std::uint32_t>(nccl.value().version);
}

void Gpus::install(std::span<const Incarnation> lives, std::ptrdiff_t mates) {
  if (!staging_) return;
  // Without a log nobody passes memory on.
  staging_->lend_inputs(mates > 1 && settings_.replicas != 0);
  staging_->shares().keep_offers_of(lives);
}

void Gpus::release_gone(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  staging_->shares().release_gone();
  lock.lock();
}

bool Gpus::move_combines(std::unique_lock<std::mutex>& lock, Life& life) {
  if (std::exchange(combining_, true)) return false;
  lock.unlock();
  const auto moved = staging_->combines().move();
  lock.lock();
  combining_ = false;
  if (!moved.ok()) {
    life.end(moved.status().because_of_this("cannot combine inputs that ranks of this host lend"), Blame::kNobody);
  }
  return life.engine().take_done_gpu_work();
}

bool Gpus::move_exchanged(std::unique_lock<std::mutex>& lock, Life& life) {
  if (exchanging_.exchange(true)) return false;
  lock.unlock();
  const auto moved = staging_->exchange()->move();
  lock.lock();
  exchanging_ = false;
  if (!moved.ok()) life.end(moved.status().because_of_this("cannot exchange what lies on GPUs"), Blame::kNobody);
  return life.engine().take_done_exchanged();
}

std::optional<Gpus::Overdue> Gpus::overdue(TimeMs now) {
  Status why = exchanging_ ? staging_->exchange()->overdue() : Status();
  if (why.ok()) {
    overdue_since_.reset();
    return std::nullopt;
  }
  if (!overdue_since_) overdue_since_ = now;
  return Overdue{why.because_of_this("cannot exchange what lies on GPUs"), now - *overdue_since_};
}

}  // namespace warren::worker
