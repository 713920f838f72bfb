// A worker that joins, finishes one round and writes down when that was and how much memory it has:
// DIRECTORY/<rank>.json. For the time from `warren run` to the first finished round, and for the memory of an idle
// worker.
#include <warren/c_api.h>

#include <fstream>
#include <string>

#include "bench/harness.h"

namespace {

long rss_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::strtol(line.c_str() + 6, nullptr, 10);
  }
  return 0;
}

void expect(warren_code code, const char* what) {
  if (code != WARREN_OK) warren::bench::fail(std::string(what) + ": " + warren_last_error());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) warren::bench::fail("usage: first_round DIRECTORY");
  const long before_kib = rss_kib();
  warren_comm* comm = nullptr;
  expect(warren_create(nullptr, &comm), "cannot join");
  const float one = 1;
  float sum = 0;
  expect(warren_allreduce(comm, &one, &sum, 1, WARREN_F32, WARREN_SUM, nullptr, nullptr), "allreduce");
  const double finished_us = warren::bench::now_us();
  if (sum != static_cast<float>(warren_world_size(comm))) warren::bench::fail("a wrong sum");
  const std::string file = std::string(argv[1]) + "/" + std::to_string(warren_rank(comm)) + ".json";
  std::ofstream(file) << "{\"finished_us\":" << static_cast<long long>(finished_us) << ",\"before_kib\":" << before_kib
                      << ",\"rss_kib\":" << rss_kib() << "}\n";
  expect(warren_finalize(comm), "cannot finalize");
  warren_destroy(comm);
  return 0;
}
