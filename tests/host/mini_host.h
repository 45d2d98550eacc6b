// Calls FFI handlers like XLA:CPU. Implements XLA's side of the C ABI: call frames, API functions, errors, and a thread
// pool.
#pragma once

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

// An argument or a result of a call. Tests may set `data` to null or to a misaligned address.
struct Buffer {
  XLA_FFI_DataType dtype = XLA_FFI_DataType_F32;
  std::vector<int64_t> dims;
  void* data = nullptr;
};

// The attributes of a call, sorted by name as in call frames. JAX passes integers as int64_t, so tests write int64_t{4}
// instead of 4.
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

class TaskRunner {
 public:
  virtual ~TaskRunner() = default;
  virtual int64_t num_threads() const = 0;
  virtual void Schedule(XLA_FFI_Task* task, void* data) = 0;
};

// A pool that starts tasks in their order. The destructor waits until all tasks have run.
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

// The call frame of a handler. `call` must outlive the frame.
class CallFrame {
 public:
  // If `pool` is null, the API's thread pool functions return errors.
  CallFrame(const Call& call, XLA_FFI_ExecutionStage stage, TaskRunner* pool);
  CallFrame(const CallFrame&) = delete;
  CallFrame& operator=(const CallFrame&) = delete;
  ~CallFrame();

  XLA_FFI_CallFrame* get();
  XLA_FFI_Api& api();  // Returns the table of API functions. Tests may replace entries.

 private:
  struct Storage;
  std::unique_ptr<Storage> storage_;
};

// Calls a handler. Returns a copy of its error, if any, and destroys the error object.
Error Invoke(XLA_FFI_Handler* handler, CallFrame& frame);

// Returns an error if this host does not support the FFI API version of the handler.
Error CheckVersion(XLA_FFI_Handler* handler);

// Calls a handler for the stage INSTANTIATE, without buffers, like XLA:CPU when it loads an executable.
Error Instantiate(XLA_FFI_Handler* handler, const Attributes& attributes);

Error Execute(XLA_FFI_Handler* handler, const Call& call, TaskRunner* pool);

// Returns the number of XLA_FFI_Error objects that exist.
int64_t LiveErrors();

// A shared library, loaded with RTLD_NOW | RTLD_LOCAL. The destructor closes it.
class Library {
 public:
  // Throws std::runtime_error with the message of dlopen if loading fails.
  explicit Library(const std::string& path);
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library();

  // Throws std::runtime_error if the library lacks the function.
  template <typename Function>
  Function* Find(const char* name) const {
    return reinterpret_cast<Function*>(Symbol(name));
  }

 private:
  void* Symbol(const char* name) const;

  void* handle_;
};

}  // namespace raggemm::host
