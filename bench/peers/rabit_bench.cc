// rabit over TCP, with or without its fault tolerance, whichever engine is linked (bench/rabit.py builds both). Started
// by rabit_run.py, which sets what it takes from the environment.
#include <rabit/rabit.h>

#include "bench/harness.h"

namespace {

// What a checkpoint has to keep: next to nothing, as for the other programs.
struct Model : rabit::Serializable {
  int batches = 0;
  void Load(rabit::Stream* from) override { from->Read(&batches, sizeof batches); }
  void Save(rabit::Stream* to) const override { to->Write(&batches, sizeof batches); }
};

}  // namespace

int main(int argc, char** argv) {
  const warren::bench::Arguments arguments(argc, argv);
  std::string at_once = "rabit_enable_tcp_no_delay=true";
  char* settings = at_once.data();
  rabit::Init(1, &settings);
  const int rank = rabit::GetRank();
  const int ranks = rabit::GetWorldSize();
  {
    warren::bench::Meeting meeting(arguments.text("meeting", ""), ranks);
    float* out = nullptr;
    std::size_t count = 0;
    Model model;
    rabit::LoadCheckPoint(&model);
    warren::bench::Subject subject;
    subject.name = arguments.text("name", "rabit");
    subject.in_place = true;  // the only form that it has
    subject.prepare = [&](const float*, float* o, std::size_t n) { out = o, count = n; };
    subject.call = [&] { rabit::Allreduce<rabit::op::Sum>(out, count); };
    // Results are kept up to the next checkpoint, as by Warren.
    subject.rest = [&] {
      ++model.batches;
      rabit::CheckPoint(&model);
    };
    warren::bench::run(arguments, meeting, rank, ranks, subject);
  }
  rabit::Finalize();
  return 0;
}
