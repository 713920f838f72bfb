#include "cli/embedded_tracker.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "recovery/wire/codec.h"
#include "storage/journal.h"
#include "storage/rocks_journal.h"
#include "worker/system/text.h"

namespace warren::cli {
namespace {

class MemoryJournal final : public storage::Journal {
 public:
  Result<std::map<std::string, std::string>> load() override { return records_; }
  Result<std::optional<std::string>> get(std::string_view job) override {
    const auto at = records_.find(std::string(job));
    return at == records_.end() ? std::optional<std::string>() : std::optional(at->second);
  }
  Status put(std::string_view job, std::string_view bytes) override {
    records_[std::string(job)] = bytes;
    return {};
  }
  Status erase(std::string_view job) override {
    records_.erase(std::string(job));
    return {};
  }

 private:
  std::map<std::string, std::string> records_;
};

Result<std::unique_ptr<storage::Journal>> open_journal(const std::string& folder, worker::OtherLines& lines) {
  if (folder.empty()) return std::unique_ptr<storage::Journal>(std::make_unique<MemoryJournal>());
  auto journal = storage::RocksJournal::open(folder);
  if (!journal.ok()) return journal.status();
  if (const std::string& text = journal.value()->made_private(); !text.empty()) {
    lines.add(worker::utc_now() + " warren: " + text);
  }
  return std::unique_ptr<storage::Journal>(std::move(journal).value());
}

}  // namespace

Result<std::unique_ptr<EmbeddedTracker>> EmbeddedTracker::start(const std::string& job, bool authenticate,
                                                                worker::OtherLines& lines,
                                                                const std::string& journal_folder) {
  std::unique_ptr<EmbeddedTracker> out(new EmbeddedTracker);
  out->job_ = job;
  out->journal_folder_ = journal_folder;
  auto journal = open_journal(journal_folder, lines);
  if (!journal.ok()) return journal.status().because_of_this("cannot start a tracker");
  if (authenticate) {
    if (Status s = out->prepare_secrets(); !s.ok()) return s.because_of_this("cannot start a tracker");
  }
  tracker::TrackerOptions options;
  options.bind_address = "127.0.0.1";
  options.port = 0;
  options.http_port = 0;
  options.secret = out->root_;
  options.insecure = !authenticate;
  options.journal = std::move(journal).value();
  options.sink = [&lines](std::string_view, const LogEvent& event) {
    // A reader of a generation's end wants to know how the job continued.
    if (event.severity >= Severity::kWarning || event.name == "recovered")
      lines.add(worker::utc_now() + " warren: tracker: " + event.text);
  };
  auto tracker = tracker::Tracker::start(std::move(options));
  if (!tracker.ok()) return tracker.status().because_of_this("cannot start a tracker");
  out->tracker_ = std::move(tracker).value();
  return out;
}

Status EmbeddedTracker::prepare_secrets() {
  const char* base = getenv("TMPDIR");  // NOLINT(concurrency-mt-unsafe): no other thread yet
  std::string pattern = std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/warren-XXXXXX";
  if (mkdtemp(pattern.data()) == nullptr) {  // mode 0700
    return {Code::kUnavailable, "cannot make the folder " + pattern + ": " + std::strerror(errno) +
                                    "; name one that can be written by TMPDIR"};
  }
  folder_ = pattern;
  const std::string root_file = folder_ + "/tracker";
  secret_file_ = folder_ + "/job";
  if (Status s = storage::Secret::generate(root_file); !s.ok()) return s;
  auto root = storage::Secret::load(root_file);
  if (!root.ok()) return root.status();
  root_ = std::make_shared<const storage::Secret>(std::move(root).value());
  return root_->write_job_secret(job_, secret_file_);
}

EmbeddedTracker::~EmbeddedTracker() {
  tracker_.reset();
  std::error_code gone;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, gone);
}

void EmbeddedTracker::forget() {
  tracker_.reset();
  if (journal_folder_.empty()) return;
  // What cannot be read or removed now is left to the next tracker, which says so.
  auto journal = storage::RocksJournal::open(journal_folder_);
  if (!journal.ok()) return;
  auto records = journal.value()->load();
  if (!records.ok()) return;
  if (const auto own = records.value().find(job_); own != records.value().end()) {
    // A job of an earlier run, in which none of this run's programs took part, may still go on.
    wire::JobRecord record;
    if (!record.ParseFromString(own->second) || !record.finished() || !journal.value()->erase(job_).ok()) return;
    records.value().erase(own);
  }
  if (!records.value().empty()) return;
  journal.value().reset();
  std::error_code gone;
  std::filesystem::remove_all(journal_folder_, gone);
}

std::string EmbeddedTracker::address() const {
  return "127.0.0.1:" + std::to_string(tracker_->port());
}
std::string EmbeddedTracker::status_page() const {
  return "127.0.0.1:" + std::to_string(tracker_->http_port());
}

std::map<std::string, std::optional<std::string>> EmbeddedTracker::variables() const {
  std::map<std::string, std::optional<std::string>> out = {{"WARREN_TRACKER", address()}, {"WARREN_JOB", job_}};
  if (root_) {
    out["WARREN_SECRET_FILE"] = secret_file_;
    out["WARREN_INSECURE_NO_AUTH"] = "0";  // the file of settings may say otherwise
  } else {
    out["WARREN_SECRET_FILE"] = std::nullopt;
    out["WARREN_INSECURE_NO_AUTH"] = "1";
  }
  return out;
}

}  // namespace warren::cli
