// MPI_Allreduce, MPI_Reduce_scatter_block or MPI_Allgather, by whichever MPI mpicxx stands for. bench/run.py builds and
// starts it.
#include <mpi.h>

#include "bench/harness.h"

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
  subject.prepare = [&](const float* i, float* o, std::size_t n) { in = i, out = o, count = static_cast<int>(n); };
  subject.call = [&] {
    if (MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS) {
      warren::bench::fail("MPI_Allreduce failed");
    }
  };
  const std::string collective = arguments.text("collective", "allreduce");
  if (collective == "reduce_scatter") {
    subject.call = [&] {
      if (MPI_Reduce_scatter_block(in, out, count / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) != MPI_SUCCESS) {
        warren::bench::fail("MPI_Reduce_scatter_block failed");
      }
    };
  } else if (collective == "allgather") {
    subject.call = [&] {
      if (MPI_Allgather(in, count / ranks, MPI_FLOAT, out, count / ranks, MPI_FLOAT, MPI_COMM_WORLD) != MPI_SUCCESS) {
        warren::bench::fail("MPI_Allgather failed");
      }
    };
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
