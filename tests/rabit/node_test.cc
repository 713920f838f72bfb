// One process over a C interface that only records: which states Warren is given.
#include "rabit/node.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace {

// What the C interface has been given, in a job that is made up.
struct Fake {
  std::vector<std::string> states;
  int destroyed = 0;
};
Fake fake;
int fake_min_workers = 0;

}  // namespace

struct warren_comm {};

extern "C" {
void warren_options_init_sized(warren_options* options, size_t) {
  *options = warren_options{};
}
void warren_call_options_init_sized(warren_call_options* options, size_t) {
  *options = warren_call_options{};
}
const char* warren_last_error(void) {
  return "";
}
warren_code warren_create(const warren_options*, warren_comm** comm) {
  fake = Fake();
  *comm = new warren_comm;
  return WARREN_OK;
}
warren_code warren_finalize(warren_comm*) {
  return WARREN_OK;
}
void warren_destroy(warren_comm* comm) {
  if (comm != nullptr) fake.destroyed++;
  delete comm;
}
int32_t warren_rank(const warren_comm*) {
  return 1;
}
int32_t warren_min_workers(const warren_comm*) {
  return fake_min_workers;
}
uint32_t warren_checkpoint_world_size(const warren_comm*) {
  return 1;
}
int32_t warren_world_size(const warren_comm*) {
  return 3;
}
warren_code warren_load_checkpoint(warren_comm*, uint64_t* version, const void**, size_t*, const void**, size_t*) {
  *version = 0;
  return WARREN_OK;
}
warren_code warren_checkpoint(warren_comm*, const void* global, size_t global_bytes, const void*, size_t) {
  fake.states.emplace_back(static_cast<const char*>(global), global_bytes);
  return WARREN_OK;
}
uint64_t warren_site_of(const char*, int32_t, const char*) {
  return 0;
}
warren_code warren_meets_round(warren_comm*, const uint64_t*, size_t, int32_t*) {
  return WARREN_OK;
}
warren_code warren_once_known(warren_comm*, const char*, int32_t*) {
  return WARREN_OK;
}
warren_code warren_allreduce(warren_comm*, const void*, void*, size_t, warren_type, warren_op,
                             const warren_call_options*, warren_handle**) {
  return WARREN_OK;
}
warren_code warren_allreduce_custom(warren_comm*, const void*, void*, size_t, size_t, warren_custom_reduce, void*,
                                    const warren_call_options*, warren_handle**) {
  return WARREN_OK;
}
warren_code warren_broadcast(warren_comm*, void*, size_t, warren_type, int32_t, const warren_call_options*,
                             warren_handle**) {
  return WARREN_OK;
}
warren_code warren_allgather(warren_comm*, const void*, void*, size_t, warren_type, const warren_call_options*,
                             warren_handle**) {
  return WARREN_OK;
}
warren_code warren_allgatherv(warren_comm*, const void*, void*, const size_t*, warren_type, const warren_call_options*,
                              warren_handle**) {
  return WARREN_OK;
}
}  // extern "C"

namespace rabit::layer {
namespace {

class NodeTest : public testing::Test {
 protected:
  NodeTest() : node_(parameters()) {
    EXPECT_TRUE(node_.join().ok());
    int version = -1;
    EXPECT_TRUE(node_.load_checkpoint(nullptr, nullptr, version).ok());
    EXPECT_EQ(version, 0);
  }
  static Parameters parameters() {
    Parameters p;
    p.alone = false;
    p.infer_setup_rounds = false;
    return p;
  }
  static Node::Save model(std::string bytes) {
    return [bytes = std::move(bytes)](std::string& to) { to += bytes; };
  }
  std::string load(int expected_version) {
    std::string loaded;
    int version = -1;
    EXPECT_TRUE(
        node_
            .load_checkpoint([&](const char* bytes, std::size_t size) { loaded.assign(bytes, size); }, nullptr, version)
            .ok());
    EXPECT_EQ(version, expected_version);
    return loaded;
  }
  // Versions and models of the states that Warren has.
  static std::vector<std::pair<std::uint64_t, std::string>> stored() {
    std::vector<std::pair<std::uint64_t, std::string>> out;
    for (const std::string& state : fake.states) {
      StateHead head;
      const std::size_t bytes = read_head(state, head);
      EXPECT_NE(bytes, 0u) << "this is no state";
      out.emplace_back(head.version, state.substr(bytes));
    }
    return out;
  }
  using States = std::vector<std::pair<std::uint64_t, std::string>>;

  Node node_;
};

TEST_F(NodeTest, NoCallAfterACheckpointSavesItsModel) {
  for (const char* name : {"CheckPoint", "LazyCheckPoint"}) {
    bool freed = false;
    ASSERT_TRUE(node_
                    .checkpoint(
                        name,
                        [&](std::string& to) {
                          EXPECT_FALSE(freed) << name;
                          to += name;
                        },
                        nullptr)
                    .ok());
    freed = true;
    EXPECT_EQ(load(node_.version()), name);
    float value = 0;
    EXPECT_TRUE(node_.allreduce(&value, 1, WARREN_F32, WARREN_SUM, {}, {}).ok());
  }
  EXPECT_TRUE(node_.finalize().ok());
  EXPECT_EQ(stored(), (States{{1, "CheckPoint"}, {2, "LazyCheckPoint"}}));
}

TEST_F(NodeTest, StatesFollowEachOtherAndNoneIsNotTheOneBefore) {
  ASSERT_TRUE(node_.checkpoint("LazyCheckPoint", model("a"), nullptr).ok());
  ASSERT_TRUE(node_.checkpoint("LazyCheckPoint", model("b"), nullptr).ok());
  EXPECT_EQ(load(2), "b");
  ASSERT_TRUE(node_.checkpoint("LazyCheckPoint", nullptr, nullptr).ok());
  EXPECT_EQ(load(3), "");
  ASSERT_TRUE(node_.checkpoint("CheckPoint", model("d"), nullptr).ok());
  EXPECT_EQ(stored(), (States{{1, "a"}, {2, "b"}, {3, ""}, {4, "d"}}));
}

TEST_F(NodeTest, AJobThatGoesOnWithoutSomeOfItsRanksIsRefused) {
  fake_min_workers = 1;
  Node other(parameters());
  const Outcome joined = other.join();
  fake_min_workers = 0;
  EXPECT_FALSE(joined.ok());
  EXPECT_NE(joined.why().find("mode=wait"), std::string::npos) << joined.why();
}

TEST_F(NodeTest, WhoHasLeftStillKnowsWhoItWas) {
  node_.leave();
  EXPECT_EQ(fake.destroyed, 1);
  EXPECT_EQ(node_.rank(), 1);
  EXPECT_EQ(node_.world_size(), 3);
  EXPECT_TRUE(node_.distributed());
  node_.leave();
  EXPECT_EQ(fake.destroyed, 1);
}

}  // namespace
}  // namespace rabit::layer
