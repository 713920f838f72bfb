// Gloo over TCP: --algorithm=ring, bcube or halving_doubling, --host=ADDRESS of this rank. bench/run.py builds it and
// starts one process a rank.
#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <functional>
#include <memory>
#include <vector>

#include "bench/harness.h"

namespace {

constexpr auto kSum = static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>);

// A call of another collective than allreduce. Buffers are read when it is made.
std::function<void()> call_of(const warren::bench::Collective& collective,
                              const std::shared_ptr<gloo::Context>& context, const float* const& in, float* const& out,
                              const std::size_t& count) {
  using Kind = warren::bench::Collective::Kind;
  const auto input = [&in] { return const_cast<float*>(in); };
  const bool is_root = context->rank == 0;
  switch (collective.kind()) {
    case Kind::kReduce:
      return [=, &out, &count] {
        // Every rank gives an output; those of others are scratch.
        static std::vector<float> scratch;
        if (!is_root) scratch.resize(count);
        gloo::ReduceOptions options(context);
        options.setInput(input(), count);
        options.setOutput(is_root ? out : scratch.data(), count);
        options.setRoot(0);
        options.setReduceFunction(kSum);
        gloo::reduce(options);
      };
    case Kind::kBroadcast:
      return [=, &out, &count] {
        gloo::BroadcastOptions options(context);
        options.setOutput(is_root ? input() : out, count);
        options.setRoot(0);
        gloo::broadcast(options);
      };
    case Kind::kBarrier:
      return [=] {
        gloo::BarrierOptions options(context);
        gloo::barrier(options);
      };
    case Kind::kAllgather:
      return [=, &out, &count] {
        gloo::AllgatherOptions options(context);
        options.setInput(input(), collective.part(count));
        options.setOutput(out, count);
        gloo::allgather(options);
      };
    case Kind::kAllgatherv:
      return [=, &out, &count] {
        gloo::AllgathervOptions options(context);
        options.setInput(input(), collective.in(count));
        options.setOutput(out, collective.parts(count));
        gloo::allgatherv(options);
      };
    case Kind::kGather:
      return [=, &out, &count] {
        gloo::GatherOptions options(context);
        options.setInput(input(), collective.part(count));
        if (is_root) options.setOutput(out, count);
        options.setRoot(0);
        gloo::gather(options);
      };
    case Kind::kScatter:
      return [=, &out, &count] {
        gloo::ScatterOptions options(context);
        const std::size_t part = collective.part(count);
        if (is_root) {
          std::vector<float*> parts;
          for (int r = 0; r < context->size; ++r) parts.push_back(input() + static_cast<std::size_t>(r) * part);
          options.setInputs(parts, part);
        }
        options.setOutput(out, part);
        options.setRoot(0);
        gloo::scatter(options);
      };
    case Kind::kAllToAll:
      return [=, &out, &count] {
        gloo::AlltoallOptions options(context);
        options.setInput(input(), count);
        options.setOutput(out, count);
        gloo::alltoall(options);
      };
    case Kind::kMessage:
      return [=, &in, &out, &count] {
        // Registered once a size, as a program would.
        static std::unique_ptr<gloo::transport::UnboundBuffer> from, to;
        static const float* of = nullptr;
        if (!from || of != in || from->size != count * sizeof(float)) {
          from = context->createUnboundBuffer(input(), count * sizeof(float));
          to = context->createUnboundBuffer(out, count * sizeof(float));
          of = in;
        }
        const auto send = [&] {
          from->send(collective.peer(), 0);
          from->waitSend();
        };
        if (context->rank % 2 == 0) send();
        to->recv(collective.peer(), 0);
        to->waitRecv();
        if (context->rank % 2 != 0) send();
      };
    case Kind::kReduceScatter: warren::bench::fail("Gloo scatters in place alone");
    case Kind::kAllreduce: break;
  }
  return nullptr;
}

}  // namespace

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
      options.setReduceFunction(kSum);
      gloo::allreduce(options);
    };
  }
  const warren::bench::Collective collective(arguments.text("collective", "allreduce"), rank, ranks);
  if (auto call = call_of(collective, context, in, out, count)) subject.call = std::move(call);
  warren::bench::run(arguments, meeting, rank, ranks, subject);
  meeting.wait();
  // Gloo's threads and static objects may meet each other's ends; nothing is left to be done here.
  _exit(0);
}
