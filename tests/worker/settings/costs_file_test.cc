#include "worker/settings/costs_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "recovery/base/limits.h"

namespace warren::worker {
namespace {

using schedule::Algorithm;
using schedule::Costs;
using testing::HasSubstr;
using Json = nlohmann::ordered_json;

Costs some_costs() {
  Costs costs = schedule::default_costs();
  costs.measured = {{Collective::kAllreduce, 8, 65536, Algorithm::kStar},
                    {Collective::kAllreduce, 8, 131072, Algorithm::kAuto},
                    {Collective::kBroadcast, 8, 0, Algorithm::kRing}};
  return costs;
}

// What is said of a text that differs from one that is right.
std::string refused(auto change) {
  Json json = Json::parse(to_json(some_costs(), false));
  change(json);
  const auto parsed = parse_costs(json.dump());
  return parsed.ok() ? "" : parsed.status().describe();
}

TEST(CostsFile, WhatIsWrittenIsReadBack) {
  for (const bool for_people : {false, true}) {
    const auto read = parse_costs(to_json(some_costs(), for_people));
    ASSERT_TRUE(read.ok()) << read.status().describe();
    EXPECT_EQ(read.value(), some_costs());
  }
  EXPECT_EQ(to_json(some_costs(), false).find('\n'), std::string::npos);
}

TEST(CostsFile, CostsThatDifferHaveDifferentNames) {
  Costs other = some_costs();
  other.networks[0].hop_ns += 1;
  EXPECT_EQ(name_of(some_costs()), name_of(some_costs()));
  EXPECT_NE(name_of(some_costs()), name_of(other));
  // Of the default costs, and of the formulas that choose by them: whoever changes either changes this.
  EXPECT_EQ(name_of(schedule::default_costs()), "d0d1f2b8");
  EXPECT_EQ(settings_text(other), name_of(other) + " " + to_json(other, false));
}

TEST(CostsFile, TheLongestFitsIntoTheJobsSettings) {
  Costs costs;
  schedule::Network network;
  network.cores = 65536;
  network.most_ranks = 16384;
  network.hop_ns = network.message_ns = network.shared_message_ns = network.byte_ps = network.reduced_byte_ps =
      network.logged_byte_ps = 1'000'000'000;
  costs.networks.assign(4, network);
  costs.networks.back().most_ranks = 0;
  for (int i = 0; i < 64; ++i) {
    costs.measured.push_back({Collective::kReduceScatter, 16384,
                              (std::uint64_t{1} << 62) - 64 + static_cast<unsigned>(i), Algorithm::kDirect});
  }
  const auto read = parse_costs(to_json(costs, false));
  ASSERT_TRUE(read.ok()) << read.status().describe();
  EXPECT_EQ(read.value(), costs);
  EXPECT_LE(settings_text(costs).size(), limits::kMaxCostsBytes);
  EXPECT_THAT(refused([](Json& j) {
                const Json entry = j["measured"][0];
                for (int i = 0; i < 80; ++i) j["measured"].push_back(entry);
              }),
              HasSubstr("measured is no list of 0 to 64"));
}

TEST(CostsFile, WhatIsWrongIsNamed) {
  EXPECT_EQ(refused([](Json&) {}), "");
  EXPECT_THAT(parse_costs("{").status().describe(), HasSubstr("no JSON"));
  EXPECT_THAT(parse_costs("[]").status().describe(), HasSubstr("is no object"));
  EXPECT_THAT(refused([](Json& j) { j["format"] = 2; }), HasSubstr("format 2, this version of Warren reads format 1"));
  EXPECT_THAT(refused([](Json& j) { j["speed"] = 1; }), HasSubstr("unknown member 'speed'"));
  EXPECT_THAT(refused([](Json& j) { j.erase("measured"); }), HasSubstr("has no 'measured'"));
  EXPECT_THAT(refused([](Json& j) { j["networks"].clear(); }), HasSubstr("networks is no list of 1 to 4"));
  EXPECT_THAT(refused([](Json& j) { j["networks"][1] = 3; }), HasSubstr("networks[1] is no object"));
  EXPECT_THAT(refused([](Json& j) { j["networks"][0]["hop"] = 3; }), HasSubstr("networks[0] has an unknown member"));
  EXPECT_THAT(refused([](Json& j) { j["networks"][0].erase("hop_ns"); }), HasSubstr("networks[0] has no 'hop_ns'"));
  EXPECT_THAT(refused([](Json& j) { j["networks"][0]["hop_ns"] = -1; }), HasSubstr("hop_ns is no whole number"));
  EXPECT_THAT(refused([](Json& j) { j["networks"][0]["hop_ns"] = 1.5; }), HasSubstr("hop_ns is no whole number"));
  EXPECT_THAT(refused([](Json& j) { j["networks"][0]["hop_ns"] = 1e300; }), HasSubstr("hop_ns is no whole number"));
  EXPECT_THAT(refused([](Json& j) { j["networks"][0]["hop_ns"] = nullptr; }), HasSubstr("hop_ns is no whole number"));
  EXPECT_THAT(parse_costs("NaN").status().describe(), HasSubstr("no JSON"));
  EXPECT_THAT(parse_costs(std::string(60'000, '[')).status().describe(), HasSubstr("no JSON"));
  EXPECT_THAT(refused([](Json& j) { j["networks"][0]["byte_ps"] = 1'000'000'001; }), HasSubstr("0 to 1000000000"));
  EXPECT_THAT(refused([](Json& j) { j["networks"][0]["one_host"] = 1; }), HasSubstr("neither true nor false"));
  EXPECT_THAT(refused([](Json& j) { j["networks"][1]["most_ranks"] = 4; }), HasSubstr("give one most_ranks 0"));
  EXPECT_THAT(refused([](Json& j) { j["measured"][0]["ranks"] = 1; }), HasSubstr("ranks is no whole number from 2"));
  EXPECT_THAT(refused([](Json& j) { j["measured"][0]["collective"] = "point"; }), HasSubstr("no collective"));
  EXPECT_THAT(refused([](Json& j) { j["measured"][0]["algorithm"] = "rings"; }), HasSubstr("no algorithm"));
  EXPECT_THAT(refused([](Json& j) { j["measured"][2]["algorithm"] = "butterfly"; }),
              HasSubstr("measured[2] says that butterfly serves broadcast, which it does not"));
  EXPECT_THAT(refused([](Json& j) { j["measured"][1]["from_bytes"] = 65536; }),
              HasSubstr("measured[1] does not follow the one before it"));
}

TEST(CostsFile, AFileIsNamed) {
  const std::string path = testing::TempDir() + "/costs.json";
  EXPECT_THAT(read_costs(path + ".none").status().describe(), HasSubstr("cannot read the costs in " + path + ".none"));
  std::ofstream(path) << "{}";
  EXPECT_THAT(read_costs(path).status().describe(), HasSubstr("the costs in " + path + " cannot be used"));
  std::ofstream(path) << std::string(70'000, ' ');
  EXPECT_THAT(read_costs(path).status().describe(), HasSubstr("longer than 65536 bytes"));
  std::ofstream(path) << to_json(some_costs(), true);
  EXPECT_EQ(read_costs(path).value(), some_costs());
}

}  // namespace
}  // namespace warren::worker
