// A job's secret: the file that holds it and every key that derives from it.
//
// Two kinds of file, both text, mode 0600, owned by the user who reads them:
//
//   root: the tracker's; every job of it derives     job: one job's; shows nothing of the root or of other jobs
//     warren-secret-1                                  warren-secret-1
//     key <64 hex>                                     job <name>
//                                                      tracker <64 hex: the tracker's CURVE public key>
//                                                      key <64 hex>
//
// Derivations are keyed BLAKE2b-256 over (length of label, label, data):
//   tracker's CURVE secret key = H(root, "tracker curve")      worker's CURVE secret key = H(job key, "worker control")
//   job key                    = H(root, "job", job's name)    data-link key             = H(job key, "data link")
//   CURVE secret key of who serves and of who fetches logged results, the same at all workers = H(job key, "fetch")
// All workers of a job have the same CURVE key pair: it says which job a connection belongs to, an incarnation says
// who.
//
// Keys are never printed, and their memory is wiped. All of it may be called from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "recovery/base/result.h"

namespace warren::storage {

// A key pair for ZeroMQ's CURVE, in the Z85 text that its options take (40 characters each).
struct CurveKeys {
  std::string public_z85, secret_z85;
  ~CurveKeys();
};

// What a worker of one job needs.
struct JobCredentials {
  std::string tracker_public_z85;
  CurveKeys worker;
  CurveKeys fetch;                       // both ends of a connection between workers
  std::array<std::byte, 32> link_key{};  // authenticates both ends of a data link
  ~JobCredentials();
};

class Secret {
 public:
  // kUnavailable: no such file, or it cannot be read. kRefused: not a regular file, somebody else's, or readable by
  // others (the message has the command that mends it). kCorrupt: not a secret file of this version.
  static Result<Secret> load(const std::string& path);

  // Makes a new root secret file. kInvalidArgument: the path exists, it is never overwritten. kInternal: cannot write.
  static Status generate(const std::string& path);

  // Writes the file that the workers of `job` need and nothing more; never overwrites. Needs a root secret.
  [[nodiscard]] Status write_job_secret(std::string_view job, const std::string& path) const;

  [[nodiscard]] bool is_root() const { return !job_.has_value(); }

  // kRefused: this is the secret of another job. kInvalidArgument: not a job's name.
  [[nodiscard]] Result<JobCredentials> for_job(std::string_view job) const;

  // The tracker's own key pair. Only with a root secret (checked).
  [[nodiscard]] CurveKeys tracker_keys() const;

  Secret(Secret&& other) noexcept;
  Secret& operator=(Secret&& other) noexcept;
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  ~Secret();

 private:
  using Key = std::array<unsigned char, 32>;

  Secret() = default;
  static Result<Secret> parse(std::string_view text);

  Key key_{};                       // the root's, or the job's
  std::optional<std::string> job_;  // none: a root secret
  Key tracker_public_{};            // of a job's secret
};

}  // namespace warren::storage
