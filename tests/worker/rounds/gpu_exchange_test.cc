#include "worker/rounds/gpu_exchange.h"

#include <gmock/gmock.h>

namespace warren::worker {
namespace {

using ::testing::HasSubstr;

TEST(GpuExchange, WordsComeThroughAsTheyWere) {
  GpuExchange::Word::Id id{};
  for (std::size_t i = 0; i < id.size(); i++) id[i] = static_cast<std::byte>(i + 1);
  for (const bool ready : {false, true}) {
    for (const bool takes_part : {false, true}) {
      for (const bool has_id : {false, true}) {
        GpuExchange::Word word;
        word.ready = ready;
        word.takes_part = takes_part;
        if (has_id) word.id = id;
        const auto back = GpuExchange::decode(GpuExchange::encode(word));
        ASSERT_TRUE(back.ok());
        EXPECT_EQ(back.value(), word);
      }
    }
  }
}

TEST(GpuExchange, WhatIsNoWordIsRefused) {
  auto bytes = GpuExchange::encode({});
  for (const int flags : {8, 16, 255}) {
    bytes[0] = static_cast<std::byte>(flags);
    const auto word = GpuExchange::decode(bytes);
    EXPECT_EQ(word.status().code(), Code::kCorrupt);
    EXPECT_THAT(word.status().describe(), HasSubstr("has the flags " + std::to_string(flags)));
  }
}

}  // namespace
}  // namespace warren::worker
