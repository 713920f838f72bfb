// The disk of a simulated worker, as worker/disk and storage/write_behind.h use one.
#include "chaos/sim/sim_worker.h"

#include <algorithm>
#include <utility>

#include "recovery/base/check.h"
#include "worker/disk/past.h"
#include "worker/rounds/logged.h"

namespace warren::chaos {

std::unique_ptr<HostLogReader> SimWorker::reader(const HostLog& log) const {
  auto memory = log.reader();
  return store_ ? storage::combined_reader(std::move(memory), store_->reader()) : std::move(memory);
}

void SimWorker::leave_to_later_lives(const wire::Plan& plan) {
  store_->belong(plan.run());
  (void)store_->set_others_aside();
  const wire::Known before = life_.know(worker::known_of(plan));
  const bool first = before.generation() == 0;
  if (worker::leaves_host(before.plan(), plan, rank_)) store_->refresh(worker::lives_of(plan));
  (void)store_->note(worker::note_of(life_.known()));
  if (first) write_behind();
}

// Written now and durable some time later, again and again.
void SimWorker::write_behind() {
  later(world_.random.between(1000, 60'000), [this] {
    if (!store_) return;
    write_to_disk();
    later(world_.random.between(100, 20'000), [this] {
      if (!store_) return;
      (void)store_->confirm();
      unconfirmed_ = false;
      write_behind();
    });
  });
}

void SimWorker::write_to_disk() {
  storage::RecordBatch batch(options_.log_bytes);
  const SegmentView view = SegmentView::open(segment_->bytes(), self_).value();
  (void)view.for_each_record([&](std::uint32_t extent, std::uint64_t stamp, const SegmentView::Record& r) {
    const bool result = r.key.kind == RecordKind::kRound || r.key.kind == RecordKind::kMessage;
    if (result && options_.disk_takes_states_alone) return true;
    if (!written_.insert(storage::encode_key(r.key, r.first_byte, r.payload_bytes)).second) return true;
    const auto out = batch.add(r.key, r.info, r.first_byte, r.payload_bytes);
    WARREN_CHECK(view.copy(extent, stamp, r.payload_at, out), "nobody drops meanwhile");
    return true;
  });
  if (batch.empty()) return;
  unconfirmed_ = true;
  store_->write(batch);
}

// As WriteBehind::spill().
Result<std::vector<ExtentUse>> SimWorker::spill() {
  if (!store_) return Status(Code::kClosed, "this life has ended");
  if (options_.disk_takes_states_alone) return Status(Code::kExhausted, "the disk has no room for results");
  write_to_disk();
  if (Status s = store_->confirm(); !s.ok()) {
    judge_.excuse_rollback();
    return s;
  }
  unconfirmed_ = false;
  std::vector<std::pair<SegmentClass, ExtentUse>> durable;
  const SegmentView view = SegmentView::open(segment_->bytes(), self_).value();
  for (std::uint32_t e = 0; e < view.layout().extents; ++e) {
    const SegmentView::Extent extent = view.extent(e);
    bool stays = !extent.in_use() || !extent.sealed || extent.cls.setup;
    SegmentView::Record r;
    for (std::uint64_t at = 0; !stays && view.record(e, extent.stamp, at, r) == SegmentView::Found::kRecord;
         at = r.next) {
      stays = r.key.kind == RecordKind::kGlobal || r.key.kind == RecordKind::kLocal;
    }
    if (!stays) durable.push_back({extent.cls, {e, extent.stamp}});
  }
  std::ranges::stable_sort(durable, {}, [](const auto& d) { return d.first; });
  std::vector<ExtentUse> out;
  for (const auto& [cls, use] : durable) {
    if (out.size() < 4) out.push_back(use);
  }
  judge_.spilled();
  return out;
}

bool SimWorker::disk_is_current() const {
  if (!store_) return true;
  if (unconfirmed_ || options_.disk_takes_states_alone) return false;
  const SegmentView view = SegmentView::open(segment_->bytes(), self_).value();
  return view.for_each_record([&](std::uint32_t, std::uint64_t, const SegmentView::Record& r) {
    return written_.contains(storage::encode_key(r.key, r.first_byte, r.payload_bytes));
  });
}

// The process has gone: what it had written and not confirmed may be there.
void SimWorker::close_disk() {
  if (!store_) return;
  store_.reset();
  const auto life = options_.disk->lives.find(self_.value);
  if (life == options_.disk->lives.end()) return;
  for (auto& [key, record] : life->second.unsynced) {
    if (world_.random.chance(0.5)) life->second.durable.insert({key, std::move(record)});
  }
  life->second.unsynced.clear();
}

// Behind a commit: of those that come meanwhile, the newest.
void SimWorker::mirror(const worker::life_effect::CopyToMirror& what) {
  later(world_.random.between(100, 50'000), [this, what, note = worker::note_of(what.known), number = ++mirrored_] {
    if (number == mirrored_ && store_) options_.mirror->write(note, what.timeline, what.version, rank_, *served_);
  });
}

// Takes its time: a generation may begin meanwhile.
void SimWorker::read_mirror(const worker_effect::Loaded& what) {
  later(world_.random.between(10, 30'000), [this, what] {
    std::optional<worker::Loading::Mirrored> found;
    if (const SimMirror::State* state = options_.mirror->find(what.timeline, what.version); state != nullptr) {
      std::vector<std::byte> local;
      if (state->has_local) local = state->locals.at(static_cast<std::uint32_t>(rank_.value));
      found = worker::Loading::Mirrored{{0, settings_.world_size(), state->global, std::move(local)}, state->has_local};
    }
    mirror_has_given_ = found.has_value();
    life_.loading().mirror_read(what, std::move(found));
    carry_out_life();
    data_moved();
  });
}

}  // namespace warren::chaos
