// Serves what this host has logged to the other ranks of the job, and fetches for the replayer: one thread, a ROUTER
// for those who ask, a DEALER for each rank that is asked. Over ZeroMQ with CURVE keys that derive from the job's
// secret, so that nobody else gets anything; without, where the settings say so.
//
// On the wire, either way: a frame with the message (recovery/wire/fetch_codec.h, payloads apart) and eight bytes of
// XXH3 over it; replies with data have a second frame, the payloads. What names another life, a rank that is not in the
// plan, or an older generation is dropped. A request of a generation whose plan is still on its way here waits for it.
//
// Bounded: messages that wait in each direction, bytes of replies that wait to be sent, requests that wait for their
// plan. What is too much is dropped; who asked for it asks again. Connections that were not used for a while are
// closed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "recovery/base/result.h"
#include "recovery/wire/messages.pb.h"
#include "storage/host_log.h"
#include "worker/replay/inquiry.h"
#include "worker/replay/replayer.h"
#include "worker/settings/settings.h"

namespace warren::worker {

class FetchService {
 public:
  // All are called from the service's thread. `payloads`: those of the reply's entries, one after the other, until the
  // call returns. The reply is validated; whether it was asked for is the replayer's to judge.
  using OnReply = std::function<void(Rank from, const wire::FetchReply& reply, std::span<const std::byte> payloads)>;
  // What this life says to a question (wire::FetchRequest::asks); of a generation that is not its own: kLater.
  using OnQuestion =
      std::function<Inquiry::Answer(Generation generation, const RoundId& round, std::span<const std::uint64_t> sites)>;
  using OnWarning = std::function<void(const std::string& text)>;

  // Binds a free port on the data address and starts the thread. `reader` is used by that thread alone. Errors: those
  // of the secret's file, of the data address, kUnavailable: no port or descriptor.
  static Result<std::unique_ptr<FetchService>> start(const Settings& settings, Incarnation self,
                                                     std::unique_ptr<HostLogReader> reader, OnReply on_reply,
                                                     OnWarning on_warning = {}, OnQuestion on_question = {});
  // Stops the thread; waits for a callback that is running, so that the caller must hold nothing that it waits for.
  ~FetchService();
  FetchService(const FetchService&) = delete;
  FetchService& operator=(const FetchService&) = delete;

  [[nodiscard]] std::uint16_t port() const;

  // From any thread; they return at once. Requests are sent to the lives of the newest plan. Of a plan that names this
  // life as one that serves: it answers to that plan's members, with what the first such plan calls done.
  void install(const wire::Plan& plan);
  void send(Replayer::Send send);

 private:
  struct Impl;
  explicit FetchService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace warren::worker
