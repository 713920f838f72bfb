// Makes the connections of data links: listens, connects, authenticates (worker/transport/handshake.h), and hands
// descriptors over. Of two ranks the lower one connects. Non-blocking; driven by the control thread alone.
//
// Ranks of one host are tried over a Unix socket first, which both find by the listener's incarnation; such a
// connection also gets a pipe of shared memory, whose descriptor the connecting end sends when it is welcome. What does
// not work so (containers that share a host's name and nothing else) goes over TCP, and is told once a generation; what
// only has not worked yet (a peer that hears of the generation late) is tried again for a third of the link's time.
//
// Where a plan leads a link by way of other ranks, each of its streams goes by way of one: the lower end connects to
// that rank, which connects to the higher end, and passes bytes on (worker/transport/relay.h); the ends then shake
// hands as ever. The higher end does not see how a stream came.
//
// A link within the host has one stream, whatever it goes over. The pipes that one rank makes share kRingsBytes: all
// have the largest rings as long as the host has up to 33 ranks, and links beyond get the least that there are.
//
// Where no link says so, it is looked whether the processes of peers are there still (worker/transport/knocks.h): of
// those whose links are not up soon after they were wanted, at both ends; of the other ranks of the host until all are
// known to be there; and, when a generation is suspended, of those that this rank had links with.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/base/result.h"
#include "worker/transport/handshake.h"
#include "worker/transport/handshake_bytes.h"
#include "worker/transport/host_pipe.h"
#include "worker/transport/knocks.h"
#include "worker/transport/numeric_address.h"
#include "worker/transport/relay.h"

namespace warren::worker {

class Connector {
 public:
  struct Peer {
    Incarnation incarnation;
    std::vector<Address> addresses;  // tried in turn
    // Both ends say the same: it follows from the plan.
    bool same_host = false;
    std::uint32_t streams = 1;
    std::vector<Rank> relays;  // by stream; none: directly
  };
  // A stream of a link between two others that goes by way of this rank.
  struct Relayed {
    Rank from, to;  // from the lower
    std::uint16_t stream = 0, streams = 1;
    friend bool operator==(const Relayed&, const Relayed&) = default;
  };
  struct Membership {
    Generation generation;
    Rank self;
    std::vector<Peer> peers;  // by rank
    std::vector<Relayed> relayed;
    std::int64_t timeout_ms = 0;  // until a link that does not come up is reported
  };
  struct Events {
    // An authenticated connection; takes the descriptor. A pipe: within the host.
    std::function<void(Generation, GroupId, Rank, std::uint16_t stream, int fd, std::unique_ptr<HostPipe> pipe)>
        connected;
    // The link did not come up within its time, or the peer does not hold the secret.
    std::function<void(GroupId, Rank, const Status&)> failed;
    // The process of a life in the newest plan has gone. What has been in a later plan since it was told so has
    // answered: of that life nothing is told any more while a generation is in force.
    std::function<void(Generation, Rank, const std::string& evidence)> gone;
    // Something that people should know: strangers, rubbish. At most a few a second.
    std::function<void(const std::string&)> warning;
  };

  // Of the pipes that one rank makes in a generation; each has the least at any rate.
  static constexpr std::size_t kRingsBytes = std::size_t{32} << 20;

  Connector(const std::string& job, handshake::LinkKey key, Incarnation self, Events events);
  ~Connector();
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  // Binds and listens; port 0 takes a free one. Returns the port. kUnavailable names address and reason.
  Result<std::uint16_t> listen(const std::string& host, std::uint16_t port);
  // For ranks of this host, too; they connect over TCP to whoever does not.
  Status listen_on_host();

  void begin_generation(Membership membership, TimeMs now);
  // Drops every handshake and wish of the generation in force, and closes all connections between others. How many
  // bytes of those were passed on.
  std::uint64_t end_generation();
  // Likewise; another generation follows. `looks`: where peers' processes are gone by then is worth knowing.
  std::uint64_t suspend_generation(bool looks, TimeMs now);
  // All other ranks of this host have been heard in this generation.
  void mates_are_there();
  // The link will be used: connects it within the membership's timeout, if this rank is the one that does.
  void want(GroupId group, Rank peer, TimeMs now);

  void collect_pollfds(std::vector<pollfd>& out) const;
  // Moves every handshake as far as it goes.
  void run(TimeMs now);
  [[nodiscard]] std::optional<TimeMs> next_deadline() const;

 private:
  enum class State : std::uint8_t {
    kConnecting,
    kSendHello,
    kReadChallenge,
    kSendProof,
    kReadVerdict,
    kSendMemory,
    kReadMapped,  // the connector's side
    kReadHello,
    kParked,
    kSendChallenge,
    kReadProof,
    kConnectOnward,
    kSendVerdict,
    kReadMemory,
    kSendMapped,  // the acceptor's
    kDone,
  };
  struct Conversation {
    int fd = -1;
    State state = State::kReadHello;
    std::string remote;  // for messages
    HandshakeBytes bytes;
    handshake::HelloBytes hello_bytes{};
    handshake::ChallengeBytes challenge{};
    handshake::Hello hello;
    handshake::Verdict verdict = handshake::Verdict::kWelcome;
    TimeMs deadline;
    // The connector's side: which stream of which wish.
    bool outgoing = false;
    bool on_host = false;  // over a Unix socket
    OwnedFd onward;        // the acceptor's side of one to be passed on
    OwnedFd memory;
    std::unique_ptr<HostPipe> pipe;
  };
  struct Wish {
    GroupId group;
    Rank peer;
    bool wanted = false;   // false: the peer connected before this rank had use for the link
    std::vector<bool> up;  // by stream
    TimeMs deadline{INT64_MAX};
    TimeMs retry_at{INT64_MAX};  // when the next attempt starts; connector's side
    std::int64_t backoff_ms = 0;
    std::size_t next_address = 0;
    TimeMs on_host_until;   // or until it is known not to work
    bool over_tcp = false;  // it is
    std::string why_not_on_host;
    std::uint32_t in_progress = 0;
    std::string last_trouble;
  };
  using WishKey = std::pair<GroupId, Rank>;

  [[nodiscard]] const Peer& peer_at(Rank rank) const { return members_->peers[static_cast<std::size_t>(rank.value)]; }
  [[nodiscard]] std::size_t ring_bytes() const;
  [[nodiscard]] std::vector<Knocks::Place> places_of(Rank peer) const;
  Wish& wish_for(GroupId group, Rank peer);
  void accept_some(int listener, TimeMs now);
  void start_attempt(Wish& wish, TimeMs now);
  void greet(Conversation& c, Rank to, Rank relay_to);
  [[nodiscard]] bool may_join(const Conversation& c) const;
  void connect_onward(Conversation& c, TimeMs now);
  void pass_on(Conversation& c, TimeMs now);
  // One step; false when the conversation is over (its descriptor has been closed or handed over).
  bool step(Conversation& c, TimeMs now);
  bool advance(Conversation& c, TimeMs now);
  // Steps of it, named for what has come.
  bool take_connection(Conversation& c, TimeMs now);
  bool take_way_on(Conversation& c, TimeMs now);
  void has_sent(Conversation& c, TimeMs now);
  bool take_hello(Conversation& c, TimeMs now);
  void take_challenge(Conversation& c, TimeMs now);
  void take_proof(Conversation& c, TimeMs now);
  void take_verdict(Conversation& c, TimeMs now);
  void take_memory(Conversation& c, TimeMs now);
  void end_in_the_middle(Conversation& c, TimeMs now);
  Status make_pipe(Conversation& c);
  bool send_memory(Conversation& c, bool& dead);
  bool read_memory(Conversation& c, bool& dead);
  bool judge_hello(Conversation& c, TimeMs now);
  void hand_over(Conversation& c, TimeMs now);
  void attempt_ended(Wish& wish, TimeMs now);
  void look_after(Rank peer, std::int64_t first_ms, TimeMs now);
  void trouble(Conversation& c, const std::string& what, bool fatal, TimeMs now);
  // Within the host it would end so every time.
  void leave_host(const Conversation& c);
  void warn(const std::string& text, TimeMs now);

  std::uint64_t job_hash_;
  handshake::LinkKey key_;
  Incarnation self_;
  Events events_;
  int listener_ = -1, host_listener_ = -1;
  std::optional<Membership> members_;
  std::size_t mates_ = 0;        // other ranks of this host
  std::size_t rings_bytes_ = 0;  // made in this generation
  bool told_over_tcp_ = false;   // in this generation
  Generation newest_;
  std::list<Conversation> conversations_;
  std::map<WishKey, Wish> wishes_;
  Relay relay_;
  std::size_t next_onward_ = 0;         // counts connections onward: each tries the next address
  Knocks knocks_;                       // of the generation in force, or of the newest one
  std::set<Incarnation> was_gone_;      // by the word of knocks, and in the newest plan
  std::optional<TimeMs> accept_again_;  // out of descriptors: a pause instead of a spin
  TimeMs warnings_since_;
  int warnings_ = 0;
};

}  // namespace warren::worker
