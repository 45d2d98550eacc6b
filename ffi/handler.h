// The handlers of every custom call, as templates of a struct Call. They keep exceptions inside the library, answer
// errors as the attribute on_error says, and lend the call XLA's thread pool. A Call has:
//
//   Problem, Config      what the call computes, with its buffers (FillOutWithNaN takes it, too), and the message of
//                        its attributes in proto/config.proto, which has executor, isa, threads and on_error
//   Description()        its CustomCall
//   Apply(config, attributes, problem)         sets what the attributes say of the problem, or says what is wrong
//   Run(problem, options, workspace)           checks the problem and computes it
//   PlanOf(problem, options, workspace)        returns as text how the problem would be computed
#ifndef RAGGEMM_FFI_HANDLER_H_
#define RAGGEMM_FFI_HANDLER_H_

#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <new>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ffi/decode.h"
#include "raggemm/plan.h"
#include "xla/ffi/api/ffi.h"

namespace raggemm {

// XLA's intra-op pool. A task that starts late finds its own closure and nothing of XLA's: ffi::ThreadPool passes
// the pool a pointer to the closure, and this adapter is used while scheduling only.
class XlaTaskPool : public TaskPool {
 public:
  explicit XlaTaskPool(xla::ffi::ThreadPool pool) : pool_(pool) {}

  // 0 if this XLA has no pool.
  int64_t num_threads() const override { return pool_.num_threads(); }

  void Schedule(std::function<void()> task) override {
    try {
      pool_.Schedule(std::move(task));
    } catch (const std::bad_alloc&) {
      if (task) task();  // thrown before XLA took it
    }
  }

 private:
  xla::ffi::ThreadPool pool_;
};

// Returns what `call` returns, or, if it throws, what fail(code, message) returns.
template <typename Call, typename Fail>
auto ResultOf(Call call, Fail fail) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return fail(XLA_FFI_Error_Code_RESOURCE_EXHAUSTED, "raggemm: out of memory");
  } catch (const std::exception& e) {
    return fail(XLA_FFI_Error_Code_INTERNAL, e.what());
  } catch (...) {
    return fail(XLA_FFI_Error_Code_INTERNAL, "raggemm: unknown exception");
  }
}

// Returns the text that make_text returns, or that of its exception, for a caller in C that frees it with raggemm_free.
// Returns null if there is no memory for the text.
template <typename MakeText>
char* TextForC(MakeText make_text) {
  return ResultOf([&] { return strdup(make_text().c_str()); },
                  [](XLA_FFI_Error_Code, const char* message) { return strdup(message); });
}

// Applies on_error to a call that failed after it was decoded. Returns true if the call succeeds in spite of the error:
// on_error is NaN, and `fill` has filled out with NaN. NaN and LOG write the error as a line to stderr. Asks for no
// memory if it returns true. If this machine lacks something (FAILED_PRECONDITION), NaN is an error, too: other data
// would not help.
bool SucceedsAfter(XLA_FFI_Error_Code code, absl::string_view error, proto::GroupedGemmConfig::OnError::Value on_error,
                   absl::FunctionRef<absl::Status()> fill);

// Returns the text of a plan, as raggemm_plan_text and the driver have it: the CPU, then the plan.
std::string PlanText(const Plan& plan);

// Counts those who asked for plans and are not done (raggemm_record_plans).
inline constinit std::atomic<int32_t> plan_recorders{0};

// Records the text that `plan` returns, unless it is empty. If memory is short, the record is left out and the call
// goes on.
void RecordPlan(absl::FunctionRef<std::string()> plan);

// Runs a decoded call.
template <class Call>
absl::Status RunCall(Decoded<Call>& call, XlaTaskPool& pool, const xla::ffi::RemainingRets& results) {
  if (pool.num_threads() > 0) call.options.pool = &pool;  // else AUTO means OpenMP
  if (plan_recorders.load(std::memory_order_relaxed) > 0) {
    // No plan: Run says what is wrong.
    RecordPlan([&] { return Call::PlanOf(call.problem, call.options, call.workspace).value_or(""); });
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const xla::ffi::ErrorOr<xla::ffi::AnyBuffer> result = ResultAt(results, i);
    AdviseHugePages(result->untyped_data(), BytesOf(*result));
  }
  return Call::Run(call.problem, call.options, call.workspace);
}

// Decodes and runs a call. A call that cannot be decoded fails whatever on_error says.
template <class Call>
xla::ffi::Error ExecuteCall(xla::ffi::ThreadPool xla_pool, xla::ffi::RemainingArgs operands,
                            xla::ffi::RemainingRets results, xla::ffi::Dictionary attributes) {
  namespace ffi = ::xla::ffi;
  absl::StatusOr<Decoded<Call>> call = DecodeCall<Call>({operands, results, attributes});
  if (!call.ok()) return ToFfiError(call.status());
  const auto fail = [&](XLA_FFI_Error_Code code, absl::string_view message) {
    const auto fill = [&] { return FillOutWithNaN(call->problem, call->workspace); };
    if (SucceedsAfter(code, message, call->on_error, fill)) return ffi::Error::Success();
    return ffi::Error(static_cast<ffi::ErrorCode>(code), std::string(message));
  };
  const auto run = [&] {
    XlaTaskPool pool(xla_pool);
    const absl::Status status = RunCall(*call, pool, results);
    if (status.ok()) return ffi::Error::Success();
    return fail(static_cast<XLA_FFI_Error_Code>(status.code()), status.message());
  };
  return ResultOf(run, fail);
}

template <class Call>
xla::ffi::Error InstantiateCall(xla::ffi::Dictionary attributes) {
  return ToFfiError(DecodeAttributes<Call>(attributes).status());
}

// Calls the handler that `bind` makes at the first call. XLA_FFI_DEFINE_HANDLER_SYMBOL would let bad_alloc out, which
// ends XLA's process: XLA's headers allocate around the handler.
template <typename Bind>
XLA_FFI_Error* CallHandler(XLA_FFI_CallFrame* frame, Bind bind) {
  return ResultOf(
      [&] {
        static const auto* handler = bind().release();
        return handler->Call(frame);
      },
      [frame](XLA_FFI_Error_Code code, const char* message) {
        XLA_FFI_Error_Create_Args error{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message, code};
        return frame->api->XLA_FFI_Error_Create(&error);
      });
}

template <class Call>
XLA_FFI_Error* Instantiate(XLA_FFI_CallFrame* frame) {
  return CallHandler(frame, [] { return xla::ffi::Ffi::BindInstantiate().Attrs().To(InstantiateCall<Call>); });
}

template <class Call>
XLA_FFI_Error* Execute(XLA_FFI_CallFrame* frame) {
  return CallHandler(frame, [] {
    return xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>().RemainingArgs().RemainingRets().Attrs().To(
        ExecuteCall<Call>);
  });
}

}  // namespace raggemm

#endif  // RAGGEMM_FFI_HANDLER_H_
