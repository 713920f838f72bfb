// The metadata services of three clouds, spoken by a server on this machine.
#include "cli/preemption_notice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <future>

namespace warren::cli {
namespace {

using testing::HasSubstr;

// 2026-11-22T08:20:00Z
constexpr std::int64_t kNowMs = 1'795'335'600'000;

class Service {
 public:
  Service() {
    port_ = server.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server.listen_after_bind(); });
    // listen_after_bind() takes what connects from here on: the socket listens already.
  }
  ~Service() {
    server.stop();
    thread_.join();
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

  httplib::Server server;

 private:
  int port_ = 0;
  std::thread thread_;
};

std::string text(const Result<std::optional<PreemptionNotice>>& found) {
  if (!found.ok()) return "failed: " + found.status().describe();
  if (!found.value()) return "nothing";
  return found.value()->what + " (" + std::to_string(found.value()->within_ms) + " ms)";
}

// IMDSv2: nothing is told without a token, tokens grow old.
class Aws : public Service {
 public:
  Aws() {
    server.Put("/latest/api/token", [this](const httplib::Request& q, httplib::Response& a) {
      ++tokens_given;
      if (q.get_header_value("X-aws-ec2-metadata-token-ttl-seconds").empty()) a.status = 400;
      a.set_content(token, "text/plain");
    });
    server.Get("/latest/meta-data/spot/instance-action", [this](const httplib::Request& q, httplib::Response& a) {
      if (q.get_header_value("X-aws-ec2-metadata-token") != token) {
        a.status = 401;
      } else if (action.empty()) {
        a.status = 404;
      } else {
        a.set_content(action, "application/json");
      }
    });
  }
  std::string token = "first", action;
  std::atomic<int> tokens_given{0};
};

TEST(PreemptionNotice, Aws) {
  Aws aws;
  PreemptionSource source(Cloud::kAws, aws.url());
  EXPECT_EQ(text(source.look(kNowMs)), "nothing");
  EXPECT_EQ(text(source.look(kNowMs)), "nothing");
  EXPECT_EQ(aws.tokens_given, 1) << "a token is kept";
  aws.token = "second";
  EXPECT_EQ(text(source.look(kNowMs)), "nothing");
  EXPECT_EQ(aws.tokens_given, 2) << "until it is refused";
  aws.action = R"({"action": "terminate", "time": "2026-11-22T08:22:00Z"})";
  EXPECT_EQ(text(source.look(kNowMs)), "AWS will 'terminate' this machine at 2026-11-22T08:22:00Z (118000 ms)");
  EXPECT_EQ(text(source.look(kNowMs + 300'000)), "AWS will 'terminate' this machine at 2026-11-22T08:22:00Z (0 ms)");
  aws.action = R"({"action": "stop", "time": "soon"})";
  EXPECT_EQ(text(source.look(kNowMs)), "AWS will 'stop' this machine, at a time that it does not tell (0 ms)");
  aws.action = "<html>";
  EXPECT_THAT(text(source.look(kNowMs)), HasSubstr("says something else than what becomes of this machine"));
}

TEST(PreemptionNotice, Google) {
  Service google;
  std::string preempted = "FALSE";
  bool flavored = true;
  google.server.Get("/computeMetadata/v1/instance/preempted", [&](const httplib::Request& q, httplib::Response& a) {
    if (q.get_header_value("Metadata-Flavor") != "Google") {
      a.status = 403;
      return;
    }
    if (flavored) a.set_header("Metadata-Flavor", "Google");
    a.set_content(preempted, "application/text");
  });
  PreemptionSource source(Cloud::kGoogle, google.url());
  EXPECT_EQ(text(source.look(kNowMs)), "nothing");
  preempted = "TRUE";
  EXPECT_EQ(text(source.look(kNowMs)), "Google preempts this machine (25000 ms)");
  // Whatever else answers at that address is not believed.
  flavored = false;
  EXPECT_THAT(text(source.look(kNowMs)), HasSubstr("answers with code 200 and without the header Metadata-Flavor"));
  flavored = true;
  preempted = "PERHAPS";
  EXPECT_THAT(text(source.look(kNowMs)), HasSubstr("says something else than whether this machine is preempted"));
  preempted.assign(64 * 1024 + 1, 'T');
  EXPECT_THAT(text(source.look(kNowMs)), HasSubstr("says more than 65536 bytes"));
  preempted = "FALSE";
  EXPECT_EQ(text(source.look(kNowMs)), "nothing");
}

TEST(PreemptionNotice, Azure) {
  Service azure;
  std::string events = R"({"DocumentIncarnation": 1, "Events": []})";
  const auto guarded = [](const httplib::Request& q, httplib::Response& a, const std::string& body) {
    if (q.get_header_value("Metadata") != "true" || q.get_param_value("api-version").empty()) a.status = 400;
    if (a.status != 400) a.set_content(body, "application/json");
  };
  azure.server.Get("/metadata/instance/compute/name",
                   [&](const httplib::Request& q, httplib::Response& a) { guarded(q, a, "vm_3"); });
  azure.server.Get("/metadata/scheduledevents",
                   [&](const httplib::Request& q, httplib::Response& a) { guarded(q, a, events); });
  PreemptionSource source(Cloud::kAzure, azure.url());
  EXPECT_EQ(text(source.look(kNowMs)), "nothing");
  const auto with = [&](const std::string& type, const std::string& machine, const std::string& when) {
    events = R"({"DocumentIncarnation": 2, "Events": [{"EventId": "x", "EventType": "Freeze", "Resources": ["vm_3"]},
                 {"EventId": "y", "EventStatus": "Scheduled", "EventType": ")" +
             type + R"(", "ResourceType": "VirtualMachine", "Resources": ["vm_1", ")" + machine +
             R"("], "NotBefore": ")" + when + R"("}]})";
    return text(source.look(kNowMs));
  };
  EXPECT_EQ(with("Preempt", "vm_3", "Sun, 22 Nov 2026 08:20:30 GMT"),
            "Azure has scheduled Preempt of this machine, 'vm_3', not before Sun, 22 Nov 2026 08:20:30 GMT (28000 ms)");
  EXPECT_EQ(with("Preempt", "vm_3", ""), "Azure has scheduled Preempt of this machine, 'vm_3', and begins (0 ms)");
  EXPECT_EQ(with("Preempt", "vm_2", "Sun, 22 Nov 2026 08:20:30 GMT"), "nothing") << "it is another's";
  EXPECT_EQ(with("Reboot", "vm_3", "Sun, 22 Nov 2026 08:20:30 GMT"), "nothing");
  events = "[]";
  EXPECT_THAT(text(source.look(kNowMs)), HasSubstr("does not tell scheduled events"));
}

TEST(PreemptionNotice, CloudsHaveNames) {
  EXPECT_EQ(parse_cloud("azure").value(), Cloud::kAzure);
  EXPECT_EQ(parse_cloud("gcp").status().code(), Code::kInvalidArgument);
}

TEST(PreemptionWatch, TellsOnceAndSaysThatItIsUnheard) {
  Aws aws;
  std::promise<std::string> unheard, told;
  std::atomic<int> complaints{0};
  {
    const PreemptionWatch deaf(
        std::make_unique<PreemptionSource>(Cloud::kGoogle, aws.url()), 1, [](const PreemptionNotice&) {},
        [&](const Status& why) {
          if (++complaints == 1) unheard.set_value(why.describe());
        });
    EXPECT_THAT(unheard.get_future().get(), HasSubstr("it is not Google"));
  }
  EXPECT_EQ(complaints, 1) << "once";
  aws.action = R"({"action": "terminate", "time": "2026-11-22T08:22:00Z"})";
  const PreemptionWatch watch(
      std::make_unique<PreemptionSource>(Cloud::kAws, aws.url()), 1,
      [&](const PreemptionNotice& n) { told.set_value(n.what); }, [](const Status&) {});
  EXPECT_THAT(told.get_future().get(), HasSubstr("terminate"));
}

}  // namespace
}  // namespace warren::cli
