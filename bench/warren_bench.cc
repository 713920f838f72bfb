// Warren's calls, in the harness that its peers run in. Settings come from the environment: `warren run` starts it.
// --allocated=1: the buffers lie in memory of warren_allocate; --in_place=1.
#include <warren/c_api.h>

#include "bench/harness.h"

namespace {

void expect(warren_code code, const char* what) {
  if (code != WARREN_OK) warren::bench::fail(std::string(what) + ": " + warren_last_error());
}

}  // namespace

int main(int argc, char** argv) {
  const warren::bench::Arguments arguments(argc, argv);
  warren_comm* comm = nullptr;
  expect(warren_create(nullptr, &comm), "cannot join");
  const int rank = warren_rank(comm);
  const int ranks = warren_world_size(comm);
  warren::bench::Meeting meeting(arguments.text("meeting", ""), ranks);
  const float* in = nullptr;
  float* out = nullptr;
  std::size_t count = 0;
  warren::bench::Subject subject;
  subject.name = arguments.text("name", "warren");
  using Kind = warren::bench::Collective::Kind;
  const warren::bench::Collective collective(arguments.text("collective", "allreduce"), rank, ranks);
  const auto part = [&] { return collective.part(count); };
  std::vector<std::size_t> parts;
  switch (collective.kind()) {
    case Kind::kAllreduce:
      subject.call = [&] {
        expect(warren_allreduce(comm, in, out, count, WARREN_F32, WARREN_SUM, nullptr, nullptr), "allreduce");
      };
      break;
    case Kind::kReduce:
      subject.call = [&] {
        expect(warren_reduce(comm, in, out, count, WARREN_F32, WARREN_SUM, 0, nullptr, nullptr), "reduce");
      };
      break;
    case Kind::kBroadcast:
      subject.call = [&] {
        void* const buffer = rank == 0 ? const_cast<float*>(in) : out;
        expect(warren_broadcast(comm, buffer, count, WARREN_F32, 0, nullptr, nullptr), "broadcast");
      };
      break;
    case Kind::kBarrier: subject.call = [&] { expect(warren_barrier(comm, nullptr, nullptr), "barrier"); }; break;
    case Kind::kAllgather:
      subject.call = [&] {
        expect(warren_allgather(comm, in, out, part(), WARREN_F32, nullptr, nullptr), "allgather");
      };
      break;
    case Kind::kAllgatherv:
      subject.call = [&] {
        expect(warren_allgatherv(comm, in, out, parts.data(), WARREN_F32, nullptr, nullptr), "allgatherv");
      };
      break;
    case Kind::kReduceScatter:
      subject.call = [&] {
        expect(warren_reduce_scatter(comm, in, out, part(), WARREN_F32, WARREN_SUM, nullptr, nullptr),
               "reduce_scatter");
      };
      break;
    case Kind::kGather:
      subject.call = [&] { expect(warren_gather(comm, in, out, part(), WARREN_F32, 0, nullptr, nullptr), "gather"); };
      break;
    case Kind::kScatter:
      subject.call = [&] { expect(warren_scatter(comm, in, out, part(), WARREN_F32, 0, nullptr, nullptr), "scatter"); };
      break;
    case Kind::kAllToAll:
      subject.call = [&] {
        expect(warren_all_to_all(comm, in, out, part(), WARREN_F32, nullptr, nullptr), "all_to_all");
      };
      break;
    case Kind::kMessage:
      subject.call = [&] {
        const auto send = [&] {
          expect(warren_send(comm, in, count, WARREN_F32, collective.peer(), 0, nullptr, nullptr), "send");
        };
        if (rank % 2 == 0) send();
        expect(warren_recv(comm, out, count, WARREN_F32, collective.peer(), 0, nullptr, nullptr), "recv");
        if (rank % 2 != 0) send();
      };
      break;
  }
  subject.prepare = [&](const float* i, float* o, std::size_t n) {
    in = i, out = o, count = n;
    if (collective.kind() == Kind::kAllgatherv) parts = collective.parts(n);
  };
  subject.in_place = arguments.number("in_place", 0) != 0;
  if (arguments.number("allocated", 0) != 0) {
    subject.allocate = [comm](std::size_t bytes) {
      void* memory = nullptr;
      expect(warren_allocate(comm, bytes, &memory), "cannot allocate");
      return warren::bench::Buffer(static_cast<float*>(memory),
                                   [comm](void* p) { expect(warren_free(comm, p), "cannot free"); });
    };
  }
  // Results are logged up to the next checkpoint. Two, so that the one before is committed and its rounds are dropped.
  expect(warren_load_checkpoint(comm, nullptr, nullptr, nullptr, nullptr, nullptr), "load_checkpoint");
  subject.rest = [&] {
    for (int i = 0; i < 2; ++i) expect(warren_checkpoint(comm, nullptr, 0, nullptr, 0), "checkpoint");
  };
  warren::bench::run(arguments, meeting, rank, ranks, subject);
  expect(warren_finalize(comm), "cannot finalize");
  warren_destroy(comm);
  return 0;
}
