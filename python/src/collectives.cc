#include "python/src/collectives.h"

#include <string>
#include <vector>

#include "python/src/failure.h"
#include "python/src/handle.h"
#include "python/src/said.h"

namespace nb = nanobind;

namespace warren_python {
namespace {

// A call that returns when it has finished.
struct Blocking {
  template <class Start>
  static nb::object run(const Calls& self, std::unique_ptr<Call> call, const Start& start) {
    warren_code code = WARREN_OK;
    {
      const InsideCall inside(*self.job);
      code = start(nullptr);
    }
    check(code);
    return call->finish();
  }
};

// A call that returns at once, with a handle.
struct Asynchronous {
  template <class Start>
  static nb::object run(const Calls& self, std::unique_ptr<Call> call, const Start& start) {
    auto handle = std::make_unique<Handle>(self.job, std::move(call));
    warren_code code = WARREN_OK;
    {
      const InsideCall inside(*self.job);
      code = start(handle->started());
    }
    check(code);
    return nb::cast(handle.release(), nb::rv_policy::take_ownership);
  }
};

[[noreturn]] void wrong_count(const char* argument, const Array& array, std::size_t wanted) {
  throw nb::value_error(
      (std::string(argument) + " has " + std::to_string(array.count()) + " elements, not " + std::to_string(wanted))
          .c_str());
}

// Gives the call its output: `out`, or a new array of the shape where that is None.
void prepare_output(Call& call, nb::handle x, nb::handle out, const std::vector<std::size_t>& shape) {
  if (out.is_none()) {
    call.result = new_array(shape, call.in, x);
    call.out.take(call.result, "the result", Access::kWrite);
    if (shape.empty()) call.kind = Call::Kind::kZeroDimensions;
    return;
  }
  call.out.take(out, "out", Access::kWrite);
  call.result = nb::borrow(out);
  if (call.out.type() != call.in.type()) {
    throw nb::type_error(
        (std::string("out is of ") + name_of(call.out.type()) + ", and x of " + name_of(call.in.type())).c_str());
  }
  std::size_t count = 1;
  for (const std::size_t length : shape) count *= length;
  if (call.out.count() != count) wrong_count("out", call.out, count);
}

// The shape of an array with one for each rank.
std::vector<std::size_t> stacked(const std::vector<std::size_t>& shape, std::size_t size) {
  std::vector<std::size_t> all = {size};
  all.insert(all.end(), shape.begin(), shape.end());
  return all;
}

// The shape of what belongs to one rank of an array whose first axis is the ranks.
std::vector<std::size_t> share_of(const Array& array, std::size_t size) {
  const std::vector<std::size_t> shape = array.shape();
  if (shape.empty() || shape[0] != size) {
    throw nb::value_error(("the first axis of x has a length of " +
                           (shape.empty() ? std::string("none") : std::to_string(shape[0])) +
                           ", not of the communicator's size " + std::to_string(size) +
                           ": x[r] is what rank r gets, so give x.reshape(size, -1)")
                              .c_str());
  }
  return {shape.begin() + 1, shape.end()};
}

// A Python number is its own buffer.
bool take_number(Call& call, nb::handle x) {
  if (PyFloat_CheckExact(x.ptr())) {
    call.kind = Call::Kind::kReal;
    call.number.real = PyFloat_AS_DOUBLE(x.ptr());
    return true;
  }
  if (!PyLong_CheckExact(x.ptr())) return false;
  int overflow = 0;
  call.kind = Call::Kind::kWhole;
  call.number.whole = PyLong_AsLongLongAndOverflow(x.ptr(), &overflow);
  if (overflow != 0) throw nb::value_error("x is an int of more than 64 bits");
  return true;
}

template <class Way>
nb::object allreduce(const Calls& self, nb::handle x, nb::handle op, nb::handle out, nb::handle wire,
                     nb::handle algorithm) {
  warren_comm* const comm = self.open();
  const warren_op operation = op_of(op);
  const Said said(self, wire, algorithm);
  auto call = std::make_unique<Call>();
  const void* in = nullptr;
  void* to = nullptr;
  std::size_t count = 1;
  warren_type type = WARREN_F64;
  if (take_number(*call, x)) {
    if (!out.is_none()) throw nb::type_error("out is given, and x is a Python number, whose sum is returned");
    in = to = &call->number;
    type = call->kind == Call::Kind::kReal ? WARREN_F64 : WARREN_I64;
  } else if (out.is(x)) {
    call->out.take(x, "x", Access::kWrite);
    call->result = nb::borrow(x);
    in = to = call->out.data();
    count = call->out.count();
    type = call->out.type();
  } else {
    call->in.take(x, "x", Access::kRead);
    prepare_output(*call, x, out, call->in.shape());
    in = call->in.data();
    to = call->out.data();
    count = call->in.count();
    type = call->in.type();
  }
  return Way::run(self, std::move(call), [=, &said](warren_handle** handle) {
    return warren_allreduce(comm, in, to, count, type, operation, said.get(), handle);
  });
}

template <class Way>
nb::object reduce(const Calls& self, nb::handle x, nb::handle op, int root, nb::handle out, nb::handle algorithm) {
  warren_comm* const comm = self.open();
  const warren_op operation = op_of(op);
  const Said said(self, nb::none(), algorithm);
  auto call = std::make_unique<Call>();
  call->result = nb::none();
  const bool at_root = warren_rank(comm) == root;
  const bool in_place = at_root && out.is(x);
  call->in.take(x, "x", in_place ? Access::kWrite : Access::kRead);
  if (in_place) {
    call->result = nb::borrow(x);
  } else if (at_root) {
    prepare_output(*call, x, out, call->in.shape());
  }
  const void* const in = call->in.data();
  void* const to = !at_root ? nullptr : in_place ? call->in.data() : call->out.data();
  const std::size_t count = call->in.count();
  const warren_type type = call->in.type();
  return Way::run(self, std::move(call), [=, &said](warren_handle** handle) {
    return warren_reduce(comm, in, to, count, type, operation, root, said.get(), handle);
  });
}

template <class Way>
nb::object broadcast(const Calls& self, nb::handle x, int root, nb::handle algorithm) {
  warren_comm* const comm = self.open();
  const Said said(self, nb::none(), algorithm);
  auto call = std::make_unique<Call>();
  call->out.take(x, "x", Access::kWrite);
  call->result = nb::borrow(x);
  void* const buffer = call->out.data();
  const std::size_t count = call->out.count();
  const warren_type type = call->out.type();
  return Way::run(self, std::move(call), [=, &said](warren_handle** handle) {
    return warren_broadcast(comm, buffer, count, type, root, said.get(), handle);
  });
}

template <class Way>
nb::object barrier(const Calls& self) {
  warren_comm* const comm = self.open();
  const Said said(self);
  auto call = std::make_unique<Call>();
  call->result = nb::none();
  return Way::run(self, std::move(call),
                  [=, &said](warren_handle** handle) { return warren_barrier(comm, said.get(), handle); });
}

template <class Way>
nb::object allgather(const Calls& self, nb::handle x, nb::handle out, nb::handle wire, nb::handle algorithm) {
  warren_comm* const comm = self.open();
  const Said said(self, wire, algorithm);
  auto call = std::make_unique<Call>();
  call->in.take(x, "x", Access::kRead);
  prepare_output(*call, x, out, stacked(call->in.shape(), static_cast<std::size_t>(warren_world_size(comm))));
  const void* const in = call->in.data();
  void* const to = call->out.data();
  const std::size_t count = call->in.count();
  const warren_type type = call->in.type();
  return Way::run(self, std::move(call), [=, &said](warren_handle** handle) {
    return warren_allgather(comm, in, to, count, type, said.get(), handle);
  });
}

template <class Way>
nb::object reduce_scatter(const Calls& self, nb::handle x, nb::handle op, nb::handle out, nb::handle wire,
                          nb::handle algorithm) {
  warren_comm* const comm = self.open();
  const warren_op operation = op_of(op);
  const Said said(self, wire, algorithm);
  auto call = std::make_unique<Call>();
  call->in.take(x, "x", Access::kRead);
  const auto size = static_cast<std::size_t>(warren_world_size(comm));
  prepare_output(*call, x, out, share_of(call->in, size));
  const void* const in = call->in.data();
  void* const to = call->out.data();
  const std::size_t count = call->in.count() / size;
  const warren_type type = call->in.type();
  return Way::run(self, std::move(call), [=, &said](warren_handle** handle) {
    return warren_reduce_scatter(comm, in, to, count, type, operation, said.get(), handle);
  });
}

template <class Way>
nb::object gather(const Calls& self, nb::handle x, int root, nb::handle out, nb::handle algorithm) {
  warren_comm* const comm = self.open();
  const Said said(self, nb::none(), algorithm);
  auto call = std::make_unique<Call>();
  call->result = nb::none();
  call->in.take(x, "x", Access::kRead);
  if (warren_rank(comm) == root) {
    prepare_output(*call, x, out, stacked(call->in.shape(), static_cast<std::size_t>(warren_world_size(comm))));
  }
  const void* const in = call->in.data();
  void* const to = call->out.data();
  const std::size_t count = call->in.count();
  const warren_type type = call->in.type();
  return Way::run(self, std::move(call), [=, &said](warren_handle** handle) {
    return warren_gather(comm, in, to, count, type, root, said.get(), handle);
  });
}

template <class Way>
nb::object scatter(const Calls& self, nb::handle x, int root, nb::handle out, nb::handle algorithm) {
  warren_comm* const comm = self.open();
  const Said said(self, nb::none(), algorithm);
  auto call = std::make_unique<Call>();
  if (warren_rank(comm) == root) {
    if (x.is_none()) throw nb::type_error("x is None at the root, whose shares the others get");
    call->in.take(x, "x", Access::kRead);
    prepare_output(*call, x, out, share_of(call->in, static_cast<std::size_t>(warren_world_size(comm))));
  } else {
    if (out.is_none()) throw nb::type_error("out is None: other ranks than the root tell by it how much they get");
    call->out.take(out, "out", Access::kWrite);
    call->result = nb::borrow(out);
  }
  const void* const in = call->in.data();
  void* const to = call->out.data();
  const std::size_t count = call->out.count();
  const warren_type type = call->out.type();
  return Way::run(self, std::move(call), [=, &said](warren_handle** handle) {
    return warren_scatter(comm, in, to, count, type, root, said.get(), handle);
  });
}

template <class Way>
nb::object all_to_all(const Calls& self, nb::handle x, nb::handle out, nb::handle algorithm) {
  warren_comm* const comm = self.open();
  const Said said(self, nb::none(), algorithm);
  auto call = std::make_unique<Call>();
  call->in.take(x, "x", Access::kRead);
  const auto size = static_cast<std::size_t>(warren_world_size(comm));
  (void)share_of(call->in, size);
  prepare_output(*call, x, out, call->in.shape());
  const void* const in = call->in.data();
  void* const to = call->out.data();
  const std::size_t count = call->in.count() / size;
  const warren_type type = call->in.type();
  return Way::run(self, std::move(call), [=, &said](warren_handle** handle) {
    return warren_all_to_all(comm, in, to, count, type, said.get(), handle);
  });
}

template <class Way>
nb::object send(const Group& self, nb::handle x, int peer, int tag) {
  warren_comm* const comm = self.open();
  const Said said(self);
  auto call = std::make_unique<Call>();
  call->in.take(x, "x", Access::kRead);
  call->result = nb::none();
  const void* const buffer = call->in.data();
  const std::size_t count = call->in.count();
  const warren_type type = call->in.type();
  return Way::run(self, std::move(call), [=, &said](warren_handle** handle) {
    return warren_send(comm, buffer, count, type, peer, tag, said.get(), handle);
  });
}

template <class Way>
nb::object recv(const Group& self, nb::handle out, int peer, int tag) {
  warren_comm* const comm = self.open();
  const Said said(self);
  auto call = std::make_unique<Call>();
  call->out.take(out, "out", Access::kWrite);
  call->result = nb::borrow(out);
  void* const buffer = call->out.data();
  const std::size_t count = call->out.count();
  const warren_type type = call->out.type();
  return Way::run(self, std::move(call), [=, &said](warren_handle** handle) {
    return warren_recv(comm, buffer, count, type, peer, tag, said.get(), handle);
  });
}

constexpr const char* kAllreduce =
    "Combines x of all ranks, on all of them. x: an array, or a Python int or float, of which the result is one too. "
    "op: "
    "'sum', 'product', 'min', 'max', 'bit_and', 'bit_or', 'bit_xor', 'average'. out: where the result goes; x itself: "
    "in "
    "place; None: a new array. wire: 'f16', 'bf16' or 'i8': how float32 travels. algorithm: 'star', 'tree', "
    "'butterfly', "
    "'ring' or 'direct'. Raises TypeError or ValueError for arguments, warren.Error for what goes wrong.";
constexpr const char* kReduce = "As allreduce; the root alone gets the result, others None.";
constexpr const char* kBroadcast = "Writes the root's x to x of all ranks. Returns x.";
constexpr const char* kBarrier = "Returns when all ranks have entered it.";
constexpr const char* kAllgather = "All ranks' x on all of them, in an array of shape (size, *x.shape).";
constexpr const char* kReduceScatter = "x has shape (size, *s): rank r gets x[r], combined over all ranks, of shape s.";
constexpr const char* kGather = "All ranks' x at the root, in an array of shape (size, *x.shape); others get None.";
constexpr const char* kScatter =
    "The root's x has shape (size, *s): rank r gets x[r]. Other ranks than the root give out alone.";
constexpr const char* kAllToAll =
    "x has shape (size, *s): x[r] goes to rank r. In the result, [r] is what rank r sent.";
constexpr const char* kSend = "Sends x to a rank. Messages between two ranks with one tag arrive in order.";
constexpr const char* kRecv = "Receives into out, whose count and type are those of what is sent. Returns out.";

template <class Way>
void bind_calls(nb::class_<Calls>& calls, const std::string& suffix) {
  const auto name = [&](const char* base) { return base + suffix; };
  const auto none = nb::none();
  calls
      .def(name("allreduce").c_str(), allreduce<Way>, nb::arg("x").none(), nb::arg("op") = "sum", nb::arg("out") = none,
           nb::arg("wire") = none, nb::arg("algorithm") = none, kAllreduce)
      .def(name("reduce").c_str(), reduce<Way>, nb::arg("x").none(), nb::arg("op") = "sum", nb::arg("root") = 0,
           nb::arg("out") = none, nb::arg("algorithm") = none, kReduce)
      .def(name("broadcast").c_str(), broadcast<Way>, nb::arg("x").none(), nb::arg("root") = 0,
           nb::arg("algorithm") = none, kBroadcast)
      .def(name("barrier").c_str(), barrier<Way>, kBarrier)
      .def(name("allgather").c_str(), allgather<Way>, nb::arg("x").none(), nb::arg("out") = none,
           nb::arg("wire") = none, nb::arg("algorithm") = none, kAllgather)
      .def(name("reduce_scatter").c_str(), reduce_scatter<Way>, nb::arg("x").none(), nb::arg("op") = "sum",
           nb::arg("out") = none, nb::arg("wire") = none, nb::arg("algorithm") = none, kReduceScatter)
      .def(name("gather").c_str(), gather<Way>, nb::arg("x").none(), nb::arg("root") = 0, nb::arg("out") = none,
           nb::arg("algorithm") = none, kGather)
      .def(name("scatter").c_str(), scatter<Way>, nb::arg("x").none(), nb::arg("root") = 0, nb::arg("out") = none,
           nb::arg("algorithm") = none, kScatter)
      .def(name("all_to_all").c_str(), all_to_all<Way>, nb::arg("x").none(), nb::arg("out") = none,
           nb::arg("algorithm") = none, kAllToAll);
}

}  // namespace

void bind_collectives(nb::class_<Calls>& calls) {
  bind_calls<Blocking>(calls, "");
  bind_calls<Asynchronous>(calls, "_async");
}

void bind_messages(nb::class_<Group, Calls>& group) {
  group.def("send", send<Blocking>, nb::arg("x").none(), nb::arg("peer"), nb::arg("tag") = 0, kSend)
      .def("send_async", send<Asynchronous>, nb::arg("x").none(), nb::arg("peer"), nb::arg("tag") = 0, kSend)
      .def("recv", recv<Blocking>, nb::arg("out").none(), nb::arg("peer"), nb::arg("tag") = 0, kRecv)
      .def("recv_async", recv<Asynchronous>, nb::arg("out").none(), nb::arg("peer"), nb::arg("tag") = 0, kRecv);
}

}  // namespace warren_python
