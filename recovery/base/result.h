// Results of operations that can fail for reasons outside this program: a code that the caller can act on, a message
// for people, and the chain of what caused it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/ids.h"

namespace warren {

// What a caller can do about a failure. The values are part of the C ABI (warren/c_api.h).
enum class Code : int {
  kOk = 0,
  kInvalidArgument = 1,  // the call or the setting is wrong: change it
  kUnavailable = 2,      // nobody answers, a port is taken, a resource is missing: look at it and try again
  kRefused = 3,          // the other side said no (secret, job, version, world size): change the configuration
  kTimeout = 4,          // a stated time passed
  kPeerLost = 5,         // a rank of this job is gone: the communicator is broken, join again
  kDesync = 6,           // ranks called different things: fix the program
  kClosed = 7,           // finalized, destroyed, forked or fenced: this object serves no more
  kExhausted = 8,        // a limit was reached; the message names it
  kCorrupt = 9,          // bytes from wire or disk do not match their checksum or format
  kInternal = 10,        // an operating-system call failed in a way that nothing above foresees
  kRolledBack = 11,      // the job starts again from its newest committed checkpoint: end this life, begin another
  kFinished = 12,        // the job has ended well: there is nothing left to do
};

[[nodiscard]] std::string_view to_string(Code code);

// Whether a job that this has ended would end so again, if the same program were started with the same settings.
[[nodiscard]] constexpr bool recurs(Code code) {
  return code == Code::kInvalidArgument || code == Code::kDesync || code == Code::kExhausted;
}

// Success, or a failure with its chain of causes. Success costs one null pointer.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : failure_(std::make_shared<Failure>(code, std::move(message), nullptr)) {
    WARREN_CHECK(code != Code::kOk, "a failure has a code");
  }

  [[nodiscard]] bool ok() const { return failure_ == nullptr; }
  [[nodiscard]] Code code() const { return failure_ ? failure_->code : Code::kOk; }
  // This link of the chain alone; empty on success.
  [[nodiscard]] std::string_view message() const { return failure_ ? std::string_view(failure_->message) : ""; }

  // A failure with `message` whose cause is this one. The code is kept. Only on failures.
  [[nodiscard]] Status because_of_this(std::string message) const {
    return because_of_this(code(), std::move(message));
  }
  [[nodiscard]] Status because_of_this(Code code, std::string message) const {
    WARREN_CHECK(!ok(), "success causes nothing");
    Status s;
    s.failure_ = std::make_shared<Failure>(code, std::move(message), failure_);
    return s;
  }

  // This failure with the other rank that it concerns, or with the round in which it happened. Only on failures.
  [[nodiscard]] Status about(Rank peer) const;
  [[nodiscard]] Status about(const RoundId& round) const;
  [[nodiscard]] Status about(std::string round) const;
  // The other rank, and the round, of the newest link of the chain that has one. kNoRank, empty: no link has.
  [[nodiscard]] Rank peer() const;
  [[nodiscard]] std::string_view round() const;  // as texts name it: "5.3"

  // The whole chain: "cannot join job x: the tracker refused: world size 4 is not the job's 8".
  [[nodiscard]] std::string describe() const;

 private:
  struct Failure {
    Failure(Code c, std::string m, std::shared_ptr<const Failure> why)
        : code(c), message(std::move(m)), cause(std::move(why)) {}
    Code code;
    std::string message;
    std::shared_ptr<const Failure> cause;
    Rank peer = kNoRank;
    std::string round;
  };
  std::shared_ptr<const Failure> failure_;
};

// A value, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    WARREN_CHECK(!status_.ok(), "a Result without a value needs a reason");
  }

  [[nodiscard]] bool ok() const { return value_.has_value(); }
  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] T& value() & {
    WARREN_CHECK(ok(), "value() of a failed Result");
    return *value_;
  }
  [[nodiscard]] const T& value() const& {
    WARREN_CHECK(ok(), "value() of a failed Result");
    return *value_;
  }
  [[nodiscard]] T&& value() && {
    WARREN_CHECK(ok(), "value() of a failed Result");
    return *std::move(value_);
  }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace warren
