// The templates of rabit.h.
#ifndef RABIT_INTERNAL_RABIT_INL_H_
#define RABIT_INTERNAL_RABIT_INL_H_

#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "rabit/rabit.h"

namespace rabit {
namespace detail {

inline void CallFunction(void* function) {
  (*static_cast<std::function<void()>*>(function))();
}

// The bytes of `count` elements.
inline size_t BytesOf(size_t count, size_t width) {
  if (width != 0 && count > static_cast<size_t>(-1) / width) {
    engine::Fail(std::to_string(count) + " elements of " + std::to_string(width) +
                 " bytes are more than memory can hold");
  }
  return count * width;
}

inline void SaveModel(const void* model, std::string* buffer) {
  utils::MemoryBufferStream to(buffer);
  to.Seek(buffer->size());
  static_cast<const Serializable*>(model)->Save(&to);
}
inline void LoadModel(void* model, const char* bytes, size_t size) {
  utils::MemoryFixSizeBuffer from(const_cast<char*>(bytes), size);
  static_cast<Serializable*>(model)->Load(&from);
}

// Element by element through copies, because the buffers are not aligned.
template <typename DType, typename Combine>
void ReduceEach(const void* src, void* dst, size_t count, Combine combine) {
  const char* from = static_cast<const char*>(src);
  char* to = static_cast<char*>(dst);
  for (size_t i = 0; i < count; ++i, from += sizeof(DType), to += sizeof(DType)) {
    DType source, target;
    std::memcpy(static_cast<void*>(&source), from, sizeof(DType));
    std::memcpy(static_cast<void*>(&target), to, sizeof(DType));
    combine(target, source);
    std::memcpy(to, static_cast<const void*>(&target), sizeof(DType));
  }
}
template <typename OP, typename DType>
void ReduceByOp(const void* src, void* dst, size_t count, size_t /*size*/) {
  ReduceEach<DType>(src, dst, count, [](DType& target, const DType& source) { OP::Reduce(target, source); });
}
template <typename DType, void (*freduce)(DType& dst, const DType& src)>
void ReduceByFunction(const void* src, void* dst, size_t count, size_t /*size*/) {
  ReduceEach<DType>(src, dst, count, [](DType& target, const DType& source) { freduce(target, source); });
}
template <typename DType>
void ReduceObjects(const void* src, void* dst, size_t count, size_t size) {
  for (size_t i = 0; i < count; ++i) {
    utils::MemoryFixSizeBuffer from(const_cast<char*>(static_cast<const char*>(src)) + i * size, size);
    utils::MemoryFixSizeBuffer to(static_cast<char*>(dst) + i * size, size);
    DType source, target;
    source.Load(from);
    target.Load(to);
    target.Reduce(static_cast<const DType&>(source), size);
    to.Seek(0);
    target.Save(to);
  }
}

// Whether Warren has kernels for the operation.
template <typename OP>
struct IsBuiltIn
    : std::integral_constant<bool, std::is_same<OP, op::Max>::value || std::is_same<OP, op::Min>::value ||
                                       std::is_same<OP, op::Sum>::value || std::is_same<OP, op::BitOR>::value> {};

template <typename OP, typename DType>
void AllreduceBy(std::true_type /*built in*/, DType* buffer, size_t count, engine::PrepareFunction* prepare,
                 void* argument, const engine::Place& place) {
  static_assert(!(std::is_same<OP, op::BitOR>::value && std::is_floating_point<DType>::value),
                "BitOR is for whole numbers");
  engine::Allreduce(buffer, count, engine::mpi::GetType<DType>(), OP::kType, prepare, argument, place);
}
template <typename OP, typename DType>
void AllreduceBy(std::false_type, DType* buffer, size_t count, engine::PrepareFunction* prepare, void* argument,
                 const engine::Place& place) {
  engine::AllreduceCustom(buffer, sizeof(DType), count, &ReduceByOp<OP, DType>, prepare, argument, place);
}

// Saves what a SerializeReducer sends, after the program's own preparation.
template <typename DType>
struct SaveObjects {
  static void Run(void* context) {
    SaveObjects& self = *static_cast<SaveObjects*>(context);
    if (self.prepare != nullptr) self.prepare(self.argument);
    for (size_t i = 0; i < self.count; ++i) {
      utils::MemoryFixSizeBuffer to(&(*self.buffer)[i * self.max_nbyte], self.max_nbyte);
      self.objects[i].Save(to);
    }
  }
  DType* objects;
  size_t max_nbyte, count;
  engine::PrepareFunction* prepare;
  void* argument;
  std::string* buffer;
};

}  // namespace detail

template <typename DType>
void Broadcast(std::vector<DType>* sendrecv_data, int root, const char* file, int line, const char* caller) {
  size_t size = sendrecv_data->size();
  Broadcast(&size, sizeof size, root, file, line, caller);
  if (sendrecv_data->size() != size) sendrecv_data->resize(size);
  if (size != 0) Broadcast(&(*sendrecv_data)[0], size * sizeof(DType), root, file, line, caller);
}

template <typename OP, typename DType>
void Allreduce(DType* sendrecvbuf, size_t count, void (*prepare_fun)(void*), void* prepare_arg, const char* file,
               int line, const char* caller) {
  detail::AllreduceBy<OP>(detail::IsBuiltIn<OP>(), sendrecvbuf, count, prepare_fun, prepare_arg, {file, line, caller});
}
template <typename OP, typename DType>
void Allreduce(DType* sendrecvbuf, size_t count, std::function<void()> prepare_fun, const char* file, int line,
               const char* caller) {
  detail::AllreduceBy<OP>(detail::IsBuiltIn<OP>(), sendrecvbuf, count, &detail::CallFunction, &prepare_fun,
                          {file, line, caller});
}

template <typename DType>
void Allgather(DType* sendrecvbuf, size_t total_size, size_t slice_begin, size_t size_slice, size_t size_prev_slice,
               const char* file, int line, const char* caller) {
  engine::Allgather(sendrecvbuf, detail::BytesOf(total_size, sizeof(DType)),
                    detail::BytesOf(slice_begin, sizeof(DType)), detail::BytesOf(size_slice, sizeof(DType)),
                    detail::BytesOf(size_prev_slice, sizeof(DType)), {file, line, caller});
}

inline int LoadCheckPoint(Serializable* global_model, Serializable* local_model) {
  return engine::LoadCheckPoint(global_model, local_model, &detail::LoadModel);
}
inline void CheckPoint(const Serializable* global_model, const Serializable* local_model) {
  engine::CheckPoint(global_model, local_model, &detail::SaveModel);
}
inline void LazyCheckPoint(const Serializable* global_model) {
  engine::LazyCheckPoint(global_model, &detail::SaveModel);
}

template <typename DType, void (*freduce)(DType& dst, const DType& src)>
void Reducer<DType, freduce>::Allreduce(DType* sendrecvbuf, size_t count, void (*prepare_fun)(void*), void* prepare_arg,
                                        const char* file, int line, const char* caller) {
  engine::AllreduceCustom(sendrecvbuf, sizeof(DType), count, &detail::ReduceByFunction<DType, freduce>, prepare_fun,
                          prepare_arg, {file, line, caller});
}
template <typename DType, void (*freduce)(DType& dst, const DType& src)>
void Reducer<DType, freduce>::Allreduce(DType* sendrecvbuf, size_t count, std::function<void()> prepare_fun,
                                        const char* file, int line, const char* caller) {
  Allreduce(sendrecvbuf, count, &detail::CallFunction, &prepare_fun, file, line, caller);
}

template <typename DType>
void SerializeReducer<DType>::Allreduce(DType* sendrecvobj, size_t max_nbyte, size_t count, void (*prepare_fun)(void*),
                                        void* prepare_arg, const char* file, int line, const char* caller) {
  buffer_.assign(detail::BytesOf(max_nbyte, count), '\0');
  detail::SaveObjects<DType> save = {sendrecvobj, max_nbyte, count, prepare_fun, prepare_arg, &buffer_};
  engine::AllreduceCustom(&buffer_[0], max_nbyte, count, &detail::ReduceObjects<DType>,
                          &detail::SaveObjects<DType>::Run, &save, {file, line, caller});
  for (size_t i = 0; i < count; ++i) {
    utils::MemoryFixSizeBuffer from(&buffer_[i * max_nbyte], max_nbyte);
    sendrecvobj[i].Load(from);
  }
}
template <typename DType>
void SerializeReducer<DType>::Allreduce(DType* sendrecvobj, size_t max_nbyte, size_t count,
                                        std::function<void()> prepare_fun, const char* file, int line,
                                        const char* caller) {
  Allreduce(sendrecvobj, max_nbyte, count, &detail::CallFunction, &prepare_fun, file, line, caller);
}

}  // namespace rabit

#endif  // RABIT_INTERNAL_RABIT_INL_H_
