// A journal in memory that fails on demand and crashes as a disk may.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "storage/journal.h"

namespace warren::storage {

// The disk outlives the journals that are opened on it, as a disk outlives trackers.
struct FakeDisk {
  std::map<std::string, std::string> durable;
  // Written and never confirmed, by job; nullopt: an unconfirmed erase.
  std::map<std::string, std::optional<std::string>> unconfirmed;
  std::size_t fail_writes = 0;  // so many of the next writes fail
  Status failure{Code::kExhausted, "no space left on the fake disk"};
  std::size_t writes = 0;  // confirmed ones

  // What unconfirmed writes come to.
  enum class Crash { kLosesUnconfirmed, kKeepsUnconfirmed };
  void crash(Crash how) {
    if (how == Crash::kKeepsUnconfirmed) {
      for (auto& [job, bytes] : unconfirmed) {
        if (bytes) {
          durable[job] = *bytes;
        } else {
          durable.erase(job);
        }
      }
    }
    unconfirmed.clear();
  }
};

class FakeJournal final : public Journal {
 public:
  FakeJournal() : disk_(std::make_shared<FakeDisk>()) {}
  explicit FakeJournal(std::shared_ptr<FakeDisk> disk) : disk_(std::move(disk)) {}

  Result<std::map<std::string, std::string>> load() override { return disk_->durable; }

  Result<std::optional<std::string>> get(std::string_view job) override {
    const auto it = disk_->durable.find(std::string(job));
    if (it == disk_->durable.end()) return std::optional<std::string>();
    return std::optional<std::string>(it->second);
  }

  Status put(std::string_view job, std::string_view bytes) override { return write(job, std::string(bytes)); }
  Status erase(std::string_view job) override { return write(job, std::nullopt); }

 private:
  Status write(std::string_view job, std::optional<std::string> bytes) {
    const std::string name(job);
    if (disk_->fail_writes > 0) {
      --disk_->fail_writes;
      disk_->unconfirmed[name] = std::move(bytes);
      return disk_->failure;
    }
    disk_->unconfirmed.erase(name);
    ++disk_->writes;
    if (bytes) {
      disk_->durable[name] = std::move(*bytes);
    } else {
      disk_->durable.erase(name);
    }
    return {};
  }

  std::shared_ptr<FakeDisk> disk_;
};

}  // namespace warren::storage
