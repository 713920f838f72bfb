// Gloo over TCP: --algorithm=ring, bcube or halving_doubling, --host=ADDRESS of this rank. bench/run.py builds it and
// starts one process a rank.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <memory>

#include "bench/harness.h"

int main(int argc, char** argv) {
  const warren::bench::Arguments arguments(argc, argv);
  const int rank = static_cast<int>(arguments.number("rank", 0));
  const int ranks = static_cast<int>(arguments.number("ranks", 1));
  const std::string algorithm = arguments.text("algorithm", "ring");

  gloo::transport::tcp::attr attributes;
  attributes.hostname = arguments.text("host", "127.0.0.1");
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::FileStore store(arguments.text("store", ""));
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  context->connectFullMesh(store, device);

  warren::bench::Meeting meeting(arguments.text("meeting", ""), ranks);
  warren::bench::Subject subject;
  subject.name = arguments.text("name", "gloo");
  std::unique_ptr<gloo::AllreduceHalvingDoubling<float>> halving_doubling;
  const float* in = nullptr;
  float* out = nullptr;
  std::size_t count = 0;
  if (algorithm == "halving_doubling") {
    subject.in_place = true;  // the only form that it has
    subject.prepare = [&](const float*, float* o, std::size_t n) {
      halving_doubling.reset();
      halving_doubling =
          std::make_unique<gloo::AllreduceHalvingDoubling<float>>(context, std::vector<float*>{o}, static_cast<int>(n));
    };
    subject.call = [&] { halving_doubling->run(); };
  } else {
    subject.prepare = [&](const float* i, float* o, std::size_t n) { in = i, out = o, count = n; };
    subject.call = [&] {
      using Algorithm = gloo::AllreduceOptions::Algorithm;
      gloo::AllreduceOptions options(context);
      options.setInput(const_cast<float*>(in), count);
      options.setOutput(out, count);
      options.setAlgorithm(algorithm == "bcube" ? Algorithm::BCUBE : Algorithm::RING);
      options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
      gloo::allreduce(options);
    };
  }
  if (arguments.text("collective", "allreduce") == "allgather") {
    subject.call = [&] {
      gloo::AllgatherOptions options(context);
      options.setInput(const_cast<float*>(in), count / static_cast<std::size_t>(ranks));
      options.setOutput(out, count);
      gloo::allgather(options);
    };
  }
  warren::bench::run(arguments, meeting, rank, ranks, subject);
  meeting.wait();
  // Gloo's threads and static objects may meet each other's ends; nothing is left to be done here.
  _exit(0);
}
