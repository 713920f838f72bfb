// A result store in memory that fails on demand, and whose disk crashes and rots as real ones do.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "storage/result_format.h"
#include "storage/result_store.h"

namespace warren::storage {

// The disk of one host. It outlives the stores that are opened on it, as a disk outlives workers.
struct FakeResultDisk {
  struct Record {
    StoredRecord record;
    std::vector<std::byte> payload;
  };
  using Records = std::map<KeyBytes, Record>;
  struct Life {
    std::string worker;
    std::uint64_t run = 0;  // of its note; 0: it has none
    std::string note;
    bool open = true;
    bool left_out = false;
    Records durable;
    Records unsynced;  // written, and not confirmed
  };

  std::map<std::uint64_t, Life> lives;  // by incarnation
  std::size_t fail_writes = 0;          // so many of the next puts and drops fail
  Status failure{Code::kExhausted, "no space left on the fake disk"};
  std::size_t puts = 0;  // confirmed ones
  std::vector<std::string> warnings;

  // The machine loses power: every life is over, and of what was not confirmed there remains what `keeps` says.
  void crash(const std::function<bool()>& keeps) {
    for (auto& [life, l] : lives) {
      for (auto& [key, record] : l.unsynced) {
        if (keeps()) l.durable.insert({key, std::move(record)});
      }
      l.unsynced.clear();
      l.open = false;
    }
  }
  // Flips a bit of the payload of a life's record number `index`; false: there is none, or it has no payload.
  bool flip(Incarnation life, std::size_t index) {
    Records& records = lives.at(life.value).durable;
    if (index >= records.size()) return false;
    auto& payload = std::next(records.begin(), static_cast<std::ptrdiff_t>(index))->second.payload;
    if (payload.empty()) return false;
    payload[payload.size() / 2] ^= std::byte{1};
    return true;
  }
};

class FakeResultStore : public ResultStore {
 public:
  FakeResultStore(std::shared_ptr<FakeResultDisk> disk, std::string worker, Incarnation life)
      : disk_(std::move(disk)), worker_(std::move(worker)), life_(life) {
    disk_->lives[life.value].worker = worker_;
  }
  ~FakeResultStore() override {
    const auto own = disk_->lives.find(life_.value);
    if (own != disk_->lives.end()) own->second.open = false;
  }
  FakeResultStore(const FakeResultStore&) = delete;
  FakeResultStore& operator=(const FakeResultStore&) = delete;

  // put() in two steps, so that a crash can come between. write() never fails; confirm() may, and then what was written
  // since the last confirm() stays unconfirmed, unless it is written again.
  void write(const RecordBatch& batch) {
    for (const RecordBatch::Item& item : batch.items()) {
      const auto payload = batch.payload(item);
      const StoredRecord record{item.key, item.info, item.first_byte, item.payload_bytes, checksum_of(payload)};
      const KeyBytes key = encode_key(item.key, item.first_byte, item.payload_bytes);
      own().unsynced.insert({key, {record, std::vector<std::byte>(payload.begin(), payload.end())}});
      written_.push_back(key);
    }
  }
  Status confirm() {
    const auto written = std::exchange(written_, {});
    if (fails()) return disk_->failure;
    for (const KeyBytes& key : written) {
      auto node = own().unsynced.extract(key);
      if (!node.empty()) own().durable.insert(std::move(node));
    }
    ++disk_->puts;
    return {};
  }

  Status put(const RecordBatch& batch) override {
    if (batch.empty()) return {};
    write(batch);
    return confirm();
  }

  Status note(const Note& note) override {
    if (fails()) return disk_->failure;
    own().run = note.run;
    own().note = note.text;
    return {};
  }
  std::vector<Note> notes() override {
    std::vector<Note> out;
    for (const auto& [life, l] : disk_->lives) {
      if (life != life_.value && l.run != 0 && !l.left_out && (!l.open || l.worker == worker_))
        out.push_back({l.run, l.note});
    }
    return out;
  }
  void belong(std::uint64_t run) override {
    if (std::exchange(view_->run, run) != run) view_->looked = false;
  }
  std::vector<std::string> set_others_aside() override {
    std::vector<std::string> out;
    std::erase_if(disk_->lives, [&](const auto& l) {
      if (l.second.open || of_run(l.second, view_->run)) return false;
      out.push_back("life " + std::to_string(l.first));
      return true;
    });
    return out;
  }

  Status leave_out(const Stale& stale) override {
    if (fails()) return disk_->failure;
    for (auto& [life, l] : disk_->lives) {
      if (life != life_.value && l.run != 0 && stale(Incarnation(life), {l.run, l.note})) l.left_out = true;
    }
    view_->looked = false;
    return {};
  }

  Status drop(const Horizon& horizon) override {
    if (fails()) return disk_->failure;
    for (auto it = disk_->lives.begin(); it != disk_->lives.end();) {
      FakeResultDisk::Life& l = it->second;
      const bool mine = it->first == life_.value;
      if (!mine && (l.open || !of_run(l, view_->run))) {
        ++it;
        continue;
      }
      if (!mine && l.left_out) {
        it = disk_->lives.erase(it);
        continue;
      }
      std::erase_if(l.durable, [&](const auto& r) { return horizon.obsolete(r.second.record.key); });
      const bool lasts =
          std::ranges::all_of(l.durable, [](const auto& r) { return bin_of(r.second.record.key).lasting(); });
      if (mine || !lasts) {
        ++it;
        continue;
      }
      own().durable.merge(l.durable);
      it = disk_->lives.erase(it);
    }
    return {};
  }

  Status finish() override {
    std::erase_if(disk_->lives, [this](const auto& l) { return l.first == life_.value || !l.second.open; });
    return {};
  }

  std::uint64_t bytes_on_disk() const override {
    std::uint64_t bytes = 0;
    for (const auto& [life, l] : disk_->lives) {
      if (l.worker != worker_) continue;
      for (const auto& [key, record] : l.durable) bytes += record.payload.size();
    }
    return bytes;
  }

  std::unique_ptr<HostLogReader> reader() override {
    return source_reader(
        [disk = disk_, worker = worker_, life = life_, view = view_] { return sources(disk, worker, life, *view); },
        life_);
  }
  void refresh(std::span<const Incarnation> living) override {
    view_->looked = false;
    view_->living.emplace(living.begin(), living.end());
  }
  HeldReport report(bool verify) override { return report_of(sources(disk_, worker_, life_, *view_), verify); }
  std::vector<std::string> take_warnings() override { return std::exchange(disk_->warnings, {}); }

 private:
  class Source final : public RecordSource {
   public:
    Source(std::shared_ptr<FakeResultDisk> disk, std::uint64_t life) : disk_(std::move(disk)), life_(life) {}
    Incarnation life() const override { return Incarnation(life_); }
    std::vector<Bin> bins() override {
      std::map<Bin, bool> bins;
      if (auto* records = this->records()) {
        for (const auto& [key, r] : *records) bins[bin_of(r.record.key)] = true;
      }
      std::vector<Bin> out;
      for (const auto& [bin, there] : bins) out.push_back(bin);
      return out;
    }
    void scan(const RecordKey& from, std::uint64_t first_byte, const Visit& visit) override {
      auto* records = this->records();
      if (records == nullptr) return;
      for (auto it = records->lower_bound(encode_key(from, first_byte, 0)); it != records->end(); ++it) {
        StoredRecord record = it->second.record;
        record.inlined_payload = it->second.payload;
        if (bin_of(record.key) == bin_of(from) && !visit(record)) return;
      }
    }
    bool read(const StoredRecord& record, std::uint64_t begin, std::span<std::byte> out) override {
      auto* records = this->records();
      if (records == nullptr) return false;
      const auto found = records->find(encode_key(record.key, record.first_byte, record.payload_bytes));
      if (found == records->end()) return false;
      const auto& payload = found->second.payload;
      if (checksum_of(payload) != record.checksum) {
        disk_->warnings.push_back("a damaged record of " + warren::to_string(record.key.round));
        records->erase(found);
        return false;
      }
      std::copy_n(payload.begin() + static_cast<std::ptrdiff_t>(begin - record.first_byte), out.size(), out.begin());
      return true;
    }

   private:
    FakeResultDisk::Records* records() {
      const auto it = disk_->lives.find(life_);
      return it == disk_->lives.end() ? nullptr : &it->second.durable;
    }
    std::shared_ptr<FakeResultDisk> disk_;
    std::uint64_t life_;
  };

  static bool of_run(const FakeResultDisk::Life& l, std::uint64_t run) {
    return run == 0 || l.run == 0 || l.run == run;
  }
  // What a store knows of other lives.
  struct View {
    std::uint64_t run = 0;
    bool looked = false;
    std::optional<std::vector<Incarnation>> living = std::nullopt;  // none: nobody has said so
    std::vector<std::uint64_t> lives = {};                          // that it reads
  };
  static Sources sources(const std::shared_ptr<FakeResultDisk>& disk, const std::string& worker, Incarnation self,
                         View& view) {
    if (!std::exchange(view.looked, true)) {
      view.lives.clear();
      for (const auto& [life, l] : disk->lives) {
        const bool left = view.living ? std::ranges::find(*view.living, Incarnation(life)) == view.living->end()
                                      : !l.open || l.worker == worker;
        if (life != self.value && left && !l.left_out && of_run(l, view.run)) view.lives.push_back(life);
      }
    }
    Sources out{std::make_shared<Source>(disk, self.value)};
    for (const std::uint64_t life : view.lives) out.push_back(std::make_shared<Source>(disk, life));
    return out;
  }
  bool fails() {
    if (disk_->fail_writes == 0) return false;
    --disk_->fail_writes;
    return true;
  }
  FakeResultDisk::Life& own() { return disk_->lives.at(life_.value); }

  std::shared_ptr<FakeResultDisk> disk_;
  std::string worker_;
  Incarnation life_;
  std::shared_ptr<View> view_ = std::make_shared<View>();  // readers may outlive the store
  std::vector<KeyBytes> written_;                          // since the last confirm()
};

}  // namespace warren::storage
