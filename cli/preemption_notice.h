// What the metadata service of a cloud says of this machine's end. Each speaks a protocol of its own:
//  - AWS: IMDSv2. A session token first, then the spot instance's action and its time (404: none), two minutes before.
//  - Google: whether the instance is preempted, about thirty seconds before.
//  - Azure: scheduled events, of which those count that end this very machine, at least thirty seconds before.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "recovery/base/result.h"

namespace warren::cli {

enum class Cloud { kAws, kGoogle, kAzure };

// "aws", "google", "azure". kInvalidArgument: another word.
[[nodiscard]] Result<Cloud> parse_cloud(std::string_view word);

struct PreemptionNotice {
  std::int64_t within_ms = 0;  // until the machine goes, with some time to spare; 0: now
  std::string what;            // "AWS terminates this machine at 2026-11-22T08:22:00Z"
};

// Asks one metadata service. Thread rule: one thread at a time.
class PreemptionSource {
 public:
  // `url`: "http://host[:port]"; empty: where the cloud has it.
  PreemptionSource(Cloud cloud, const std::string& url);
  ~PreemptionSource();

  // Nothing: the machine stays. kUnavailable: nobody answers, or not as such a service does. `now_ms`: since 1970.
  [[nodiscard]] Result<std::optional<PreemptionNotice>> look(std::int64_t now_ms);

 private:
  struct Http;
  Result<std::optional<PreemptionNotice>> look_aws(std::int64_t now_ms);
  Result<std::optional<PreemptionNotice>> look_google();
  Result<std::optional<PreemptionNotice>> look_azure(std::int64_t now_ms);

  const Cloud cloud_;
  const std::string url_;
  std::unique_ptr<Http> http_;
  std::string token_;    // of AWS
  std::string machine_;  // what Azure calls this one
};

// A thread that asks again and again, and tells once.
class PreemptionWatch {
 public:
  // `told`: from the thread; after it no more is asked. `unheard`: when the service has not answered, once until it
  // does.
  PreemptionWatch(std::unique_ptr<PreemptionSource> source, std::int64_t interval_ms,
                  std::function<void(const PreemptionNotice&)> told, std::function<void(const Status&)> unheard);
  ~PreemptionWatch();
  PreemptionWatch(const PreemptionWatch&) = delete;
  PreemptionWatch& operator=(const PreemptionWatch&) = delete;

 private:
  void loop();

  const std::unique_ptr<PreemptionSource> source_;
  const std::int64_t interval_ms_;
  const std::function<void(const PreemptionNotice&)> told_;
  const std::function<void(const Status&)> unheard_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace warren::cli
