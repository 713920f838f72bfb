#include "worker/session/lent_memory.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace warren::worker {

Result<void*> LentMemory::allocate(std::uint64_t bytes, std::mutex& mutex) {
  auto made = HostMemory::make(bytes);
  if (!made.ok()) return made.status();
  const std::span<std::byte> all = made.value()->bytes();
  OwnedFd fd(::fcntl(made.value()->fd(), F_DUPFD_CLOEXEC, 0));
  if (!fd.open()) return Status(Code::kUnavailable, std::string("cannot make a descriptor: ") + std::strerror(errno));
  const std::lock_guard lock(mutex);
  const auto number = memory_.add(std::move(made).value());
  if (!number.ok()) return number.status();
  control_->lend(number.value(), std::make_shared<const OwnedFd>(std::move(fd)), all.size());
  return static_cast<void*>(all.data());
}

Status LentMemory::free(void* memory, std::mutex& mutex) {
  std::optional<HostMemory::Removed> removed;  // unmapped outside the lock
  const std::lock_guard lock(mutex);
  removed = memory_.remove(memory);
  if (!removed) {
    return {Code::kInvalidArgument, "this is no memory that was allocated with this communicator's job, or was freed"};
  }
  control_->take_back(removed->memory);
  return {};
}

void LentMemory::tell_of_shares(std::mutex& mutex) {
  auto news = gpus_.take_news();
  if (!news) return;
  if (!news->trouble.ok()) {
    log_(WARREN_LOG_WARNING,
         news->trouble.describe() + "; large collectives among the GPUs of this host go by way of the CPU");
  }
  const std::lock_guard lock(mutex);
  if (news->made) {
    const std::span<const std::byte> memory = news->made->memory;
    const std::uint32_t number = memory_.add_on_gpu(memory);
    MemfdSegment& page = *news->made->page;
    OwnedFd fd(::fcntl(page.fd(), F_DUPFD_CLOEXEC, 0));
    // Without it finals come by way of the CPU.
    if (fd.open()) control_->lend(number - 1, std::make_shared<const OwnedFd>(std::move(fd)), page.bytes().size());
    control_->lend(number, std::make_shared<const OwnedFd>(std::move(news->made->fd)), memory.size(), true);
  }
  for (DeviceShares::Answer& answer : news->answers) {
    const bool mapped = answer.mapped.has_value();
    // Of a life that is over meanwhile it goes with the next plan.
    if (mapped) memory_.attach(answer.life, answer.memory, std::move(*answer.mapped), true);
    control_->answer(answer.life, answer.memory, mapped);
  }
}

void LentMemory::install(std::vector<Incarnation> lives) {
  memory_.install(std::move(lives));
  show_readers();
}

void LentMemory::borrowed(Incarnation life, std::uint32_t memory, MappedSegment segment) {
  memory_.attach(life, memory, std::move(segment));
}

void LentMemory::lent(Incarnation life, std::uint32_t memory) {
  memory_.mapped_by(life, memory);
  show_readers();
}

void LentMemory::offered(Incarnation life, std::uint32_t memory, OwnedFd fd, std::uint64_t bytes) {
  if (!gpus_.offer(life, memory, std::move(fd), bytes)) control_->answer(life, memory, false);
}

void LentMemory::show_readers() {
  board_.gpu_readers.store(memory_.readers_on_gpu(), std::memory_order_relaxed);
}

}  // namespace warren::worker
