#include "worker/system/netinfo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "worker/system/text.h"

namespace warren::worker {
namespace {

using testing::HasSubstr;

TEST(HostPort, ReadsEveryForm) {
  struct Case {
    const char* text;
    const char* host;
    int port;
    const char* shown;
  };
  const Case cases[] = {
      {"node", "node", 5, "node:5"},
      {"node.example.org:80", "node.example.org", 80, "node.example.org:80"},
      {"10.1.2.3", "10.1.2.3", 5, "10.1.2.3:5"},
      {"10.1.2.3:65535", "10.1.2.3", 65535, "10.1.2.3:65535"},
      {"::1", "::1", 5, "[::1]:5"},
      {"fe80::1%eth0", "fe80::1%eth0", 5, "[fe80::1%eth0]:5"},
      {"[::1]", "::1", 5, "[::1]:5"},
      {"[fd00::2]:81", "fd00::2", 81, "[fd00::2]:81"},
  };
  for (const Case& c : cases) {
    const auto r = parse_host_port("the address", c.text, 5);
    ASSERT_TRUE(r.ok()) << r.status().describe();
    EXPECT_EQ(r.value().host, c.host);
    EXPECT_EQ(r.value().port, c.port);
    EXPECT_EQ(to_string(r.value()), c.shown);
  }
}

TEST(HostPort, RefusesTheRest) {
  for (const char* text :
       {"",      ":",     ":1",   "a:", "a:0",     "a:x",       "a:1:2",     "[::1", "[::1]x", "[::1]:", "[10.0.0.1]:1",
        "[a]:1", "a b:1", "-a:1", ".a", "1.2.3:4", "300.1.1.1", "host/path", "a:+1", "a: 1"}) {
    EXPECT_FALSE(parse_host_port("the address", text, 5).ok()) << text;
  }
  const auto r = parse_host_port("the address", "host", 0);
  ASSERT_FALSE(r.ok());
  EXPECT_THAT(r.status().describe(), HasSubstr("the port is missing"));
}

TEST(Loopback, IsKnownInEveryForm) {
  for (const char* yes : {"127.0.0.1", "127.0.1.1", "127.255.0.9", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(is_loopback_address(yes)) << yes;
  }
  for (const char* no : {"128.0.0.1", "10.0.0.1", "::2", "::ffff:10.0.0.1", "fe80::1%lo", "localhost", ""}) {
    EXPECT_FALSE(is_loopback_address(no)) << no;
  }
}

TEST(Interfaces, LoopbackIsListed) {
  const auto r = list_interfaces();
  ASSERT_TRUE(r.ok()) << r.status().describe();
  const auto lo = std::ranges::find(r.value(), true, &Interface::loopback);
  ASSERT_NE(lo, r.value().end());
  EXPECT_TRUE(std::ranges::any_of(lo->addresses, [](const auto& a) { return is_loopback_address(a); }));
}

TEST(Route, LoopbackOnlyToLoopback) {
  const auto to_v4 = local_address_towards("127.0.0.1", 9);
  ASSERT_TRUE(to_v4.ok()) << to_v4.status().describe();
  EXPECT_EQ(to_v4.value(), "127.0.0.1");
  const auto to_name = local_address_towards("localhost", 9);
  ASSERT_TRUE(to_name.ok()) << to_name.status().describe();
  EXPECT_TRUE(is_loopback_address(to_name.value()));
}

// Debian gives a machine's own name the address 127.0.1.1; peers on other machines could not connect to it.
TEST(Route, TheNameOfThisMachineIsNotLoopbackWhereThereIsANetwork) {
  const auto interfaces = list_interfaces();
  ASSERT_TRUE(interfaces.ok());
  const bool network = std::ranges::any_of(
      interfaces.value(), [](const Interface& i) { return i.up && !i.loopback && !i.addresses.empty(); });
  char name[256] = {};
  ASSERT_EQ(gethostname(name, sizeof name - 1), 0);
  if (!resolve_host(name).ok()) return;  // a machine that cannot resolve its own name has nothing to get wrong
  const auto r = local_address_towards(name, 9);
  ASSERT_TRUE(r.ok()) << r.status().describe();
  EXPECT_EQ(is_loopback_address(r.value()), !network);
}

TEST(Route, AnUnknownHostIsAnErrorThatNamesIt) {
  const auto r = local_address_towards("no-such-host.invalid", 9);
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::kUnavailable);
  EXPECT_THAT(r.status().describe(), HasSubstr("'no-such-host.invalid'"));
}

TEST(DataAddresses, ComeFromTheRouteUnlessGiven) {
  struct Case {
    const char *bind, *advertise, *want_bind, *want_advertise;
  };
  const Case cases[] = {
      {"", "", "127.0.0.1", "127.0.0.1"},          {"", "10.0.0.9", "127.0.0.1", "10.0.0.9"},
      {"127.0.0.1", "", "127.0.0.1", "127.0.0.1"}, {"127.0.0.7", "", "127.0.0.7", "127.0.0.7"},
      {"0.0.0.0", "", "0.0.0.0", "127.0.0.1"},     {"0.0.0.0", "10.0.0.9", "0.0.0.0", "10.0.0.9"},
      {"lo", "", "127.0.0.1", "127.0.0.1"},
  };
  for (const Case& c : cases) {
    const auto r = choose_data_addresses(c.bind, c.advertise, "127.0.0.1", 9);
    ASSERT_TRUE(r.ok()) << r.status().describe();
    EXPECT_EQ(r.value().bind, c.want_bind) << c.bind;
    EXPECT_EQ(r.value().advertise, c.want_advertise) << c.bind;
  }
}

TEST(OwnAddress, IsOneThatOthersMayReachWhereThereIsAny) {
  using Interfaces = std::vector<Interface>;
  const Interface lo{.name = "lo", .addresses = {"127.0.0.1", "::1"}, .up = true, .loopback = true};
  const Interface down{.name = "d", .addresses = {"10.0.0.1"}, .up = false, .loopback = false};
  const Interface six{.name = "s", .addresses = {"fe80::1%s", "2001:db8::7"}, .up = true, .loopback = false};
  const Interface four{.name = "f", .addresses = {"169.254.3.4", "10.1.2.3", "fe80::2%f"}, .up = true};
  EXPECT_EQ(own_address(Interfaces{lo}, "0.0.0.0"), "127.0.0.1");
  EXPECT_EQ(own_address(Interfaces{lo, down}, "::"), "127.0.0.1");
  EXPECT_EQ(own_address(Interfaces{lo, six, four}, "::"), "10.1.2.3");
  EXPECT_EQ(own_address(Interfaces{lo, six}, "::"), "2001:db8::7");
  EXPECT_EQ(own_address(Interfaces{lo, six}, "0.0.0.0"), "127.0.0.1") << "IPv4 alone is listened to";
  const Interface poor{.name = "p", .addresses = {"169.254.3.4"}, .up = true, .loopback = false};
  EXPECT_EQ(own_address(Interfaces{lo, poor}, "0.0.0.0"), "169.254.3.4");
}

TEST(DataAddresses, RefuseWhatIsNotHere) {
  const auto address = choose_data_addresses("198.51.100.7", "", "127.0.0.1", 9);
  ASSERT_FALSE(address.ok());
  EXPECT_THAT(address.status().describe(), HasSubstr("'198.51.100.7' is no address or interface of this machine"));
  EXPECT_THAT(address.status().describe(), HasSubstr("lo (127.0.0.1)"));
  EXPECT_FALSE(choose_data_addresses("nosuchif0", "", "127.0.0.1", 9).ok());
  EXPECT_FALSE(choose_data_addresses("", "a-name", "127.0.0.1", 9).ok());
  EXPECT_FALSE(choose_data_addresses("", "0.0.0.0", "127.0.0.1", 9).ok());
}

TEST(Text, FindsTheNearestWord) {
  const std::string_view words[] = {"status", "tracker", "run"};
  EXPECT_EQ(nearest("staus", words), "status");
  EXPECT_EQ(nearest("trakcer", words), "tracker");
  EXPECT_EQ(nearest("rum", words), "run");
  EXPECT_EQ(nearest("bench", words), std::nullopt);
  EXPECT_EQ(nearest("", words), std::nullopt);
}

}  // namespace
}  // namespace warren::worker
