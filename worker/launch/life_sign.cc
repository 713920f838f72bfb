#include "worker/launch/life_sign.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"
#include "worker/system/text.h"

namespace warren::worker {

struct LifePage {
  static constexpr std::uint64_t kMagic = 0x376566694c6e7257;  // "WrnLife7"
  std::uint64_t magic = kMagic;
  std::atomic<std::uint64_t> beats{0};
  std::atomic<std::uint64_t> worked{0};
  std::atomic<std::uint64_t> limit_ms{0};
  enum Job : std::uint64_t { kNone, kUnfinished, kFinished };
  std::atomic<std::uint64_t> job{kNone};
  std::atomic<std::uint64_t> cause_code{0};      // stored after the text
  std::atomic<std::uint64_t> cause_fenced{0};    // likewise before the code
  std::atomic<std::uint64_t> cause_given_up{0};  // whoever said it is gone
  std::atomic<std::uint64_t> made_since{0};      // another sign, since it was said
  std::array<char, kMostCauseBytes> cause{};
  std::atomic<std::int64_t> leave_by_ms{0};  // the launcher's word
  std::atomic<std::uint64_t> drained{0};
  enum Place : std::uint64_t { kUnknown, kWaits, kPlaced };
  std::atomic<std::uint64_t> place{kUnknown};
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "two processes share it");

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;  // a page that cannot shrink is always there

void* map(int fd, int protection) {
  void* at = mmap(nullptr, sizeof(LifePage), protection, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? nullptr : at;
}

}  // namespace

LifeSign LifeSign::from_environment(const Environment& env) {
  LifeSign out;
  const auto text = env(kLifeVariable);
  if (!text) return out;
  const auto number = parse_number(kLifeVariable, *text, 0, std::numeric_limits<int>::max());
  if (!number.ok()) return out;
  const int fd = static_cast<int>(number.value());
  // Only a memfd has seals: whatever took the number meanwhile is left alone.
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return out;
  if (lseek(fd, 0, SEEK_END) != static_cast<off_t>(sizeof(LifePage))) return out;
  void* at = map(fd, PROT_READ | PROT_WRITE);
  if (at == nullptr) return out;
  auto* page = static_cast<LifePage*>(at);
  if (page->magic == LifePage::kMagic) {
    if (page->job.load(std::memory_order_relaxed) == LifePage::kFinished) {
      page->job.store(LifePage::kNone, std::memory_order_relaxed);
    }
    out.page_ = page;
    page->made_since.store(1, std::memory_order_relaxed);
    out.forget_what_is_past();
  } else {
    munmap(at, sizeof(LifePage));
  }
  return out;
}

void LifeSign::beat() const {
  if (page_ == nullptr) return;
  // Who has finished may wait for a lock, and beats meanwhile.
  if (page_->job.load(std::memory_order_relaxed) != LifePage::kFinished) {
    page_->job.store(LifePage::kUnfinished, std::memory_order_relaxed);
  }
  page_->beats.fetch_add(1, std::memory_order_relaxed);
}

void LifeSign::finished() const {
  if (page_ != nullptr) page_->job.store(LifePage::kFinished, std::memory_order_relaxed);
}

void LifeSign::ended(const Status& why, bool fenced) {
  if (why.code() == Code::kFinished) return finished();
  if (page_ == nullptr || page_->cause_code.load(std::memory_order_relaxed) != 0) return;
  const std::string text = why.describe();
  page_->cause.fill(0);
  std::copy_n(text.begin(), std::min(text.size(), page_->cause.size()), page_->cause.begin());
  page_->cause_fenced.store(fenced ? 1 : 0, std::memory_order_relaxed);
  page_->cause_given_up.store(0, std::memory_order_relaxed);
  page_->made_since.store(0, std::memory_order_relaxed);
  said_cause_ = true;
  page_->cause_code.store(static_cast<std::uint64_t>(why.code()), std::memory_order_release);
}

// What ended an earlier communicator of this process is not what ends the one with which it goes on.
void LifeSign::forget_what_is_past() const {
  if (page_->cause_given_up.load(std::memory_order_relaxed) == 0) return;
  if (page_->made_since.load(std::memory_order_relaxed) != 0) page_->cause_code.store(0, std::memory_order_relaxed);
}

void LifeSign::limit(std::int64_t limit_ms) const {
  if (page_ != nullptr) page_->limit_ms.store(static_cast<std::uint64_t>(limit_ms), std::memory_order_relaxed);
}

void LifeSign::worked() const {
  if (page_ != nullptr) page_->worked.store(1, std::memory_order_relaxed);
}

void LifeSign::waits() const {
  if (page_ != nullptr) page_->place.store(LifePage::kWaits, std::memory_order_relaxed);
}

void LifeSign::placed() const {
  if (page_ != nullptr) page_->place.store(LifePage::kPlaced, std::memory_order_relaxed);
}

void LifeSign::drained() const {
  if (page_ != nullptr) page_->drained.store(1, std::memory_order_relaxed);
}

std::int64_t LifeSign::leave_by_ms() const {
  return page_ == nullptr ? 0 : page_->leave_by_ms.load(std::memory_order_relaxed);
}

void LifeSign::leave() const {
  if (page_ != nullptr) page_->beats.store(0, std::memory_order_relaxed);
}

LifeSign::LifeSign(LifeSign&& other) noexcept
    : page_(std::exchange(other.page_, nullptr)), said_cause_(std::exchange(other.said_cause_, false)) {}

LifeSign& LifeSign::operator=(LifeSign&& other) noexcept {
  std::swap(page_, other.page_);
  std::swap(said_cause_, other.said_cause_);
  return *this;
}

LifeSign::~LifeSign() {
  if (page_ == nullptr) return;
  leave();
  if (said_cause_) {
    page_->cause_given_up.store(1, std::memory_order_relaxed);
    forget_what_is_past();
  }
  munmap(page_, sizeof(LifePage));
}

Result<LifeView> LifeView::create() {
  const auto failed = [](const char* what) {
    return Status(Code::kInternal,
                  std::string("cannot make the page on which a worker shows life: ") + what + ": " + strerror(errno));
  };
  LifeView out;
  const int any = memfd_create("warren-life", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (any < 0) return failed("memfd_create");
  // 0, 1 and 2 are the worker's streams; they are free here if somebody closed the launcher's own.
  out.fd_ = fcntl(any, F_DUPFD_CLOEXEC, 3);
  close(any);
  if (out.fd_ < 0) return failed("fcntl");
  if (ftruncate(out.fd_, sizeof(LifePage)) != 0) return failed("ftruncate");
  if (fcntl(out.fd_, F_ADD_SEALS, kSeals) != 0) return failed("F_ADD_SEALS");
  void* at = map(out.fd_, PROT_READ | PROT_WRITE);
  if (at == nullptr) return failed("mmap");
  out.page_ = new (at) LifePage;
  return out;
}

void LifeView::close_descriptor() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

std::uint64_t LifeView::beats() const {
  return page_ == nullptr ? 0 : page_->beats.load(std::memory_order_relaxed);
}

std::int64_t LifeView::limit_ms() const {
  if (page_ == nullptr) return 0;
  const auto said = static_cast<std::int64_t>(page_->limit_ms.load(std::memory_order_relaxed));
  return said >= limits::kMinRoundTimeoutMs && said <= limits::kMaxRoundTimeoutMs ? said : 0;
}

bool LifeView::has_worked() const {
  return page_ != nullptr && page_->worked.load(std::memory_order_relaxed) != 0;
}

std::optional<bool> LifeView::has_place() const {
  if (page_ == nullptr) return std::nullopt;
  const std::uint64_t place = page_->place.load(std::memory_order_relaxed);
  if (place != LifePage::kWaits && place != LifePage::kPlaced) return std::nullopt;
  return place == LifePage::kPlaced;
}

bool LifeView::in_unfinished_job() const {
  return page_ != nullptr && page_->job.load(std::memory_order_relaxed) == LifePage::kUnfinished;
}

Status LifeView::cause() const {
  if (page_ == nullptr) return {};
  const std::uint64_t code = page_->cause_code.load(std::memory_order_acquire);
  if (code == 0 || code > static_cast<std::uint64_t>(Code::kFinished)) return {};
  std::string text;
  for (const char c : page_->cause) {
    if (c == 0) break;
    text += c;
  }
  return {static_cast<Code>(code), wire_text(text)};
}

bool LifeView::fenced() const {
  return !cause().ok() && page_->cause_fenced.load(std::memory_order_relaxed) != 0;
}

bool LifeView::has_drained() const {
  return page_ != nullptr && page_->drained.load(std::memory_order_relaxed) != 0;
}

void LifeView::ask_to_leave(std::int64_t by_ms) const {
  if (page_ != nullptr) page_->leave_by_ms.store(by_ms, std::memory_order_relaxed);
}

LifeView::LifeView(LifeView&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), page_(std::exchange(other.page_, nullptr)) {}

LifeView& LifeView::operator=(LifeView&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(page_, other.page_);
  return *this;
}

LifeView::~LifeView() {
  close_descriptor();
  if (page_ != nullptr) munmap(page_, sizeof(LifePage));
}

bool LifeWatch::look(std::uint64_t beats, std::int64_t elapsed_ms, std::int64_t limit_ms, std::int64_t interval_ms) {
  if (beats == 0 || beats != beats_) {
    beats_ = beats;
    silent_ms_ = 0;
    return false;
  }
  silent_ms_ += std::clamp<std::int64_t>(elapsed_ms, 0, 2 * interval_ms);
  return silent_ms_ >= limit_ms;
}

}  // namespace warren::worker
