#include "python/src/checkpoint.h"

#include <nanobind/stl/optional.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "python/src/array.h"
#include "python/src/failure.h"

namespace nb = nanobind;

namespace warren_python {
namespace {

// Buffers of a state, one after the other.
class Places {
 public:
  explicit Places(const nb::list& buffers) {
    for (const nb::handle buffer : buffers) {
      Py_buffer view{};
      if (PyObject_GetBuffer(buffer.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
      views_.push_back(view);
      places_.push_back({view.buf, static_cast<std::size_t>(view.len)});
    }
  }
  Places(const Places&) = delete;
  Places& operator=(const Places&) = delete;
  ~Places() {
    for (Py_buffer& view : views_) PyBuffer_Release(&view);
  }
  [[nodiscard]] const warren_place* data() const { return places_.data(); }
  [[nodiscard]] std::size_t size() const { return places_.size(); }

 private:
  std::vector<Py_buffer> views_;
  std::vector<warren_place> places_;
};

void checkpoint(Communicator& self, const nb::list& global, const std::optional<nb::list>& local) {
  warren_comm* const comm = self.open();
  const Places all(global);
  std::optional<Places> own;
  if (local) own.emplace(*local);
  self.job->call([&] {
    return warren_checkpoint_places(comm, all.data(), all.size(), own ? own->data() : nullptr, own ? own->size() : 0);
  });
}

// `global` is empty but at the root.
void checkpoint_from(Communicator& self, int root, const nb::list& global, const std::optional<nb::list>& local) {
  warren_comm* const comm = self.open();
  const Places all(global);
  std::optional<Places> own;
  if (local) own.emplace(*local);
  self.job->call([&] {
    return warren_checkpoint_from(comm, root, all.data(), all.size(), own ? own->data() : nullptr,
                                  own ? own->size() : 0);
  });
}

}  // namespace

struct Lazy {
  Job& job;
  nb::object serialize;
  nb::object bytes;

  static std::int32_t run(const void** bytes, std::size_t* size, void* context) {
    auto& lazy = *static_cast<Lazy*>(context);
    return lazy.job.run([&] {
      lazy.bytes = lazy.serialize();
      *bytes = PyBytes_AsString(lazy.bytes.ptr());
      if (*bytes == nullptr) throw nb::python_error();
      *size = static_cast<std::size_t>(PyBytes_Size(lazy.bytes.ptr()));
    });
  }
};

namespace {

// `serialize` gives bytes.
void lazy_checkpoint(Communicator& self, nb::object serialize) {
  warren_comm* const comm = self.open();
  auto lazy = std::make_shared<Lazy>(Lazy{*self.job, std::move(serialize), {}});
  self.job->call([&] { return warren_lazy_checkpoint(comm, Lazy::run, lazy.get()); });
  // The one before has been serialized, and its bytes are taken.
  self.job->lazy = std::move(lazy);
}

// (version, global state, local state or None); the states are copies.
nb::tuple load_checkpoint(Communicator& self) {
  warren_comm* const comm = self.open();
  std::uint64_t version = 0;
  const void* global = nullptr;
  const void* local = nullptr;
  std::size_t global_bytes = 0, local_bytes = 0;
  self.job->call([&] { return warren_load_checkpoint(comm, &version, &global, &global_bytes, &local, &local_bytes); });
  const auto copy = [](const void* data, std::size_t bytes) {
    return nb::object(nb::bytearray(data != nullptr ? data : "", bytes));
  };
  nb::tuple loaded =
      nb::make_tuple(version, copy(global, global_bytes), local != nullptr ? copy(local, local_bytes) : nb::none());
  check(warren_release_states(comm));
  return loaded;
}

}  // namespace

void bind_checkpoints(nb::class_<Communicator, Group>& communicator) {
  communicator.def("_checkpoint", checkpoint, nb::arg("global_state"), nb::arg("local_state") = nb::none())
      .def("_checkpoint_from", checkpoint_from, nb::arg("root"), nb::arg("global_state"),
           nb::arg("local_state") = nb::none())
      .def("_lazy_checkpoint", lazy_checkpoint, nb::arg("serialize"))
      .def("_load_checkpoint", load_checkpoint)
      .def_prop_ro(
          "version", [](const Communicator& self) { return warren_checkpoint_version(self.open()); },
          "How many checkpoints the program has taken, counted from the one that it was loaded from.")
      .def_prop_ro(
          "committed_version", [](const Communicator& self) { return warren_committed_version(self.open()); },
          "The newest version that is safe to start from, as far as this rank knows.")
      .def_prop_ro("_checkpoint_world_size",
                   [](const Communicator& self) { return warren_checkpoint_world_size(self.open()); });
}

}  // namespace warren_python
