// The extension module warren._core: the C interface for the package, which lies over it in Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "python/src/call_site.h"
#include "python/src/checkpoint.h"
#include "python/src/collectives.h"
#include "python/src/failure.h"
#include "python/src/group.h"
#include "python/src/handle.h"
#include "python/src/lightgbm.h"
#include "python/src/log_queue.h"
#include "python/src/options.h"
#include "python/src/said.h"

namespace nb = nanobind;

namespace warren_python {
namespace {

Group group_of(const std::shared_ptr<Job>& job, warren_comm* comm) {
  Group group;
  group.job = job;
  group.comm = comm;
  return group;
}

// A new communicator of a group, or None for a rank that belongs to none.
nb::object split(const Group& self, int color, int key) {
  warren_comm* const comm = self.open();
  warren_comm* made = nullptr;
  self.job->call([&] { return warren_split(comm, color, key, &made); });
  return made != nullptr ? nb::cast(group_of(self.job, made)) : nb::none();
}

Group make_group(const Group& self, const std::string& name, const std::vector<std::int32_t>& ranks) {
  warren_comm* const comm = self.open();
  Call call(self.job);
  const Said said(self, {}, call);
  warren_comm* made = nullptr;
  self.job->call([&] { return warren_group(comm, name.c_str(), ranks.data(), ranks.size(), said.get(), &made); });
  return group_of(self.job, made);
}

Once once(const Group& self, const std::string& name) {
  if (name.empty() || name.size() > 128) throw nb::value_error("once: name has 1 to 128 bytes");
  Once calls;
  calls.job = self.job;
  calls.comm = self.comm;
  calls.once = name;
  return calls;
}

Calls within(const Calls& self, double timeout_s) {
  if (!(timeout_s > 0)) throw nb::value_error("within: timeout is not above 0");
  Calls calls = self;
  calls.timeout_ms = static_cast<std::int64_t>(std::ceil(std::min(timeout_s * 1000, 1e15)));
  return calls;
}

bool once_known(const Group& self, const std::string& name) {
  warren_comm* const comm = self.open();
  std::int32_t known = 0;
  self.job->call([&] { return warren_once_known(comm, name.c_str(), &known); });
  return known != 0;
}

void use_stream(const Group& self, std::uintptr_t stream) {
  warren_comm* const comm = self.open();
  // NOLINTNEXTLINE(performance-no-int-to-ptr): GPU libraries give streams as numbers.
  self.job->call([&] { return warren_use_stream(comm, reinterpret_cast<void*>(stream)); });
}

void begin_fusion(const Group& self, std::int64_t max_bytes) {
  warren_comm* const comm = self.open();
  self.job->call([&] { return warren_fusion_begin(comm, max_bytes); });
}

void end_fusion(const Group& self) {
  warren_comm* const comm = self.open();
  self.job->call([&] { return warren_fusion_end(comm); });
}

void finalize(const Communicator& self) {
  warren_comm* const comm = self.open();
  self.job->call([&] { return warren_finalize(comm); });
}

void bind_group(nb::class_<Group, Calls>& group) {
  group.def_prop_ro("rank", &Group::rank, "This worker's number in the communicator, from 0.")
      .def_prop_ro("size", &Group::size, "How many ranks the communicator has.")
      .def_prop_ro(
          "local_rank", [](const Group& self) { return warren_local_rank(self.open()); },
          "This worker's number among the ranks of the communicator on its host, from 0.")
      .def_prop_ro(
          "rounds_finished", [](const Group& self) { return warren_rounds_finished(self.open()); },
          "How many rounds this life has finished, on all communicators of the job.")
      .def_prop_ro(
          "local_size", [](const Group& self) { return warren_local_size(self.open()); },
          "How many ranks of the communicator are on this host.")
      .def("split", split, nb::arg("color"), nb::arg("key") = 0,
           nb::sig("def split(self, color: int, key: int = 0) -> Group | None"),
           "Collective. Ranks with one color make a new communicator, ordered by (key, rank); color -1: None.")
      .def("group", make_group, nb::arg("name"), nb::arg("ranks"),
           "A new communicator of these ranks, in this order, which they alone make: all of them call this with the "
           "same name (1 to 128 bytes) and list, and no other rank does. Ranks that are in several groups make those "
           "that they share in the same order. Desync: ranks gave one name other lists.")
      .def("use_stream", use_stream, nb::arg("stream"),
           "Calls from here on read and write arrays on a GPU after the work on this stream: a cudaStream_t as a "
           "number, "
           "such as torch.cuda.current_stream().cuda_stream. 0, as at the beginning: the default stream.")
      .def("_begin_fusion", begin_fusion, nb::arg("max_bytes"))
      .def("_end_fusion", end_fusion)
      .def("once", once, nb::arg("name"),
           "An object whose collectives are set-up rounds of this name: their results are kept for as long as the job "
           "lasts, and a process that is started again gets them at once.")
      .def("once_known", once_known, nb::arg("name"), "Whether the job knows a set-up round of this name.");
}

void bind_communicator(nb::class_<Communicator, Group>& communicator) {
  communicator
      .def(
          "__init__",
          [](Communicator* self, const Options& options, const LogQueue* log_queue) {
            warren_options given = options.get();
            if (log_queue != nullptr) given.log_queue = log_queue->get();
            auto job = std::make_shared<Job>(given);
            new (self) Communicator();
            self->comm = job->comm();
            self->job = std::move(job);
          },
          nb::arg("options"), nb::arg("log_queue") = nb::none())
      .def("finalize", finalize,
           "The collective end of the job: returns when all ranks have entered it. Leaves the communicator open for "
           "`destroy`.")
      .def(
          "destroy", [](const Communicator& self) { self.job->destroy(); },
          "Leaves the job, and closes the communicator and those split from it. Without finalize the other ranks wait "
          "for this worker's next life.")
      .def(
          "abort", [](const Communicator& self, const std::string& reason) { self.job->abort(reason); },
          nb::arg("reason"),
          "Gives this worker's life in the job up: calls under way, and all that follow, raise Closed with the reason; "
          "the other ranks wait for its next life. From any thread, beside calls. Returns at once.")
      .def_prop_ro(
          "is_open", [](const Communicator& self) { return self.job->open(); }, "Whether it was not destroyed yet.");
}

}  // namespace
}  // namespace warren_python

NB_MODULE(_core, module) {
  using namespace warren_python;
  // Communicators in a module's globals live until the interpreter ends, which is no leak.
  nb::set_leak_warnings(false);
  bind_options(module);
  bind_log_queue(module);
  auto calls = nb::class_<Calls>(module, "Calls");
  bind_collectives(calls);
  bind_messages(calls);
  calls.def("within", within, nb::arg("timeout"),
            "An object whose calls end this worker's life with Timeout where they have not finished within so many "
            "seconds; the others wait for its next life.");
  auto group = nb::class_<Group, Calls>(module, "Group");
  bind_group(group);
  auto communicator = nb::class_<Communicator, Group>(module, "Communicator");
  bind_communicator(communicator);
  bind_checkpoints(communicator);
  [[maybe_unused]] const auto once_class = nb::class_<Once, Calls>(module, "Once");
  bind_handle(module);
  bind_lightgbm(module);
  module.def("_set_error_classes", set_error_classes);
  module.def("_add_layer", add_layer);
  module.def("_destroy_all_jobs", destroy_all_jobs);
  module.def("library_version", [] { return warren_version(); });
}
