// A tracker inside this process, for jobs that live and die with it on this machine.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "recovery/result.h"
#include "tracker/tracker.h"

namespace warren::cli {

// Listens on 127.0.0.1 alone, on ports that the system chooses, with a fresh secret in a private folder, which goes
// with the object. Its journal is in memory: what would read it dies with it. Warnings go to standard error.
class EmbeddedTracker {
 public:
  // `authenticate` false: no secret. kUnavailable: no temporary folder can be made.
  static Result<std::unique_ptr<EmbeddedTracker>> start(const std::string& job, bool authenticate);
  ~EmbeddedTracker();
  EmbeddedTracker(const EmbeddedTracker&) = delete;
  EmbeddedTracker& operator=(const EmbeddedTracker&) = delete;

  [[nodiscard]] std::string address() const;      // "127.0.0.1:40123"
  [[nodiscard]] std::string status_page() const;  // "127.0.0.1:40124"
  // What its workers need to find it: tracker, job, and how to authenticate.
  [[nodiscard]] std::map<std::string, std::optional<std::string>> variables() const;

 private:
  EmbeddedTracker() = default;
  Status prepare_secrets();

  std::string job_;
  std::string folder_;  // empty: none was made
  std::string secret_file_;
  std::shared_ptr<const storage::Secret> root_;
  std::unique_ptr<tracker::Tracker> tracker_;
};

}  // namespace warren::cli
