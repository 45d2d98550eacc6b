// The other side of XLA's C ABI, in the smallest form that can call a handler as XLA:CPU does: call frames, the API
// that a handler needs, errors, and a pool of threads. Knows the C header and nothing of any handler.
#ifndef RAGGEMM_TESTS_HOST_MINI_HOST_H_
#define RAGGEMM_TESTS_HOST_MINI_HOST_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "xla/ffi/api/c_api.h"

namespace raggemm::host {

struct Error {
  XLA_FFI_Error_Code code = XLA_FFI_Error_Code_OK;
  std::string message;
  bool ok() const { return code == XLA_FFI_Error_Code_OK; }
};

// `data` is the caller's and may be anything, null and misaligned included: handlers must cope.
struct Buffer {
  XLA_FFI_DataType dtype = XLA_FFI_DataType_F32;
  std::vector<int64_t> dims;
  void* data = nullptr;
};

// An attribute; integers are int64_t as in JAX (write int64_t{4}). A map, because frames list attributes by name.
struct Attribute;
using Attributes = std::map<std::string, Attribute>;
using AttributeValue =
    std::variant<bool, int32_t, int64_t, float, double, std::string, std::vector<int64_t>, Attributes>;
struct Attribute : AttributeValue {
  using AttributeValue::variant;
};

struct Call {
  std::vector<Buffer> args;
  std::vector<Buffer> results;
  Attributes attributes;
};

// What runs the tasks that a handler schedules.
class TaskRunner {
 public:
  virtual ~TaskRunner() = default;
  virtual int64_t num_threads() const = 0;
  virtual void Schedule(XLA_FFI_Task* task, void* data) = 0;
};

// Runs tasks in the order in which they came. The destructor waits for all of them.
class ThreadPool : public TaskRunner {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool() override;
  int64_t num_threads() const override { return static_cast<int64_t>(threads_.size()); }
  void Schedule(XLA_FFI_Task* task, void* data) override;

 private:
  void Work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<XLA_FFI_Task*, void*>> tasks_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

// The frame of one stage of a call. Points into `call`, which must outlive it.
class CallFrame {
 public:
  // Without a pool, the API's thread pool functions fail.
  CallFrame(const Call& call, XLA_FFI_ExecutionStage stage, TaskRunner* pool);
  CallFrame(const CallFrame&) = delete;
  CallFrame& operator=(const CallFrame&) = delete;
  ~CallFrame();

  XLA_FFI_CallFrame* get();
  XLA_FFI_Api& api();  // the frame's own copy

 private:
  struct Storage;
  std::unique_ptr<Storage> storage_;
};

// Calls the handler and takes over its error.
Error Invoke(XLA_FFI_Handler* handler, CallFrame& frame);

// What XLA does when a handler is registered: asks for the version of the handler's API and compares it with its own.
Error CheckVersion(XLA_FFI_Handler* handler);

// Does what XLA:CPU does when an executable is loaded: attributes only, no buffers.
Error Instantiate(XLA_FFI_Handler* handler, const Attributes& attributes);

Error Execute(XLA_FFI_Handler* handler, const Call& call, TaskRunner* pool);

// Errors that handlers or the API created and nobody destroyed.
int64_t LiveErrors();

// A shared library, loaded with RTLD_NOW | RTLD_LOCAL and closed by the destructor.
class Library {
 public:
  // Throws std::runtime_error with dlopen's message.
  explicit Library(const std::string& path);
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library();

  // The function of that name. Throws std::runtime_error where there is none.
  template <typename Function>
  Function* Find(const char* name) const {
    return reinterpret_cast<Function*>(Symbol(name));
  }

 private:
  void* Symbol(const char* name) const;

  void* handle_;
};

}  // namespace raggemm::host

#endif  // RAGGEMM_TESTS_HOST_MINI_HOST_H_
