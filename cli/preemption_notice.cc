#include "cli/preemption_notice.h"

#include <httplib.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "worker/system/text.h"

namespace warren::cli {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 3> kClouds = {"aws", "google", "azure"};  // as Cloud numbers them
constexpr std::array<const char*, 3> kUrls = {"http://169.254.169.254", "http://metadata.google.internal",
                                              "http://169.254.169.254"};
constexpr time_t kPatienceS = 2;
constexpr std::size_t kMostBytes = std::size_t{64} * 1024;
// Before the machine goes, for what comes after the workers have left.
constexpr std::int64_t kSpareMs = 2000;
// Google names no time: it is about 30 s from the notice to the end.
constexpr std::int64_t kGoogleMs = 25'000;
constexpr const char* kTokenPath = "/latest/api/token";
constexpr const char* kTokenSeconds = "21600";
constexpr const char* kActionPath = "/latest/meta-data/spot/instance-action";
constexpr const char* kGooglePath = "/computeMetadata/v1/instance/preempted";
constexpr const char* kAzureNamePath = "/metadata/instance/compute/name?api-version=2021-02-01&format=text";
constexpr const char* kAzureEventsPath = "/metadata/scheduledevents?api-version=2020-07-01";
// Of Azure's events; the others (a freeze of some seconds, a reboot after maintenance) leave the machine where it is or
// come with a SIGTERM of their own.
constexpr std::array<std::string_view, 3> kEndings = {"Preempt", "Terminate", "Redeploy"};

Status strange(const std::string& url, const std::string& what) {
  return {Code::kUnavailable, "the metadata service at " + url + " " + what};
}

// Milliseconds since 1970; nothing: another form.
std::optional<std::int64_t> parse_time(const std::string& text, const char* form) {
  std::tm tm{};
  const char* end = strptime(text.c_str(), form, &tm);
  if (end == nullptr || *end != '\0') return std::nullopt;
  return std::int64_t{timegm(&tm)} * 1000;
}

std::int64_t left_ms(std::int64_t at_ms, std::int64_t now_ms) {
  return std::max<std::int64_t>(0, at_ms - now_ms - kSpareMs);
}

}  // namespace

Result<Cloud> parse_cloud(std::string_view word) {
  const auto found = std::ranges::find(kClouds, word);
  if (found != kClouds.end()) return static_cast<Cloud>(found - kClouds.begin());
  return Status(Code::kInvalidArgument,
                "there is no cloud " + worker::in_quotes(std::string(word)) + ": give aws, google or azure");
}

struct PreemptionSource::Http {
  explicit Http(const std::string& url) : client(url) {
    client.set_connection_timeout(kPatienceS);
    client.set_read_timeout(kPatienceS);
    client.set_follow_location(false);
  }
  // kUnavailable: nobody answers, or with more than any of these services says.
  Result<httplib::Response> ask(const std::string& url, const char* method, const char* path,
                                const httplib::Headers& headers) {
    httplib::Request request;
    request.method = method;
    request.path = path;
    request.headers = headers;
    std::string body;
    // The client's own limit is for each read: one that trickles would hold up the launcher's end.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(kPatienceS);
    request.content_receiver = [&](const char* data, std::size_t size, std::uint64_t, std::uint64_t) {
      body.append(data, std::min(size, kMostBytes + 1 - body.size()));
      return body.size() <= kMostBytes && std::chrono::steady_clock::now() < until;
    };
    const httplib::Result result = client.send(request);
    if (body.size() > kMostBytes) return strange(url, "says more than " + std::to_string(kMostBytes) + " bytes");
    if (!result) return strange(url, "does not answer (" + httplib::to_string(result.error()) + ")");
    httplib::Response response = *result;
    response.body = std::move(body);
    return response;
  }
  httplib::Client client;
};

PreemptionSource::PreemptionSource(Cloud cloud, const std::string& url)
    : cloud_(cloud),
      url_(url.empty() ? kUrls[static_cast<std::size_t>(cloud)] : url),
      http_(std::make_unique<Http>(url_)) {}
PreemptionSource::~PreemptionSource() = default;

Result<std::optional<PreemptionNotice>> PreemptionSource::look(std::int64_t now_ms) {
  switch (cloud_) {
    case Cloud::kAws: return look_aws(now_ms);
    case Cloud::kGoogle: return look_google();
    case Cloud::kAzure: return look_azure(now_ms);
  }
  return std::optional<PreemptionNotice>();
}

Result<std::optional<PreemptionNotice>> PreemptionSource::look_aws(std::int64_t now_ms) {
  // A token that is refused is too old: another is asked for, once.
  for (int tries = 0; tries < 2; ++tries) {
    if (token_.empty()) {
      const httplib::Headers headers = {{"X-aws-ec2-metadata-token-ttl-seconds", kTokenSeconds}};
      auto got = http_->ask(url_, "PUT", kTokenPath, headers);
      if (!got.ok()) return got.status();
      if (got.value().status != 200 || got.value().body.empty()) {
        return strange(url_, "gives no session token (code " + std::to_string(got.value().status) + ")");
      }
      token_ = got.value().body;
    }
    auto got = http_->ask(url_, "GET", kActionPath, {{"X-aws-ec2-metadata-token", token_}});
    if (!got.ok()) return got.status();
    if (got.value().status == 404) return std::optional<PreemptionNotice>();
    if (got.value().status == 401) {
      token_.clear();
      continue;
    }
    const json said = json::parse(got.value().body, nullptr, false);
    if (got.value().status != 200 || !said.is_object() || !said.contains("action") || !said["action"].is_string()) {
      return strange(url_, "says something else than what becomes of this machine (code " +
                               std::to_string(got.value().status) + "): " + worker::in_quotes(got.value().body));
    }
    PreemptionNotice notice;
    const std::string time = said.contains("time") && said["time"].is_string() ? said["time"].get<std::string>() : "";
    const auto at_ms = parse_time(time, "%Y-%m-%dT%H:%M:%SZ");
    notice.within_ms = at_ms ? left_ms(*at_ms, now_ms) : 0;
    notice.what = "AWS will " + worker::in_quotes(said["action"].get<std::string>()) + " this machine" +
                  (at_ms ? " at " + time : std::string(", at a time that it does not tell"));
    return std::optional(notice);
  }
  return strange(url_, "does not take the session token that it gave");
}

Result<std::optional<PreemptionNotice>> PreemptionSource::look_google() {
  auto got = http_->ask(url_, "GET", kGooglePath, {{"Metadata-Flavor", "Google"}});
  if (!got.ok()) return got.status();
  const std::string& body = got.value().body;
  if (const std::string flavor = got.value().get_header_value("Metadata-Flavor"); flavor != "Google") {
    return strange(url_, "answers with code " + std::to_string(got.value().status) + " and " +
                             (flavor.empty() ? "without the header Metadata-Flavor"
                                             : "with the header Metadata-Flavor: " + worker::in_quotes(flavor)) +
                             ", so that it is not Google's: something between answers in its place, or this machine is "
                             "not Google's");
  }
  if (got.value().status != 200 || (body != "TRUE" && body != "FALSE")) {
    return strange(url_, "says something else than whether this machine is preempted (code " +
                             std::to_string(got.value().status) + "): " + worker::in_quotes(body));
  }
  if (body == "FALSE") return std::optional<PreemptionNotice>();
  return std::optional(PreemptionNotice{kGoogleMs, "Google preempts this machine"});
}

Result<std::optional<PreemptionNotice>> PreemptionSource::look_azure(std::int64_t now_ms) {
  const httplib::Headers headers = {{"Metadata", "true"}};
  if (machine_.empty()) {
    auto name = http_->ask(url_, "GET", kAzureNamePath, headers);
    if (!name.ok()) return name.status();
    if (name.value().status != 200 || name.value().body.empty()) {
      return strange(url_,
                     "does not tell what this machine is called (code " + std::to_string(name.value().status) + ")");
    }
    machine_ = name.value().body;
  }
  auto got = http_->ask(url_, "GET", kAzureEventsPath, headers);
  if (!got.ok()) return got.status();
  const json said = json::parse(got.value().body, nullptr, false);
  if (got.value().status != 200 || !said.is_object() || !said.contains("Events") || !said["Events"].is_array()) {
    return strange(url_, "does not tell scheduled events (code " + std::to_string(got.value().status) +
                             "): " + worker::in_quotes(got.value().body));
  }
  const auto word = [](const json& event, const char* name) {
    return event.is_object() && event.contains(name) && event[name].is_string() ? event[name].get<std::string>() : "";
  };
  for (const json& event : said["Events"]) {
    const std::string type = word(event, "EventType");
    if (std::ranges::find(kEndings, type) == kEndings.end()) continue;
    // Those of other machines of the same set are told too.
    const bool ours = event.contains("Resources") && event["Resources"].is_array() &&
                      std::ranges::find(event["Resources"], json(machine_)) != event["Resources"].end();
    if (!ours) continue;
    // Empty once it has begun.
    const std::string time = word(event, "NotBefore");
    const auto at_ms = parse_time(time, "%a, %d %b %Y %H:%M:%S GMT");
    PreemptionNotice notice;
    notice.within_ms = at_ms ? left_ms(*at_ms, now_ms) : 0;
    notice.what = "Azure has scheduled " + type + " of this machine, " + worker::in_quotes(machine_) +
                  (at_ms ? ", not before " + time : std::string(", and begins"));
    return std::optional(notice);
  }
  return std::optional<PreemptionNotice>();
}

PreemptionWatch::PreemptionWatch(std::unique_ptr<PreemptionSource> source, std::int64_t interval_ms,
                                 std::function<void(const PreemptionNotice&)> told,
                                 std::function<void(const Status&)> unheard)
    : source_(std::move(source)),
      interval_ms_(interval_ms),
      told_(std::move(told)),
      unheard_(std::move(unheard)),
      thread_([this] { loop(); }) {}

PreemptionWatch::~PreemptionWatch() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void PreemptionWatch::loop() {
  bool heard = true;
  std::unique_lock lock(mutex_);
  while (!ends_) {
    lock.unlock();
    const std::int64_t now_ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
            .count();
    const auto found = source_->look(now_ms);
    if (!found.ok() && heard) unheard_(found.status());
    heard = found.ok();
    if (found.ok() && found.value()) return told_(*found.value());
    lock.lock();
    wake_.wait_for(lock, std::chrono::milliseconds(interval_ms_), [this] { return ends_; });
  }
}

}  // namespace warren::cli
