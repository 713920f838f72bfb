// MPI's calls, by whichever MPI mpicxx stands for. bench/run.py builds and starts it.
#include <mpi.h>

#include <string>
#include <vector>

#include "bench/harness.h"

namespace {

void expect(int code, const char* what) {
  if (code != MPI_SUCCESS) warren::bench::fail(std::string(what) + " failed");
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const warren::bench::Arguments arguments(argc, argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  warren::bench::Meeting meeting(arguments.text("meeting", ""), ranks);
  const float* in = nullptr;
  float* out = nullptr;
  int count = 0;
  warren::bench::Subject subject;
  subject.name = arguments.text("name", "mpi");
  using Kind = warren::bench::Collective::Kind;
  const warren::bench::Collective collective(arguments.text("collective", "allreduce"), rank, ranks);
  int part = 0;  // of each rank
  std::vector<int> parts, starts;
  subject.prepare = [&](const float* i, float* o, std::size_t n) {
    in = i, out = o, count = static_cast<int>(n);
    if (collective.kind() == Kind::kBarrier) return;
    part = count / ranks;
    if (collective.kind() != Kind::kAllgatherv) return;
    parts.clear();
    starts.clear();
    for (const std::size_t elements : collective.parts(n)) {
      starts.push_back(parts.empty() ? 0 : starts.back() + parts.back());
      parts.push_back(static_cast<int>(elements));
    }
  };
  const MPI_Comm all = MPI_COMM_WORLD;
  switch (collective.kind()) {
    case Kind::kAllreduce:
      subject.call = [&] { expect(MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, all), "MPI_Allreduce"); };
      break;
    case Kind::kReduce:
      subject.call = [&] { expect(MPI_Reduce(in, out, count, MPI_FLOAT, MPI_SUM, 0, all), "MPI_Reduce"); };
      break;
    case Kind::kBroadcast:
      subject.call = [&] {
        expect(MPI_Bcast(rank == 0 ? const_cast<float*>(in) : out, count, MPI_FLOAT, 0, all), "MPI_Bcast");
      };
      break;
    case Kind::kBarrier: subject.call = [&] { expect(MPI_Barrier(all), "MPI_Barrier"); }; break;
    case Kind::kAllgather:
      subject.call = [&] { expect(MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, all), "MPI_Allgather"); };
      break;
    case Kind::kAllgatherv:
      subject.call = [&] {
        expect(MPI_Allgatherv(in, parts[static_cast<std::size_t>(rank)], MPI_FLOAT, out, parts.data(), starts.data(),
                              MPI_FLOAT, all),
               "MPI_Allgatherv");
      };
      break;
    case Kind::kReduceScatter:
      subject.call = [&] {
        expect(MPI_Reduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, all), "MPI_Reduce_scatter_block");
      };
      break;
    case Kind::kGather:
      subject.call = [&] { expect(MPI_Gather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, 0, all), "MPI_Gather"); };
      break;
    case Kind::kScatter:
      subject.call = [&] { expect(MPI_Scatter(in, part, MPI_FLOAT, out, part, MPI_FLOAT, 0, all), "MPI_Scatter"); };
      break;
    case Kind::kAllToAll:
      subject.call = [&] { expect(MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, all), "MPI_Alltoall"); };
      break;
    case Kind::kMessage:
      subject.call = [&] {
        const auto send = [&] { expect(MPI_Send(in, count, MPI_FLOAT, collective.peer(), 0, all), "MPI_Send"); };
        if (rank % 2 == 0) send();
        expect(MPI_Recv(out, count, MPI_FLOAT, collective.peer(), 0, all, MPI_STATUS_IGNORE), "MPI_Recv");
        if (rank % 2 != 0) send();
      };
      break;
  }
  // MPI moves what it has taken only within its calls: with Open MPI over TCP a rank that had returned held back the
  // end of another's call for ever.
  subject.meanwhile = [] {
    int there = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
  };
  warren::bench::run(arguments, meeting, rank, ranks, subject);
  MPI_Finalize();
  return 0;
}
