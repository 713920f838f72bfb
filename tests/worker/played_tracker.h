// The socket of a tracker that a test plays.
#pragma once

#include <gtest/gtest.h>
#include <zmq.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "recovery/wire/codec.h"

namespace warren::worker {

inline constexpr int kPatienceMs = 10'000;  // after this a test fails
// So long that no time passes in which a rank may be silent.
inline constexpr std::int64_t kRoundTimeoutMs = 60'000;

class PlayedTrackerSocket {
 public:
  PlayedTrackerSocket() : context_(zmq_ctx_new()), socket_(zmq_socket(context_, ZMQ_ROUTER)) {
    const int linger = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger, sizeof linger);
    EXPECT_EQ(zmq_bind(socket_, "tcp://127.0.0.1:*"), 0) << zmq_strerror(zmq_errno());
    char endpoint[64];
    std::size_t size = sizeof endpoint;
    EXPECT_EQ(zmq_getsockopt(socket_, ZMQ_LAST_ENDPOINT, endpoint, &size), 0);
    address_ = std::string(endpoint).substr(std::string("tcp://").size());
  }
  ~PlayedTrackerSocket() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  PlayedTrackerSocket(const PlayedTrackerSocket&) = delete;
  PlayedTrackerSocket& operator=(const PlayedTrackerSocket&) = delete;

  [[nodiscard]] const std::string& address() const { return address_; }

 protected:
  struct Message {
    std::string from, bytes;
  };
  // Nothing: no worker says anything for as long as a test has patience.
  std::optional<Message> next_message() {
    zmq_pollitem_t item{socket_, 0, ZMQ_POLLIN, 0};
    if (zmq_poll(&item, 1, kPatienceMs) <= 0) return std::nullopt;
    std::string from = part();
    return Message{std::move(from), part()};
  }
  // Makes this a message of the tracker to this life.
  static void address_to(std::uint64_t life, wire::Envelope& e) {
    e.set_protocol(kProtocolVersion);
    e.set_job("j");
    e.set_sender(900);
    e.set_term(1);
    e.set_receiver(life);
  }
  // `to`: the sender of an earlier message.
  void send_to(const std::string& to, const wire::Envelope& e) {
    const std::string bytes = encode(e, Side::kTracker);
    EXPECT_GE(zmq_send(socket_, to.data(), to.size(), ZMQ_SNDMORE), 0);
    EXPECT_GE(zmq_send(socket_, bytes.data(), bytes.size(), 0), 0);
  }

 private:
  std::string part() {
    zmq_msg_t message;
    zmq_msg_init(&message);
    EXPECT_GE(zmq_msg_recv(&message, socket_, 0), 0);
    std::string bytes(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
    zmq_msg_close(&message);
    return bytes;
  }

  void* context_;
  void* socket_;
  std::string address_;
};

}  // namespace warren::worker
