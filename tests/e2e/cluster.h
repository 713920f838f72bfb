// A real tracker and real workers in one process: each rank is a thread with a communicator of its own.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "storage/fake_journal.h"
#include "storage/secret.h"
#include "tracker/tracker.h"
#include "warren/warren.h"

namespace warren::testing {

// A directory that goes with the object.
class TempDir {
 public:
  TempDir() {
    char name[] = "/tmp/warren-test-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  [[nodiscard]] std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

class Cluster {
 public:
  // `sink` gets the events of the tracker.
  explicit Cluster(const std::string& bind = "127.0.0.1", bool insecure = false, tracker::EventSink sink = {})
      : insecure_(insecure), sink_(std::move(sink)) {
    if (!insecure) {
      EXPECT_TRUE(storage::Secret::generate(root_file()).ok());
      auto secret = storage::Secret::load(root_file());
      EXPECT_TRUE(secret.ok());
      secret_ = std::make_shared<const storage::Secret>(std::move(secret).value());
    }
    bind_ = bind;
    start_tracker(0);
  }

  void start_tracker(std::uint16_t port) {
    tracker::TrackerOptions options;
    options.bind_address = bind_;
    options.port = port;
    options.http_port = -1;
    options.sink = sink_;
    options.secret = secret_;
    options.insecure = insecure_;
    options.journal = std::make_unique<storage::FakeJournal>(disk_);
    auto started = tracker::Tracker::start(std::move(options));
    ASSERT_TRUE(started.ok()) << started.status().describe();
    tracker_ = std::move(started).value();
  }

  [[nodiscard]] std::string root_file() const { return dir_ / "root"; }
  [[nodiscard]] std::string file(const std::string& name) const { return dir_ / name; }
  [[nodiscard]] const storage::Secret& secret() const { return *secret_; }
  tracker::Tracker& tracker() { return *tracker_; }
  void stop_tracker() { tracker_.reset(); }
  // While none runs.
  void lose_journal() { disk_ = std::make_shared<storage::FakeDisk>(); }

  [[nodiscard]] std::string address() const {
    const bool v6 = bind_.find(':') != std::string::npos;
    return (v6 ? "[" + bind_ + "]" : bind_) + ":" + std::to_string(tracker_->port());
  }

  Options options(int worker, int world_size, const std::string& job = "job") const {
    Options o;
    o.tracker = address();
    o.job = job;
    o.worker_id = std::to_string(worker);
    o.world_size = world_size;
    if (insecure_) {
      o.insecure_no_auth = true;
    } else {
      o.secret_file = root_file();
    }
    o.round_timeout_ms = std::chrono::milliseconds(2000);
    o.join_timeout_ms = std::chrono::milliseconds(20000);
    o.log_level = LogLevel::error;
    return o;
  }

  // Runs `body` on `size` ranks, each in a thread; `change` may alter a rank's options. Finalizes unless told not to.
  // Returns what each rank threw.
  std::vector<std::optional<Error>> run(int size, const std::function<void(Communicator&)>& body,
                                        const std::function<void(int, Options&)>& change = {}, bool finalize = true) {
    std::vector<std::optional<Error>> errors(static_cast<std::size_t>(size));
    std::vector<std::thread> threads;
    for (int r = 0; r < size; r++) {
      threads.emplace_back([&, r] {
        try {
          Options o = options(r, size);
          if (change) change(r, o);
          Communicator comm = Communicator::create(o);
          body(comm);
          if (finalize) comm.finalize();
        } catch (const Error& e) {
          errors[static_cast<std::size_t>(r)] = e;
        }
      });
    }
    for (auto& t : threads) t.join();
    return errors;
  }
  // The same, where nothing may fail.
  void run_well(int size, const std::function<void(Communicator&)>& body,
                const std::function<void(int, Options&)>& change = {}) {
    const auto errors = run(size, body, change);
    for (int r = 0; r < size; r++) {
      const auto& e = errors[static_cast<std::size_t>(r)];
      EXPECT_FALSE(e.has_value()) << "rank " << r << ": " << e->what();
    }
  }

 private:
  TempDir dir_;
  bool insecure_;
  tracker::EventSink sink_;
  std::string bind_;
  std::shared_ptr<const storage::Secret> secret_;
  std::shared_ptr<storage::FakeDisk> disk_ = std::make_shared<storage::FakeDisk>();
  std::unique_ptr<tracker::Tracker> tracker_;
};

}  // namespace warren::testing
