// A worker as the tracker sees it, without a worker's machine: sends what it is told, keeps what comes.
#pragma once

#include <gtest/gtest.h>
#include <zmq.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "recovery/wire/codec.h"
#include "storage/secret.h"

namespace warren::tracker {

inline constexpr int kPatienceMs = 20'000;  // after this a test fails

inline wire::Join join_of(const std::string& worker, std::uint32_t world, const std::string& host = "host") {
  wire::Join join;
  join.set_worker_id(worker);
  join.set_host_id(host);
  join.set_domain_id(host);
  wire::Endpoint& endpoint = *join.add_endpoints();
  endpoint.set_address("127.0.0.1");
  endpoint.set_port(4242);
  wire::JobSettings& settings = *join.mutable_settings();
  settings.set_world_size(world);
  settings.set_round_timeout_ms(60'000);
  settings.set_algorithm("auto");
  settings.set_chunk_bytes(65536);
  settings.set_streams(1);
  join.set_software("test");
  return join;
}

inline wire::Envelope envelope_of(const std::string& job, std::uint64_t sender) {
  wire::Envelope e;
  e.set_protocol(kProtocolVersion);
  e.set_job(job);
  e.set_sender(sender);
  return e;
}

inline wire::Envelope join_envelope(const std::string& job, std::uint64_t sender, const std::string& worker,
                                    std::uint32_t world, const std::string& host = "host") {
  wire::Envelope e = envelope_of(job, sender);
  *e.mutable_join() = join_of(worker, world, host);
  return e;
}

inline wire::Envelope heartbeat_envelope(const std::string& job, std::uint64_t sender, std::uint64_t generation,
                                         std::uint64_t beat) {
  wire::Envelope e = envelope_of(job, sender);
  e.mutable_heartbeat()->set_generation(generation);
  e.mutable_heartbeat()->set_beat(beat);
  return e;
}

class Client {
 public:
  // `credentials`: none means no authentication.
  Client(std::uint16_t port, const std::optional<storage::JobCredentials>& credentials,
         const std::string& host = "127.0.0.1") {
    context_ = zmq_ctx_new();
    socket_ = zmq_socket(context_, ZMQ_DEALER);
    const int linger = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger, sizeof linger);
    const int yes = 1;
    zmq_setsockopt(socket_, ZMQ_IPV6, &yes, sizeof yes);
    if (credentials) {
      const auto set = [&](int option, const std::string& key) {
        EXPECT_EQ(zmq_setsockopt(socket_, option, key.data(), key.size()), 0);
      };
      set(ZMQ_CURVE_SERVERKEY, credentials->tracker_public_z85);
      set(ZMQ_CURVE_PUBLICKEY, credentials->worker.public_z85);
      set(ZMQ_CURVE_SECRETKEY, credentials->worker.secret_z85);
    }
    EXPECT_EQ(zmq_socket_monitor(socket_, "inproc://monitor", ZMQ_EVENT_ALL), 0);
    monitor_ = zmq_socket(context_, ZMQ_PAIR);
    zmq_setsockopt(monitor_, ZMQ_LINGER, &linger, sizeof linger);
    EXPECT_EQ(zmq_connect(monitor_, "inproc://monitor"), 0);
    EXPECT_EQ(zmq_connect(socket_, ("tcp://" + host + ":" + std::to_string(port)).c_str()), 0);
  }
  ~Client() {
    zmq_socket_monitor(socket_, nullptr, 0);
    zmq_close(monitor_);
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send_bytes(const std::string& bytes, bool more = false) {
    ASSERT_GE(zmq_send(socket_, bytes.data(), bytes.size(), more ? ZMQ_SNDMORE : 0), 0) << zmq_strerror(zmq_errno());
  }
  void send(const wire::Envelope& envelope) { send_bytes(encode(envelope, Side::kWorker)); }
  // The same from a worker that obeys the tracker which has said `heard`.
  void send(wire::Envelope envelope, const wire::Envelope& heard) {
    envelope.set_term(heard.term());
    envelope.set_receiver(heard.sender());
    send(envelope);
  }

  // The next message; fails the test if none comes.
  wire::Envelope receive() {
    zmq_pollitem_t item{socket_, 0, ZMQ_POLLIN, 0};
    if (zmq_poll(&item, 1, kPatienceMs) <= 0) {
      ADD_FAILURE() << "the tracker did not answer";
      return {};
    }
    zmq_msg_t message;
    zmq_msg_init(&message);
    EXPECT_GE(zmq_msg_recv(&message, socket_, 0), 0);
    auto decoded = decode_envelope({static_cast<const std::byte*>(zmq_msg_data(&message)), zmq_msg_size(&message)},
                                   Side::kTracker);
    zmq_msg_close(&message);
    EXPECT_TRUE(decoded.ok()) << decoded.status().describe();
    return decoded.ok() ? decoded.value() : wire::Envelope();
  }
  // The next message of this kind; what comes before it is passed over.
  wire::Envelope receive(wire::Envelope::BodyCase kind) {
    for (int i = 0; i < 1000; ++i) {
      wire::Envelope e = receive();
      if (e.body_case() == kind || e.body_case() == wire::Envelope::BODY_NOT_SET) return e;
    }
    ADD_FAILURE() << "no message of kind " << kind;
    return {};
  }

  // Whether a message of this kind for this job comes within the time; all that comes is taken.
  bool comes(wire::Envelope::BodyCase kind, const std::string& job, long within_ms) {
    zmq_pollitem_t item{socket_, 0, ZMQ_POLLIN, 0};
    while (zmq_poll(&item, 1, within_ms) > 0) {
      const wire::Envelope e = receive();
      if (e.body_case() == kind && e.job() == job) return true;
    }
    return false;
  }

  // The next of these events of the connection, 0 if none comes.
  int await_event(int mask) {
    while (true) {
      zmq_pollitem_t item{monitor_, 0, ZMQ_POLLIN, 0};
      if (zmq_poll(&item, 1, kPatienceMs) <= 0) {
        ADD_FAILURE() << "no event of the connection";
        return 0;
      }
      zmq_msg_t message;
      zmq_msg_init(&message);
      zmq_msg_recv(&message, monitor_, 0);
      std::uint16_t event = 0;
      std::memcpy(&event, zmq_msg_data(&message), sizeof event);
      zmq_msg_recv(&message, monitor_, 0);  // the address
      zmq_msg_close(&message);
      if ((event & mask) != 0) return event;
    }
  }

 private:
  void* context_ = nullptr;
  void* socket_ = nullptr;
  void* monitor_ = nullptr;
};

}  // namespace warren::tracker
