#include "tests/host/mini_host.h"

#include <dlfcn.h>

#include <atomic>
#include <stdexcept>

#include "tests/host/xla_versions.h"

namespace {
std::atomic<int64_t> live_errors{0};
}  // namespace

// The error object of XLA's C ABI, which each host defines.
struct XLA_FFI_Error {
  XLA_FFI_Error(XLA_FFI_Error_Code c, std::string m) : code(c), message(std::move(m)) { ++live_errors; }
  ~XLA_FFI_Error() { --live_errors; }

  XLA_FFI_Error_Code code;
  std::string message;
};

namespace raggemm::host {
namespace {

XLA_FFI_Error* Unsupported(const char* function) {
  return new XLA_FFI_Error(XLA_FFI_Error_Code_UNIMPLEMENTED, std::string(function) + " is not supported by this host");
}

XLA_FFI_Error* CreateError(XLA_FFI_Error_Create_Args* args) { return new XLA_FFI_Error(args->errc, args->message); }

void ReadError(ErrorDetails* details) {
  details->message = details->error->message.c_str();
  if (XLA_FFI_Error_Code* code = ErrorCodeIn(*details)) *code = details->error->code;
}

void DestroyError(XLA_FFI_Error_Destroy_Args* args) { delete args->error; }

// The execution context of a call. XLA_FFI_CallFrame::ctx points to it, by an opaque type whose name differs between
// versions of XLA.
struct Context {
  TaskRunner* pool;
};
using OpaqueContext = decltype(XLA_FFI_CallFrame::ctx);

TaskRunner* PoolOf(OpaqueContext context) { return reinterpret_cast<Context*>(context)->pool; }

XLA_FFI_Error* ScheduleTask(XLA_FFI_ThreadPool_Schedule_Args* args) {
  TaskRunner* pool = PoolOf(args->ctx);
  if (pool == nullptr) return Unsupported("XLA_FFI_ThreadPool_Schedule");
  pool->Schedule(args->task, args->data);
  return nullptr;
}

XLA_FFI_Error* CountThreads(XLA_FFI_ThreadPool_NumThreads_Args* args) {
  TaskRunner* pool = PoolOf(args->ctx);
  if (pool == nullptr) return Unsupported("XLA_FFI_ThreadPool_NumThreads");
  *args->num_threads = pool->num_threads();
  return nullptr;
}

// Returns XLA's table of API functions. Entries that CPU handlers do not call are null.
XLA_FFI_Api MakeApi() {
  XLA_FFI_Api api{};
  api.struct_size = XLA_FFI_Api_STRUCT_SIZE;
  api.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
  api.XLA_FFI_Error_Create = CreateError;
  api.*kReadError = ReadError;
  api.XLA_FFI_Error_Destroy = DestroyError;
  api.XLA_FFI_ThreadPool_Schedule = ScheduleTask;
  api.XLA_FFI_ThreadPool_NumThreads = CountThreads;
  return api;
}

Error Take(XLA_FFI_Error* error) {
  if (error == nullptr) return {};
  Error taken{error->code, std::move(error->message)};
  delete error;
  return taken;
}

constexpr XLA_FFI_DataType TypeOf(bool) { return XLA_FFI_DataType_PRED; }
constexpr XLA_FFI_DataType TypeOf(int32_t) { return XLA_FFI_DataType_S32; }
constexpr XLA_FFI_DataType TypeOf(int64_t) { return XLA_FFI_DataType_S64; }
constexpr XLA_FFI_DataType TypeOf(float) { return XLA_FFI_DataType_F32; }
constexpr XLA_FFI_DataType TypeOf(double) { return XLA_FFI_DataType_F64; }

// A dictionary of attributes as structs of XLA's C ABI, sorted by name.
class AttributeList {
 public:
  explicit AttributeList(const Attributes& attributes) : nodes_(attributes.size()) {
    auto node = nodes_.begin();
    for (const auto& [name, value] : attributes) {
      node->name = {name.data(), name.size()};
      names_.push_back(&node->name);
      std::visit([&](const auto& v) { Add(*node, v); }, static_cast<const AttributeValue&>(value));
      ++node;
    }
    list_ = {XLA_FFI_Attrs_STRUCT_SIZE,
             nullptr,
             static_cast<int64_t>(nodes_.size()),
             types_.data(),
             names_.data(),
             values_.data()};
  }
  AttributeList(const AttributeList&) = delete;
  AttributeList& operator=(const AttributeList&) = delete;

  const XLA_FFI_Attrs& list() const { return list_; }

 private:
  struct Node {
    XLA_FFI_ByteSpan name;
    XLA_FFI_Scalar scalar;
    XLA_FFI_Array array;
    XLA_FFI_ByteSpan text;
    std::unique_ptr<AttributeList> dictionary;
  };

  void Add(XLA_FFI_AttrType type, void* value) {
    types_.push_back(type);
    values_.push_back(value);
  }
  template <typename T>
  void Add(Node& node, const T& scalar) {
    node.scalar = {TypeOf(scalar), const_cast<T*>(&scalar)};
    Add(XLA_FFI_AttrType_SCALAR, &node.scalar);
  }
  void Add(Node& node, const std::string& text) {
    node.text = {text.data(), text.size()};
    Add(XLA_FFI_AttrType_STRING, &node.text);
  }
  void Add(Node& node, const std::vector<int64_t>& array) {
    node.array = {XLA_FFI_DataType_S64, array.size(), const_cast<int64_t*>(array.data())};
    Add(XLA_FFI_AttrType_ARRAY, &node.array);
  }
  void Add(Node& node, const Attributes& dictionary) {
    node.dictionary = std::make_unique<AttributeList>(dictionary);
    Add(XLA_FFI_AttrType_DICTIONARY, &node.dictionary->list_);
  }

  std::vector<Node> nodes_;
  std::vector<XLA_FFI_AttrType> types_;
  std::vector<XLA_FFI_ByteSpan*> names_;
  std::vector<void*> values_;
  XLA_FFI_Attrs list_;
};

// The arguments or the results of a call as structs of XLA's C ABI. One template serves both, because XLA_FFI_Args and
// XLA_FFI_Rets differ only in the names of types.
template <typename List, typename Type>
class BufferList {
 public:
  BufferList(const std::vector<Buffer>& buffers, size_t list_size, Type type) : types_(buffers.size(), type) {
    buffers_.reserve(buffers.size());
    for (const Buffer& b : buffers) {
      buffers_.push_back({XLA_FFI_Buffer_STRUCT_SIZE, nullptr, b.dtype, b.data, static_cast<int64_t>(b.dims.size()),
                          const_cast<int64_t*>(b.dims.data())});
      pointers_.push_back(&buffers_.back());
    }
    list_ = {list_size, nullptr, static_cast<int64_t>(buffers.size()), types_.data(), pointers_.data()};
  }
  BufferList(const BufferList&) = delete;
  BufferList& operator=(const BufferList&) = delete;

  const List& list() const { return list_; }

 private:
  std::vector<XLA_FFI_Buffer> buffers_;
  std::vector<Type> types_;
  std::vector<void*> pointers_;
  List list_;
};

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Schedule(XLA_FFI_Task* task, void* data) {
  {
    std::lock_guard lock(mutex_);
    tasks_.emplace_back(task, data);
  }
  wake_.notify_one();
}

void ThreadPool::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const auto [task, data] = tasks_.front();
    tasks_.pop_front();
    lock.unlock();
    task(data);
    lock.lock();
  }
}

struct CallFrame::Storage {
  Storage(const Call& call, XLA_FFI_ExecutionStage stage, TaskRunner* pool)
      : context{pool},
        args(call.args, XLA_FFI_Args_STRUCT_SIZE, XLA_FFI_ArgType_BUFFER),
        results(call.results, XLA_FFI_Rets_STRUCT_SIZE, XLA_FFI_RetType_BUFFER),
        attributes(call.attributes),
        frame{XLA_FFI_CallFrame_STRUCT_SIZE,
              nullptr,
              &api,
              reinterpret_cast<OpaqueContext>(&context),
              stage,
              args.list(),
              results.list(),
              attributes.list(),
              nullptr} {}

  XLA_FFI_Api api = MakeApi();
  Context context;
  BufferList<XLA_FFI_Args, XLA_FFI_ArgType> args;
  BufferList<XLA_FFI_Rets, XLA_FFI_RetType> results;
  AttributeList attributes;
  XLA_FFI_CallFrame frame;
};

CallFrame::CallFrame(const Call& call, XLA_FFI_ExecutionStage stage, TaskRunner* pool)
    : storage_(std::make_unique<Storage>(call, stage, pool)) {}

CallFrame::~CallFrame() = default;

XLA_FFI_CallFrame* CallFrame::get() { return &storage_->frame; }

XLA_FFI_Api& CallFrame::api() { return storage_->api; }

Error Invoke(XLA_FFI_Handler* handler, CallFrame& frame) { return Take(handler(frame.get())); }

Error CheckVersion(XLA_FFI_Handler* handler) {
  XLA_FFI_Metadata metadata{};
  metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
  metadata.api_version.struct_size = XLA_FFI_Api_Version_STRUCT_SIZE;
  XLA_FFI_Metadata_Extension extension{{XLA_FFI_Metadata_Extension_STRUCT_SIZE, XLA_FFI_Extension_Metadata, nullptr},
                                       &metadata};
  const Call call;
  CallFrame frame(call, XLA_FFI_ExecutionStage_EXECUTE, nullptr);
  frame.get()->extension_start = &extension.extension_base;
  if (Error error = Invoke(handler, frame); !error.ok()) return error;
  const XLA_FFI_Api_Version& version = metadata.api_version;
  if (version.major_version == XLA_FFI_API_MAJOR && version.minor_version >= 1 &&
      version.minor_version <= XLA_FFI_API_MINOR) {
    return {};
  }
  return {XLA_FFI_Error_Code_INVALID_ARGUMENT, "the handler's API version " + std::to_string(version.major_version) +
                                                   "." + std::to_string(version.minor_version) +
                                                   " is not from 0.1 to " + std::to_string(XLA_FFI_API_MAJOR) + "." +
                                                   std::to_string(XLA_FFI_API_MINOR)};
}

Error Instantiate(XLA_FFI_Handler* handler, const Attributes& attributes) {
  const Call call{{}, {}, attributes};
  CallFrame frame(call, XLA_FFI_ExecutionStage_INSTANTIATE, nullptr);
  return Invoke(handler, frame);
}

Error Execute(XLA_FFI_Handler* handler, const Call& call, TaskRunner* pool) {
  CallFrame frame(call, XLA_FFI_ExecutionStage_EXECUTE, pool);
  return Invoke(handler, frame);
}

int64_t LiveErrors() { return live_errors; }

Library::Library(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) throw std::runtime_error(dlerror());
}

Library::~Library() { dlclose(handle_); }

void* Library::Symbol(const char* name) const {
  void* symbol = dlsym(handle_, name);
  if (symbol == nullptr) throw std::runtime_error(dlerror());
  return symbol;
}

}  // namespace raggemm::host
