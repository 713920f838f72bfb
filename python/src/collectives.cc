#include "python/src/collectives.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "python/src/failure.h"
#include "python/src/handle.h"
#include "python/src/said.h"

namespace nb = nanobind;

namespace warren_python {
namespace {

// A call that returns when it has finished.
class Blocking {
 public:
  explicit Blocking(std::shared_ptr<Job> job) : call_(std::move(job)) {}
  [[nodiscard]] Call& call() { return call_; }

  template <class Start>
  nb::object run(const Start& start) {
    call_.job->call([&] { return start(nullptr); });
    return call_.finish();
  }

 private:
  Call call_;
};

// A call that returns at once, with a handle.
class Asynchronous {
 public:
  explicit Asynchronous(std::shared_ptr<Job> job) : call_(std::make_unique<Call>(std::move(job))) {}
  [[nodiscard]] Call& call() { return *call_; }

  template <class Start>
  nb::object run(const Start& start) {
    auto handle = std::make_unique<Handle>(std::move(call_));
    handle->job().call([&] { return start(handle->started()); });
    return nb::cast(handle.release(), nb::rv_policy::take_ownership);
  }

 private:
  std::unique_ptr<Call> call_;
};

// A call from its arguments to its result. `Way` is Blocking or Asynchronous.
template <class Way>
class Making {
 public:
  explicit Making(const Calls& calls, const Extras& extras = {})
      : comm_(calls.open()), way_(calls.job), said_(calls, extras, way_.call()) {}

  [[nodiscard]] Call& call() { return way_.call(); }
  [[nodiscard]] int rank() const { return warren_rank(comm_); }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(warren_world_size(comm_)); }

  // Makes the call by this function of the C interface; the arguments are those between communicator and options.
  template <class Function, class... Arguments>
  nb::object by(Function function, Arguments... arguments) {
    return way_.run([&](warren_handle** handle) { return function(comm_, arguments..., said_.get(), handle); });
  }

 private:
  warren_comm* comm_;
  Way way_;
  Said said_;
};

[[noreturn]] void wrong_count(const char* argument, const Array& array, std::size_t wanted) {
  throw nb::value_error(
      (std::string(argument) + " has " + std::to_string(array.count()) + " elements, not " + std::to_string(wanted))
          .c_str());
}

[[noreturn]] void wrong_entries(const char* argument, std::size_t entries, std::size_t ranks) {
  throw nb::value_error((std::string(argument) + " has " + std::to_string(entries) + " entries, not one for each of " +
                         std::to_string(ranks) + " ranks")
                            .c_str());
}

// `given` as numbers, one for each rank.
std::vector<std::size_t> counts_of(nb::handle given, const char* argument, std::size_t ranks) {
  const auto wrong = [&](nb::handle what) {
    throw nb::type_error(
        (std::string(argument) + " is " + nb::repr(what).c_str() + "; it is a sequence of ints, none below 0").c_str());
  };
  const nb::object items = nb::steal(PySequence_Fast(given.ptr(), ""));
  if (!items.is_valid()) {
    PyErr_Clear();
    wrong(given);
  }
  std::vector<std::size_t> counts;
  for (const nb::handle item : items) {
    const nb::object number = nb::steal(PyNumber_Index(item.ptr()));
    const std::size_t count = number.is_valid() ? PyLong_AsSize_t(number.ptr()) : 0;
    if (PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      wrong(given);
    }
    counts.push_back(count);
  }
  if (counts.size() != ranks) wrong_entries(argument, counts.size(), ranks);
  return counts;
}

// How many elements an array has that has so many for each rank.
std::size_t total_of(const std::vector<std::size_t>& counts, const char* argument) {
  std::size_t total = 0;
  for (const std::size_t count : counts) {
    if (__builtin_add_overflow(total, count, &total)) {
      throw nb::value_error((std::string(argument) + " adds up to more elements than there is memory for").c_str());
    }
  }
  return total;
}

// Gives the call its output: `out`, or a new array of the shape where that is None.
void prepare_output(Call& call, nb::handle x, nb::handle out, const std::vector<std::size_t>& shape) {
  if (out.is_none()) {
    if (call.in.on_gpu())
      throw nb::type_error("out is None, and x is on a GPU: give an array there, or one of NumPy's");
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
    call.number.real = PyFloat_AsDouble(x.ptr());
    return true;
  }
  if (!PyLong_CheckExact(x.ptr()) && PyBool_Check(x.ptr()) == 0) return false;
  int overflow = 0;
  call.kind = Call::Kind::kWhole;
  call.number.whole = PyLong_AsLongLongAndOverflow(x.ptr(), &overflow);
  if (overflow != 0) throw nb::value_error("x is an int of more than 64 bits");
  return true;
}

template <class Way>
nb::object allreduce(const Calls& self, nb::handle x, nb::handle op, nb::handle out, nb::handle wire,
                     nb::handle algorithm, nb::handle prepare) {
  const warren_op operation = op_of(op);
  Making<Way> making(self, {wire, algorithm, prepare});
  Call& call = making.call();
  if (take_number(call, x)) {
    if (!out.is_none()) throw nb::type_error("out is given, and x is a Python number, whose sum is returned");
    if (!prepare.is_none()) throw nb::type_error("prepare is given, and x is a Python number, which it cannot change");
    const warren_type type = call.kind == Call::Kind::kReal ? WARREN_F64 : WARREN_I64;
    return making.by(warren_allreduce, &call.number, &call.number, std::size_t{1}, type, operation);
  }
  if (out.is(x)) {
    call.out.take(x, "x", Access::kWrite);
    call.result = nb::borrow(x);
    return making.by(warren_allreduce, call.out.data(), call.out.data(), call.out.count(), call.out.type(), operation);
  }
  call.in.take(x, "x", Access::kRead);
  prepare_output(call, x, out, call.in.shape());
  return making.by(warren_allreduce, call.in.data(), call.out.data(), call.in.count(), call.in.type(), operation);
}

template <class Way>
nb::object reduce(const Calls& self, nb::handle x, nb::handle op, int root, nb::handle out, nb::handle algorithm,
                  nb::handle prepare) {
  const warren_op operation = op_of(op);
  Making<Way> making(self, {.algorithm = algorithm, .prepare = prepare});
  Call& call = making.call();
  call.result = nb::none();
  const bool at_root = making.rank() == root;
  const bool in_place = at_root && out.is(x);
  call.in.take(x, "x", in_place ? Access::kWrite : Access::kRead);
  if (in_place) {
    call.result = nb::borrow(x);
  } else if (at_root) {
    prepare_output(call, x, out, call.in.shape());
  }
  void* const to = !at_root ? nullptr : in_place ? call.in.data() : call.out.data();
  return making.by(warren_reduce, call.in.data(), to, call.in.count(), call.in.type(), operation, root);
}

template <class Way>
nb::object broadcast(const Calls& self, nb::handle x, int root, nb::handle algorithm, nb::handle prepare) {
  Making<Way> making(self, {.algorithm = algorithm, .prepare = prepare});
  Call& call = making.call();
  call.out.take(x, "x", Access::kWrite);
  call.result = nb::borrow(x);
  return making.by(warren_broadcast, call.out.data(), call.out.count(), call.out.type(), root);
}

template <class Way>
nb::object barrier(const Calls& self) {
  Making<Way> making(self);
  making.call().result = nb::none();
  return making.by(warren_barrier);
}

template <class Way>
nb::object allgather(const Calls& self, nb::handle x, nb::handle out, nb::handle wire, nb::handle algorithm,
                     nb::handle prepare) {
  Making<Way> making(self, {wire, algorithm, prepare});
  Call& call = making.call();
  call.in.take(x, "x", Access::kRead);
  prepare_output(call, x, out, stacked(call.in.shape(), making.size()));
  return making.by(warren_allgather, call.in.data(), call.out.data(), call.in.count(), call.in.type());
}

template <class Way>
nb::object allgatherv(const Calls& self, nb::handle x, nb::handle given_counts, nb::handle out, nb::handle algorithm,
                      nb::handle prepare) {
  Making<Way> making(self, {.algorithm = algorithm, .prepare = prepare});
  Call& call = making.call();
  const std::vector<std::size_t> counts = counts_of(given_counts, "counts", making.size());
  const std::size_t total = total_of(counts, "counts");
  call.in.take(x, "x", Access::kRead);
  const std::size_t own = counts[static_cast<std::size_t>(making.rank())];
  if (call.in.count() != own) wrong_count("x", call.in, own);
  prepare_output(call, x, out, {total});
  // The library takes a copy of the counts.
  return making.by(warren_allgatherv, call.in.data(), call.out.data(), counts.data(), call.in.type());
}

template <class Way>
nb::object reduce_scatter(const Calls& self, nb::handle x, nb::handle op, nb::handle out, nb::handle wire,
                          nb::handle algorithm, nb::handle prepare) {
  const warren_op operation = op_of(op);
  Making<Way> making(self, {wire, algorithm, prepare});
  Call& call = making.call();
  call.in.take(x, "x", Access::kRead);
  prepare_output(call, x, out, share_of(call.in, making.size()));
  const std::size_t count = call.in.count() / making.size();
  return making.by(warren_reduce_scatter, call.in.data(), call.out.data(), count, call.in.type(), operation);
}

template <class Way>
nb::object reduce_scatterv(const Calls& self, nb::handle x, nb::handle given_counts, nb::handle op, nb::handle out,
                           nb::handle algorithm, nb::handle prepare) {
  const warren_op operation = op_of(op);
  Making<Way> making(self, {.algorithm = algorithm, .prepare = prepare});
  Call& call = making.call();
  const std::vector<std::size_t> counts = counts_of(given_counts, "counts", making.size());
  const std::size_t total = total_of(counts, "counts");
  call.in.take(x, "x", Access::kRead);
  if (call.in.count() != total) wrong_count("x", call.in, total);
  prepare_output(call, x, out, {counts[static_cast<std::size_t>(making.rank())]});
  return making.by(warren_reduce_scatterv, call.in.data(), call.out.data(), counts.data(), call.in.type(), operation);
}

template <class Way>
nb::object gather(const Calls& self, nb::handle x, int root, nb::handle out, nb::handle algorithm, nb::handle prepare) {
  Making<Way> making(self, {.algorithm = algorithm, .prepare = prepare});
  Call& call = making.call();
  call.result = nb::none();
  call.in.take(x, "x", Access::kRead);
  if (making.rank() == root) prepare_output(call, x, out, stacked(call.in.shape(), making.size()));
  return making.by(warren_gather, call.in.data(), call.out.data(), call.in.count(), call.in.type(), root);
}

template <class Way>
nb::object scatter(const Calls& self, nb::handle x, int root, nb::handle out, nb::handle algorithm,
                   nb::handle prepare) {
  Making<Way> making(self, {.algorithm = algorithm, .prepare = prepare});
  Call& call = making.call();
  if (making.rank() == root) {
    if (x.is_none()) throw nb::type_error("x is None at the root, whose shares the others get");
    call.in.take(x, "x", Access::kRead);
    prepare_output(call, x, out, share_of(call.in, making.size()));
  } else {
    if (out.is_none()) throw nb::type_error("out is None: other ranks than the root tell by it how much they get");
    call.out.take(out, "out", Access::kWrite);
    call.result = nb::borrow(out);
  }
  return making.by(warren_scatter, call.in.data(), call.out.data(), call.out.count(), call.out.type(), root);
}

template <class Way>
nb::object all_to_all(const Calls& self, nb::handle x, nb::handle out, nb::handle algorithm, nb::handle prepare) {
  Making<Way> making(self, {.algorithm = algorithm, .prepare = prepare});
  Call& call = making.call();
  call.in.take(x, "x", Access::kRead);
  (void)share_of(call.in, making.size());
  prepare_output(call, x, out, call.in.shape());
  const std::size_t count = call.in.count() / making.size();
  return making.by(warren_all_to_all, call.in.data(), call.out.data(), count, call.in.type());
}

template <class Way>
nb::object all_to_allv(const Calls& self, nb::handle x, nb::handle given_to, nb::handle given_from, nb::handle out,
                       nb::handle algorithm, nb::handle prepare) {
  Making<Way> making(self, {.algorithm = algorithm, .prepare = prepare});
  Call& call = making.call();
  const std::vector<std::size_t> counts_to = counts_of(given_to, "counts_to", making.size());
  const std::vector<std::size_t> counts_from = counts_of(given_from, "counts_from", making.size());
  const std::size_t sent = total_of(counts_to, "counts_to"), received = total_of(counts_from, "counts_from");
  call.in.take(x, "x", Access::kRead);
  if (call.in.count() != sent) wrong_count("x", call.in, sent);
  prepare_output(call, x, out, {received});
  return making.by(warren_all_to_allv, call.in.data(), counts_to.data(), call.out.data(), counts_from.data(),
                   call.in.type());
}

template <class Way>
nb::object send(const Calls& self, nb::handle x, int peer, int tag) {
  Making<Way> making(self);
  Call& call = making.call();
  call.in.take(x, "x", Access::kRead);
  call.result = nb::none();
  return making.by(warren_send, call.in.data(), call.in.count(), call.in.type(), peer, tag);
}

template <class Way>
nb::object recv(const Calls& self, nb::handle out, int peer, int tag) {
  Making<Way> making(self);
  Call& call = making.call();
  call.out.take(out, "out", Access::kWrite);
  call.result = nb::borrow(out);
  return making.by(warren_recv, call.out.data(), call.out.count(), call.out.type(), peer, tag);
}

constexpr const char* kAllreduce =
    "Combines x of all ranks, on all of them. x: an array, or a Python int or float, of which the result is one too. "
    "op: 'sum', 'product', 'min', 'max', 'bit_and', 'bit_or', 'bit_xor', 'average'. out: where the result goes; x "
    "itself: in place; None: a new array. wire: 'f16', 'bf16' or 'i8': how float32 travels. algorithm: 'star', 'tree', "
    "'butterfly', 'ring' or 'direct'. prepare: a function without arguments that fills x, called just before x is "
    "read, on any thread, and not at all where the result comes from the log. Raises TypeError or ValueError for "
    "arguments, warren.Error for what goes wrong.";
constexpr const char* kReduce = "As allreduce; the root alone gets the result, others None.";
constexpr const char* kBroadcast = "Writes the root's x to x of all ranks. Returns x.";
constexpr const char* kBarrier = "Returns when all ranks have entered it.";
constexpr const char* kAllgather = "All ranks' x on all of them, in an array of shape (size, *x.shape).";
constexpr const char* kAllgatherv =
    "All ranks' x on all of them, one after the other in an array of one axis. counts: how many elements the x of each "
    "rank has, equal on all ranks.";
constexpr const char* kReduceScatter = "x has shape (size, *s): rank r gets x[r], combined over all ranks, of shape s.";
constexpr const char* kReduceScatterv =
    "x has a block for each rank, of counts[r] elements, one after the other: rank r gets block r, combined over all "
    "ranks, in an array of one axis. counts: equal on all ranks; any may be 0.";
constexpr const char* kGather = "All ranks' x at the root, in an array of shape (size, *x.shape); others get None.";
constexpr const char* kScatter =
    "The root's x has shape (size, *s): rank r gets x[r]. Other ranks than the root give out alone.";
constexpr const char* kAllToAll =
    "x has shape (size, *s): x[r] goes to rank r. In the result, [r] is what rank r sent.";
constexpr const char* kAllToAllv =
    "x has a block for each rank, one after the other: block r, of counts_to[r] elements, goes to rank r. The result "
    "has one axis: the block of rank 0, of counts_from[0] elements, then that of rank 1, and so on. Counts are each "
    "rank's own, and any may be 0; where they do not agree the call raises Desync.";
constexpr const char* kSend = "Sends x to a rank. Messages between two ranks with one tag arrive in order.";
constexpr const char* kRecv = "Receives into out, whose count and type are those of what is sent. Returns out.";

template <class Way>
void bind_calls(nb::class_<Calls>& calls, const std::string& suffix) {
  const auto name = [&](const char* base) { return base + suffix; };
  const auto x = nb::arg("x").none();
  const auto op = nb::arg("op") = "sum";
  const auto root = nb::arg("root") = 0;
  const auto none = [](const char* argument) { return nb::arg(argument) = nb::none(); };
  const auto algorithm = none("algorithm"), prepare = none("prepare"), out = none("out"), wire = none("wire");
  calls.def(name("allreduce").c_str(), allreduce<Way>, x, op, out, wire, algorithm, prepare, kAllreduce)
      .def(name("reduce").c_str(), reduce<Way>, x, op, root, out, algorithm, prepare, kReduce)
      .def(name("broadcast").c_str(), broadcast<Way>, x, root, algorithm, prepare, kBroadcast)
      .def(name("barrier").c_str(), barrier<Way>, kBarrier)
      .def(name("allgather").c_str(), allgather<Way>, x, out, wire, algorithm, prepare, kAllgather)
      .def(name("allgatherv").c_str(), allgatherv<Way>, x, nb::arg("counts"), out, algorithm, prepare, kAllgatherv)
      .def(name("reduce_scatter").c_str(), reduce_scatter<Way>, x, op, out, wire, algorithm, prepare, kReduceScatter)
      .def(name("reduce_scatterv").c_str(), reduce_scatterv<Way>, x, nb::arg("counts"), op, out, algorithm, prepare,
           kReduceScatterv)
      .def(name("gather").c_str(), gather<Way>, x, root, out, algorithm, prepare, kGather)
      .def(name("scatter").c_str(), scatter<Way>, x, root, out, algorithm, prepare, kScatter)
      .def(name("all_to_all").c_str(), all_to_all<Way>, x, out, algorithm, prepare, kAllToAll)
      .def(name("all_to_allv").c_str(), all_to_allv<Way>, x, nb::arg("counts_to"), nb::arg("counts_from"), out,
           algorithm, prepare, kAllToAllv);
}

}  // namespace

void bind_collectives(nb::class_<Calls>& calls) {
  bind_calls<Blocking>(calls, "");
  bind_calls<Asynchronous>(calls, "_async");
}

void bind_messages(nb::class_<Calls>& calls) {
  calls.def("send", send<Blocking>, nb::arg("x").none(), nb::arg("peer"), nb::arg("tag") = 0, kSend)
      .def("send_async", send<Asynchronous>, nb::arg("x").none(), nb::arg("peer"), nb::arg("tag") = 0, kSend)
      .def("recv", recv<Blocking>, nb::arg("out").none(), nb::arg("peer"), nb::arg("tag") = 0, kRecv)
      .def("recv_async", recv<Asynchronous>, nb::arg("out").none(), nb::arg("peer"), nb::arg("tag") = 0, kRecv);
}

}  // namespace warren_python
