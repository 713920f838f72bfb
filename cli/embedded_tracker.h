// A tracker inside this process, for jobs that live and die with it on this machine.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "launcher/output.h"
#include "recovery/base/result.h"
#include "tracker/tracker.h"

namespace warren::cli {

// Listens on 127.0.0.1 alone, on ports that the system chooses, with a fresh secret in a private folder, which goes
// with the object.
class EmbeddedTracker {
 public:
  // `authenticate` false: no secret. `journal_folder`: where its journal is, made if it is missing; empty: in memory,
  // for jobs of which nothing outlives this process. Warnings go to `lines`, which is not owned and outlives it.
  // kUnavailable: no temporary folder can be made, or another process has the journal open.
  static Result<std::unique_ptr<EmbeddedTracker>> start(const std::string& job, bool authenticate,
                                                        worker::OtherLines& lines,
                                                        const std::string& journal_folder = {});
  ~EmbeddedTracker();
  EmbeddedTracker(const EmbeddedTracker&) = delete;
  EmbeddedTracker& operator=(const EmbeddedTracker&) = delete;

  [[nodiscard]] std::string address() const;      // "127.0.0.1:40123"
  [[nodiscard]] std::string status_page() const;  // "127.0.0.1:40124"
  // Ends the tracker, and removes what its journal holds of the job if that has finished, and the journal if nothing
  // else is left in it.
  void forget();
  // What its workers need to find it: tracker, job, and how to authenticate.
  [[nodiscard]] std::map<std::string, std::optional<std::string>> variables() const;

 private:
  EmbeddedTracker() = default;
  Status prepare_secrets();

  std::string job_;
  std::string folder_;  // empty: none was made
  std::string journal_folder_;
  std::string secret_file_;
  std::shared_ptr<const storage::Secret> root_;
  std::unique_ptr<tracker::Tracker> tracker_;
};

}  // namespace warren::cli
