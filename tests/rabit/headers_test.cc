// What rabit's headers hold besides calls: streams, buffers, checks, types.
#include <gtest/gtest.h>
#include <rabit/c_api.h>
#include <rabit/internal/timer.h>
#include <rabit/rabit.h>

#include <cmath>

namespace {

using rabit::utils::MemoryBufferStream;
using rabit::utils::MemoryFixSizeBuffer;

struct Point {
  int x;
  double y;
};

TEST(Streams, ValuesComeBack) {
  std::string buffer;
  MemoryBufferStream to(&buffer);
  to.Write(std::string("text"));
  to.Write(std::string());
  to.Write(std::vector<double>{1.5, -2.5});
  to.Write(std::vector<std::vector<int>>{{1}, {}, {2, 3}});
  to.Write(std::vector<std::string>{"a", ""});
  to.Write(Point{4, 5.5});
  to.Write(std::uint16_t{9});

  MemoryFixSizeBuffer from(buffer.data(), buffer.size());
  std::string text = "old", empty = "old";
  std::vector<double> values{9};
  std::vector<std::vector<int>> nested;
  std::vector<std::string> texts;
  Point point{};
  std::uint16_t small = 0;
  EXPECT_TRUE(from.Read(&text) && from.Read(&empty) && from.Read(&values) && from.Read(&nested) && from.Read(&texts) &&
              from.Read(&point) && from.Read(&small));
  EXPECT_EQ(text, "text");
  EXPECT_EQ(empty, "");
  EXPECT_EQ(values, (std::vector<double>{1.5, -2.5}));
  EXPECT_EQ(nested, (std::vector<std::vector<int>>{{1}, {}, {2, 3}}));
  EXPECT_EQ(texts, (std::vector<std::string>{"a", ""}));
  EXPECT_EQ(point.x, 4);
  EXPECT_EQ(point.y, 5.5);
  EXPECT_EQ(small, 9);
  EXPECT_TRUE(from.AtEnd());
  EXPECT_FALSE(from.Read(&small));
}

// As dmlc-core writes them: 64 bits of length, then the elements as they lie in memory.
TEST(Streams, TheFormatOfAVector) {
  std::string buffer;
  MemoryBufferStream to(&buffer);
  to.Write(std::vector<std::uint16_t>{0x0102, 0x0304});
  EXPECT_EQ(buffer, std::string("\2\0\0\0\0\0\0\0\2\1\4\3", 12));
}

TEST(Streams, ALengthThatIsALieIsFoundOut) {
  std::string buffer;
  MemoryBufferStream to(&buffer);
  to.Write(std::uint64_t{1} << 60);
  to.Write(std::uint64_t{0});
  std::vector<double> values;
  std::string text;
  std::vector<std::string> texts;
  EXPECT_FALSE(MemoryFixSizeBuffer(buffer.data(), buffer.size()).Read(&values));
  EXPECT_FALSE(MemoryFixSizeBuffer(buffer.data(), buffer.size()).Read(&text));
  EXPECT_FALSE(MemoryFixSizeBuffer(buffer.data(), buffer.size()).Read(&texts));
}

TEST(Streams, BuffersHavePositions) {
  char room[8] = {};
  MemoryFixSizeBuffer fixed(room, sizeof room);
  fixed.Write("abcd", 4);
  EXPECT_EQ(fixed.Tell(), 4u);
  fixed.Seek(2);
  char two[3] = {};
  EXPECT_EQ(fixed.Read(two, 2), 2u);
  EXPECT_STREQ(two, "cd");
  fixed.Seek(MemoryFixSizeBuffer::kSeekEnd);
  EXPECT_TRUE(fixed.AtEnd());
  EXPECT_EQ(fixed.Read(two, 2), 0u);
  fixed.Seek(0);
  fixed.Seek(MemoryFixSizeBuffer::SeekEnd);
  EXPECT_TRUE(fixed.AtEnd());
  EXPECT_EXIT(fixed.Seek(9), testing::ExitedWithCode(255), "AssertError:seek position exceed");
  EXPECT_EXIT(fixed.Write("x", 1), testing::ExitedWithCode(255), "AssertError:write position exceed");

  std::string growing = "abc";
  MemoryBufferStream stream(&growing);
  stream.Seek(2);
  stream.Write("XYZ", 3);
  EXPECT_EQ(growing, "abXYZ");
  EXPECT_TRUE(stream.AtEnd());
}

TEST(Utils, ChecksEndTheProcess) {
  rabit::utils::Check(true, "not said");
  rabit::utils::Assert(true, "not said");
  EXPECT_EXIT(rabit::utils::Check(false, "wrong: %d", 7), testing::ExitedWithCode(255), "wrong: 7");
  EXPECT_EXIT(rabit::utils::Assert(false, "wrong: %d", 7), testing::ExitedWithCode(255), "AssertError:wrong: 7");
  EXPECT_EXIT(rabit::utils::Error("wrong: %s", "x"), testing::ExitedWithCode(255), "wrong: x");
  EXPECT_EXIT(rabit::utils::FopenCheck("/none/such", "rb"), testing::ExitedWithCode(255), "/none/such");
}

TEST(Utils, ChecksMayThrow) {
  rabit::utils::STOP_PROCESS_ON_ERROR = false;
  EXPECT_THROW(rabit::utils::Check(false, "wrong: %d", 7), std::runtime_error);
  EXPECT_THROW(rabit::utils::Assert(false, "wrong: %d", 7), std::runtime_error);
  rabit::utils::STOP_PROCESS_ON_ERROR = true;
}

// Where a check fails inside of a reduction, what the program does at its end could wait for that round.
TEST(Utils, AFailedCheckCallsNothingElse) {
  EXPECT_EXIT(
      {
        std::atexit([] { std::fprintf(stderr, "atexit\n"); });
        rabit::utils::Check(false, "wrong");
      },
      testing::ExitedWithCode(255), "^wrong\n$");
}

TEST(Utils, SmallThings) {
  EXPECT_TRUE(rabit::utils::StringToBool("TRUE"));
  EXPECT_TRUE(rabit::utils::StringToBool("2"));
  EXPECT_FALSE(rabit::utils::StringToBool("0"));
  EXPECT_FALSE(rabit::utils::StringToBool("no"));
  EXPECT_GT(rabit::utils::GetTime(), 1.5e9);
  std::vector<int> values{1};
  EXPECT_EQ(rabit::BeginPtr(values), values.data());
  values.clear();
  EXPECT_EQ(rabit::BeginPtr(values), nullptr);
  char text[4];
  EXPECT_EQ(rabit::utils::SPrintf(text, sizeof text, "%d", 12345), 5);
  EXPECT_STREQ(text, "123");
}

// Before Init every process is a world of one; after Finalize too, but for calls.
TEST(Calls, BeforeInitAndAfterFinalize) {
  EXPECT_EQ(rabit::GetRank(), 0);
  EXPECT_EQ(rabit::GetWorldSize(), 1);
  EXPECT_FALSE(rabit::IsDistributed());
  double value = 0;
  rabit::Allreduce<rabit::op::Max>(&value, 1, [&] { value = 3; });
  EXPECT_EQ(value, 3);
  EXPECT_TRUE(rabit::Finalize());
  EXPECT_EXIT(
      {
        (void)RabitInit(0, nullptr);
        (void)RabitFinalize();
        if (RabitGetWorldSize() != 1) std::exit(1);
        rabit::Allreduce<rabit::op::Max>(&value, 1);
      },
      testing::ExitedWithCode(255), "a call after Finalize");
}

TEST(Calls, MistakesOfAWorldOfOneAreFound) {
  double values[4] = {};
  EXPECT_EXIT(rabit::Broadcast(values, sizeof values, 1), testing::ExitedWithCode(255),
              "headers_test.cc:[0-9]+: root 1; there are ranks 0 to 0");
  EXPECT_EXIT(rabit::Allgather(values, 4, 2, 4, 2), testing::ExitedWithCode(255), "the slice's size, not its end");
  EXPECT_EXIT(RabitAllreduce(values, 1, 10, 0, nullptr, nullptr), testing::ExitedWithCode(255), "unknown type 10");
  EXPECT_EXIT(RabitAllreduce(values, 1, 7, 4, nullptr, nullptr), testing::ExitedWithCode(255), "unknown operation 4");
  constexpr std::size_t kHuge = ~std::size_t{0} / 4;
  EXPECT_EXIT(RabitAllgather(values, kHuge, 0, 4, 4, 7), testing::ExitedWithCode(255), "more than memory can hold");
  EXPECT_EXIT(rabit::Allgather(values, kHuge, 0, 4, 4), testing::ExitedWithCode(255), "more than memory can hold");
  EXPECT_EXIT(RabitAllreduce(values, kHuge, 7, 2, nullptr, nullptr), testing::ExitedWithCode(255),
              "more than memory can hold");
  EXPECT_EXIT(RabitTrackerPrint(nullptr), testing::ExitedWithCode(255), "the text is NULL");
  EXPECT_EXIT(RabitLoadCheckPoint(nullptr, nullptr, nullptr, nullptr), testing::ExitedWithCode(255), "no place");
  EXPECT_EXIT(RabitCheckPoint(nullptr, 5, nullptr, 0), testing::ExitedWithCode(255), "the global model is NULL");
  char name[4] = "xyz";
  rbt_ulong length = 0;
  EXPECT_EXIT(RabitGetProcessorName(name, nullptr, 4), testing::ExitedWithCode(255), "no place for the length");
  EXPECT_EXIT(RabitGetProcessorName(nullptr, &length, 4), testing::ExitedWithCode(255), "no place for the name");
  RabitGetProcessorName(nullptr, &length, 0);
  RabitCheckPoint(nullptr, 0, nullptr, 0);
}

// What is thrown does not leave the process usable.
TEST(Calls, AfterAnErrorThatIsCaughtEveryCallFails) {
  EXPECT_EXIT(
      {
        rabit::utils::STOP_PROCESS_ON_ERROR = false;
        double values[4] = {};
        for (const std::size_t elements : {~std::size_t{0} / 4, std::size_t{4}}) {
          try {
            rabit::Allgather(values, elements, 0, elements, elements);
            std::exit(1);
          } catch (const std::runtime_error&) {
          }
        }
        rabit::utils::STOP_PROCESS_ON_ERROR = true;
        (void)rabit::Init(0, nullptr);
      },
      testing::ExitedWithCode(255), "no part of its job any more: [0-9]+ elements of 8 bytes are more");
}

TEST(Calls, WhatThrowsLeavesTheCInterfaceAsAnErrorAndTheOtherAsItIs) {
  double value = 0;
  const auto throws = [](void*) { throw std::out_of_range("row 7"); };
  EXPECT_EXIT(RabitAllreduce(&value, 1, 7, 2, throws, nullptr), testing::ExitedWithCode(255),
              "a call cannot be done: row 7");
  EXPECT_THROW(rabit::Allreduce<rabit::op::Sum>(&value, 1, throws, nullptr), std::out_of_range);
}

TEST(Calls, NoCheckpointIsNoModel) {
  char text[] = "x";
  char *global = text, *local = text;
  rbt_ulong global_bytes = 9, local_bytes = 9;
  EXPECT_EQ(RabitLoadCheckPoint(&global, &global_bytes, &local, &local_bytes), 0);
  EXPECT_EQ(global, nullptr);
  EXPECT_EQ(local, nullptr);
  EXPECT_EQ(global_bytes, 0u);
  EXPECT_EQ(local_bytes, 0u);
}

}  // namespace
