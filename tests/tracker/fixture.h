// A real tracker on the loopback interface, with a directory, a secret and a log that tests can wait for.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "storage/fake_journal.h"
#include "storage/rocks_journal.h"
#include "storage/secret.h"
#include "tests/tracker/client.h"
#include "tracker/tracker.h"

namespace warren::tracker {

class EventLog {
 public:
  EventSink sink() {
    return [this](std::string_view, const LogEvent& event) {
      const std::lock_guard lock(mutex_);
      events_.push_back(event);
      changed_.notify_all();
    };
  }
  // The first event of this name whose text contains `text`; fails the test if none comes.
  LogEvent await(const std::string& name, const std::string& text = "") {
    std::unique_lock lock(mutex_);
    LogEvent found;
    const auto there = [&] {
      for (const LogEvent& event : events_) {
        if (event.name != name || event.text.find(text) == std::string::npos) continue;
        found = event;
        return true;
      }
      return false;
    };
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::milliseconds(kPatienceMs), there)) << "no event " << name;
    return found;
  }
  std::size_t count(const std::string& name) {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(
        std::count_if(events_.begin(), events_.end(), [&](const LogEvent& e) { return e.name == name; }));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<LogEvent> events_;
};

class WithTracker : public testing::Test {
 protected:
  WithTracker() {
    std::string pattern = std::filesystem::temp_directory_path() / "warren-tracker-XXXXXX";
    dir_ = ::mkdtemp(pattern.data());
    EXPECT_TRUE(storage::Secret::generate(dir_ / "secret").ok());
    secret_ = std::make_shared<const storage::Secret>(load("secret"));
  }
  ~WithTracker() override {
    tracker_.reset();
    std::filesystem::remove_all(dir_);
  }

  storage::Secret load(const std::string& name) { return std::move(storage::Secret::load(dir_ / name)).value(); }
  storage::JobCredentials credentials(const std::string& job) { return secret_->for_job(job).value(); }

  TrackerOptions options() {
    TrackerOptions o;
    o.bind_address = "127.0.0.1";
    o.port = 0;
    o.http_port = -1;
    o.secret = secret_;
    o.journal = std::make_unique<storage::FakeJournal>(disk_);
    o.sink = log_.sink();
    return o;
  }
  void start(TrackerOptions o) {
    auto tracker = Tracker::start(std::move(o));
    ASSERT_TRUE(tracker.ok()) << tracker.status().describe();
    tracker_ = std::move(tracker).value();
  }
  std::uint16_t port() const { return tracker_->port(); }

  std::filesystem::path dir_;
  std::shared_ptr<const storage::Secret> secret_;
  std::shared_ptr<storage::FakeDisk> disk_ = std::make_shared<storage::FakeDisk>();
  EventLog log_;
  std::unique_ptr<Tracker> tracker_;
};

}  // namespace warren::tracker
