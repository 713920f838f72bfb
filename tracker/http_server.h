// A small HTTP server for pages that are made on request. GET only; one request a connection.
//
// Bounded whatever clients do: kThreads answer, kMaxWaiting connections wait for them (others wait in the kernel), and
// a request has at most kMaxRequestBytes. A connection lives for kConnectionMs in all, and for kHurriedMs where others
// wait: slow clients keep nobody from an answer, and stopping the server waits for none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "recovery/base/result.h"

namespace warren::tracker {

struct HttpReply {
  int status = 200;
  std::string type, body;
};

class HttpServer {
 public:
  static constexpr std::size_t kThreads = 8, kMaxWaiting = 16;
  static constexpr std::size_t kMaxRequestBytes = std::size_t{16} * 1024;
  static constexpr std::int64_t kConnectionMs = 5000, kHurriedMs = 250;

  // `reply` is called with the path, on any of the server's threads, also on two at once. Port 0: any free one.
  // kUnavailable: the port is in use, or the address is not this machine's.
  static Result<std::unique_ptr<HttpServer>> start(const std::string& address, int port,
                                                   std::function<HttpReply(const std::string& path)> reply);
  // Cuts off every connection and waits for the threads; a reply under way is waited for.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] int port() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace warren::tracker
