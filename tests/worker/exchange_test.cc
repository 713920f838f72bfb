#include "worker/exchange.h"

#include <gmock/gmock.h>

namespace warren::worker {
namespace {

using ::testing::HasSubstr;

TEST(Exchange, WordsComeThroughAsTheyWere) {
  Exchange::Word::Id id{};
  for (std::size_t i = 0; i < id.size(); i++) id[i] = static_cast<std::byte>(i + 1);
  for (const bool ready : {false, true}) {
    for (const bool takes_part : {false, true}) {
      for (const bool has_id : {false, true}) {
        Exchange::Word word;
        word.ready = ready;
        word.takes_part = takes_part;
        if (has_id) word.id = id;
        const auto back = Exchange::decode(Exchange::encode(word));
        ASSERT_TRUE(back.ok());
        EXPECT_EQ(back.value(), word);
      }
    }
  }
}

TEST(Exchange, WhatIsNoWordIsRefused) {
  auto bytes = Exchange::encode({});
  for (const int flags : {8, 16, 255}) {
    bytes[0] = static_cast<std::byte>(flags);
    const auto word = Exchange::decode(bytes);
    EXPECT_EQ(word.status().code(), Code::kCorrupt);
    EXPECT_THAT(word.status().describe(), HasSubstr("has the flags " + std::to_string(flags)));
  }
}

}  // namespace
}  // namespace warren::worker
