#include "worker/device/device_shares.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <string>
#include <utility>

#include "recovery/base/limits.h"
#include "worker/device/device_library.h"

namespace warren::worker {
namespace {
constexpr std::size_t kPageBytes = 4096;
}  // namespace

DeviceShares::~DeviceShares() {
  release_gone();
  if (own_ != nullptr && taken_.empty() && in_making_.empty()) release(device_, {own_, own_bytes_});
  free(landing_);
}

// What fails here stays mapped: a GPU that has failed is noticed where something is expected of it.
void DeviceShares::release(std::int32_t device, const Imported& gone) {
  if (!arena_.abandoned()) (void)table_.release_shared(device, gone.at, gone.bytes);
}

void DeviceShares::free(void* pinned) {
  if (pinned != nullptr && !arena_.abandoned()) (void)table_.free_pinned(pinned);
}

void DeviceShares::release_gone() {
  std::unique_lock lock(mutex_);
  const auto gone = std::exchange(gone_, {});
  const std::int32_t device = device_;
  has_gone_.store(false, std::memory_order_relaxed);
  lock.unlock();
  for (const Imported& i : gone) release(device, i);
}

void DeviceShares::prepare(std::int32_t device) {
  if (budget_bytes_ == 0) return;
  const std::unique_lock one(preparing_, std::try_to_lock);
  if (!one.owns_lock()) return;
  release_gone();
  News news;
  std::unique_lock lock(mutex_);
  if (own_ == nullptr && !none_) {
    lock.unlock();
    make(device, news);
    lock.lock();
  }
  // A GPU on which this life has nothing of its own maps nothing, either.
  if (own_ != nullptr && device_ != device) return;
  const bool maps = own_ != nullptr;
  std::vector<Offer> offers;
  if (maps || none_) offers.swap(offers_);
  lock.unlock();
  for (const Offer& offer : offers) {
    news.answers.push_back(maps ? map(device, offer, news) : Answer{offer.life, offer.memory, std::nullopt});
  }
  if (!news.made && news.answers.empty() && news.trouble.ok()) return;
  lock.lock();
  if (!news_) news_.emplace();
  if (news.made) news_->made = std::move(news.made);
  std::ranges::move(news.answers, std::back_inserter(news_->answers));
  if (news_->trouble.ok()) news_->trouble = news.trouble;
}

void DeviceShares::make(std::int32_t device, News& news) {
  auto page = memfd_segment(kPageBytes, "warren-made");
  if (!page.ok()) {
    return has_none(
        false, page.status().because_of_this("cannot tell the other ranks of this host what GPUs have made"), news);
  }
  tries_++;
  std::size_t bytes = budget_bytes_;
  void* memory = nullptr;
  int descriptor = -1;
  if (const auto code = table_.allocate_shared(device, &bytes, &memory, &descriptor); code != WARREN_DEVICE_OK) {
    return has_none(code == WARREN_DEVICE_NO_MEMORY,
                    device_error(table_, code,
                                 "cannot make memory of GPU " + std::to_string(device) +
                                     " that the other ranks of this host can read"),
                    news);
  }
  OwnedFd fd(descriptor);
  auto* const own = static_cast<std::byte*>(memory);
  void* landing = nullptr;
  if (const auto code = table_.allocate_pinned(kLandingBytes, &landing); code != WARREN_DEVICE_OK) {
    const Status why = device_error(table_, code, "cannot pin memory for what ranks of this host lend on GPUs");
    release(device, {own, bytes});
    return has_none(code == WARREN_DEVICE_NO_MEMORY, why, news);
  }
  news.made = Made{std::move(fd), {own, bytes}, page.value()};
  const std::lock_guard lock(mutex_);
  device_ = device;
  own_ = own;
  own_bytes_ = bytes;
  landing_ = static_cast<std::byte*>(landing);
  page_ = std::move(page).value();
  says_ = new (page_->bytes().data()) MadeThere{0, results_end()};
}

void DeviceShares::has_none(bool for_now, const Status& why, News& news) {
  if (!std::exchange(troubled_, true)) news.trouble = why;
  if (for_now && tries_ < kMostTries) return;
  const std::lock_guard lock(mutex_);
  none_ = true;
}

DeviceShares::Answer DeviceShares::map(std::int32_t device, const Offer& offer, News& news) {
  Answer answer{offer.life, offer.memory, std::nullopt};
  void* memory = nullptr;
  const auto code = table_.import_shared(device, offer.fd.get(), offer.bytes, &memory);
  if (code != WARREN_DEVICE_OK) {
    if (!std::exchange(troubled_, true)) {
      news.trouble =
          device_error(table_, code, "GPU " + std::to_string(device) + " cannot read the memory of another rank's GPU");
    }
    return answer;
  }
  auto* const at = static_cast<std::byte*>(memory);
  answer.mapped =
      MappedSegment{{at, offer.bytes}, std::shared_ptr<const void>(at, [this, bytes = offer.bytes](auto* p) {
                      const std::lock_guard lock(mutex_);
                      gone_.push_back({p, bytes});
                      has_gone_.store(true, std::memory_order_relaxed);
                    })};
  return answer;
}

std::optional<DeviceShares::News> DeviceShares::take_news() {
  const std::lock_guard lock(mutex_);
  return std::exchange(news_, std::nullopt);
}

bool DeviceShares::offer(Incarnation life, std::uint32_t memory, OwnedFd fd, std::uint64_t bytes) {
  if (budget_bytes_ == 0 || bytes == 0 || bytes > limits::kMaxBufferBytes) return false;
  const std::lock_guard lock(mutex_);
  if (offers_.size() >= kMostOffers || none_) return false;
  offers_.push_back({life, memory, std::move(fd), bytes});
  return true;
}

void DeviceShares::keep_offers_of(std::span<const Incarnation> lives) {
  const std::lock_guard lock(mutex_);
  std::erase_if(offers_, [&](const Offer& o) { return std::ranges::find(lives, o.life) == lives.end(); });
}

std::int32_t DeviceShares::device() const {
  const std::lock_guard lock(mutex_);
  return device_;
}

const std::byte* DeviceShares::own_on(std::int32_t device) const {
  const std::lock_guard lock(mutex_);
  return device == device_ ? own_ : nullptr;
}

std::byte* DeviceShares::landing() const {
  const std::lock_guard lock(mutex_);
  return landing_;
}

std::uint64_t DeviceShares::results_end() const {
  return std::min(own_bytes_ / 4 / kAlignment * kAlignment, kMostResultBytes);
}

std::uint64_t DeviceShares::most_results() const {
  const std::lock_guard lock(mutex_);
  return results_end();
}

// The first gap that is large enough.
std::shared_ptr<std::byte> DeviceShares::take(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t begin = results_end(), end = own_bytes_;
  if (own_ == nullptr || bytes == 0 || bytes > end - begin) return nullptr;
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::uint64_t at = begin;
  for (auto it = taken_.begin(); it != taken_.end() && it->first - at < bytes; ++it) {
    at = it->first + it->second;
  }
  if (at > end || end - at < bytes) return nullptr;
  taken_[at] = bytes;
  return {own_ + at, [this](std::byte* p) { give_back(p); }};
}

std::shared_ptr<std::byte> DeviceShares::take_result(std::uint64_t bytes, std::uint64_t& number) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t all = results_end();
  if (own_ == nullptr || bytes == 0 || bytes > all) return nullptr;
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  std::uint64_t begin = next_result_;
  if (all - begin % all < bytes) begin += all - begin % all;  // in one piece
  const std::uint64_t end = begin + bytes;
  if (!in_making_.empty() && end - *in_making_.begin() > all) return nullptr;
  next_result_ = end;
  if (end > all) {
    std::atomic_ref(says_->first).store(end - all, std::memory_order_relaxed);
    // Seen before the GPU hears of it, which is told later in this thread.
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  in_making_.insert(begin);
  number = begin;
  return {own_ + begin % all, [this, begin](std::byte*) { give_back_result(begin); }};
}

std::shared_ptr<const FinalOnGpu> DeviceShares::find(const MadeOnGpu& made) const {
  const std::lock_guard lock(mutex_);
  return std::make_shared<const FinalOnGpu>(FinalOnGpu{made.at, made.number, &says_->first, page_, page_});
}

void DeviceShares::give_back_result(std::uint64_t number) {
  // A GPU that has failed may still write there.
  if (arena_.abandoned()) return;
  const std::lock_guard lock(mutex_);
  in_making_.erase(number);
}

void DeviceShares::give_back(std::byte* block) {
  // A GPU that has failed may still use it.
  if (arena_.abandoned()) return;
  const std::lock_guard lock(mutex_);
  taken_.erase(static_cast<std::uint64_t>(block - own_));
}

}  // namespace warren::worker
