#include "worker/replay/wants.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "worker/replay/record_text.h"

namespace warren::worker::replay {
namespace {

// A want that waits until somebody has a local state asks its rank's host alone for this part of the timeout.
constexpr std::int64_t kOneHostPart = 7;

}  // namespace

Wanted::Wanted(Replayer::Want want, TimeMs now) : want_(std::move(want)), since_(now) {
  sized_ = want_.total_bytes.has_value();
  if (sized_) missing_ = want_.bytes;
}

Ranges Wanted::asked_for() const {
  return want_.total_bytes ? want_.bytes : Ranges(0, info_->total_bytes);
}

Status Wanted::take_info(const RecordInfo& info, const std::string& where) {
  std::string trouble;
  if (want_.fingerprint && !agree(*want_.fingerprint, info.fingerprint)) {
    trouble = "here " + to_string(*want_.fingerprint) + ", in the log of " + where + " " + to_string(info.fingerprint);
  } else if (want_.total_bytes && *want_.total_bytes != info.total_bytes) {
    trouble = "here " + std::to_string(*want_.total_bytes) + " bytes in all, in the log of " + where + " " +
              std::to_string(info.total_bytes);
  } else if (info_ && (info_->total_bytes != info.total_bytes || !agree(info_->fingerprint, info.fingerprint))) {
    trouble = contradiction("one", *info_, where, info);
  }
  if (!trouble.empty()) return Status(Code::kDesync, "ranks disagree about " + name_of(key()) + ": " + trouble);
  if (!sized_ && info.total_bytes > limits::kMaxStateBytes) {
    return Status(Code::kCorrupt, "the log of " + where + " gives " + name_of(key()) + " " +
                                      std::to_string(info.total_bytes) + " bytes, and no state has more than " +
                                      std::to_string(limits::kMaxStateBytes));
  }
  if (!info_) info_ = info;
  if (!sized_) {
    sized_ = true;
    bytes_.resize(static_cast<std::size_t>(info.total_bytes));
    missing_ = Ranges(0, info.total_bytes);
  }
  return {};
}

void Wanted::write(std::uint64_t begin, std::span<const std::byte> bytes) {
  if (extended_) {
    auto in = extra_bytes_.upper_bound(begin);
    --in;
    std::memcpy(in->second.data() + (begin - in->first), bytes.data(), bytes.size());
    missing_ = missing_.minus(Ranges(begin, begin + bytes.size()));
    return;
  }
  std::byte* to = want_.total_bytes ? want_.base + (begin - want_.base_at) : bytes_.data() + begin;
  std::memcpy(to, bytes.data(), bytes.size());
  missing_ = missing_.minus(Ranges(begin, begin + bytes.size()));
  written_.add(begin, begin + bytes.size());
}

void Wanted::extend(Ranges extra) {
  extended_ = true;
  extra_ = std::move(extra);
  missing_ = extra_;
  for (const Interval& i : extra_.intervals()) extra_bytes_[i.begin].resize(i.end - i.begin);
}

void Wanted::restart(TimeMs now) {
  asks_ = 0;
  stale_edition_ = 0;
  since_ = now;
}

void Wanted::count_ask(std::uint64_t edition, std::uint32_t enough) {
  if (asked_edition_ == edition) return;
  asked_edition_ = edition;
  if (asks_ < std::max(kMaxAsks, enough)) ++asks_;
}

void Wanted::limit_asks(std::uint32_t most) {
  asks_ = std::min(asks_, most);
}

TimeMs Wanted::one_host_until(std::int64_t timeout_ms) const {
  return since_ + timeout_ms / kOneHostPart;
}

Replayer::Done Wanted::end(Status status) {
  Replayer::Done d;
  d.status = std::move(status);
  d.info = info_;
  d.written = take_written();
  if (d.status.ok()) d.bytes = std::move(bytes_);
  const Ranges fetched = extra_.minus(missing_);
  for (const Interval& i : fetched.intervals()) {
    auto in = extra_bytes_.upper_bound(i.begin);
    --in;
    const auto piece = std::span(in->second).subspan(i.begin - in->first, i.end - i.begin);
    d.refill.push_back({i.begin, {piece.begin(), piece.end()}});
  }
  return d;
}

Ranges Wanted::take_written() {
  return std::move(written_);
}

std::uint64_t Wants::add(Replayer::Want want, TimeMs now) {
  WARREN_CHECK(!want.total_bytes || want.bytes.empty() ||
                   (want.base != nullptr && want.bytes.intervals().front().begin >= want.base_at &&
                    want.bytes.intervals().back().end <= *want.total_bytes),
               "a want's bytes are within the result and the buffer");
  WARREN_CHECK(want.key.round.sequence.value != UINT64_MAX, "a sequence has a successor");
  const std::uint64_t id = ++last_;
  wants_.emplace(id, Wanted(std::move(want), now));
  return id;
}

Wanted* Wants::find(std::uint64_t id) {
  const auto w = wants_.find(id);
  return w == wants_.end() ? nullptr : &w->second;
}

std::vector<std::uint64_t> Wants::restart(TimeMs now) {
  std::vector<std::uint64_t> ids;
  for (auto& [id, w] : wants_) {
    w.restart(now);
    ids.push_back(id);
  }
  return ids;
}

void Wants::finish(std::uint64_t id, Generation generation, Status status, Ranges again) {
  const auto w = wants_.find(id);
  Replayer::Done& d = done_.emplace_back(w->second.end(std::move(status)));
  d.id = id;
  d.generation = generation;
  d.log_again = std::move(again);
  wants_.erase(w);
}

Ranges Wants::remove(std::uint64_t id) {
  const auto w = wants_.find(id);
  Ranges written = w->second.take_written();
  wants_.erase(w);
  return written;
}

std::vector<Replayer::Done> Wants::take_done() {
  return std::exchange(done_, {});
}

std::optional<Ranges> Wants::drop_done(std::uint64_t id) {
  const auto ended = std::ranges::find(done_, id, &Replayer::Done::id);
  if (ended == done_.end()) return std::nullopt;
  Ranges written = std::move(ended->written);
  done_.erase(ended);
  return written;
}

}  // namespace warren::worker::replay
