// The handlers of every custom call: the border that nothing thrown crosses, answers by on_error, XLA's threads. They
// are templates of a struct Call:
//
//   Problem, Config      what it computes, into which buffers go (FillOutWithNaN takes it too), and the message of its
//                        attributes in proto/config.proto, which has executor, isa, threads and on_error
//   Description()        its CustomCall
//   Apply(config, attributes, problem)         what the attributes say of the problem, or what is wrong with them
//   Run(problem, options, workspace)           checks it and computes it
//   PlanOf(problem, options, workspace)        how it would be computed, as text
#ifndef RAGGEMM_FFI_HANDLER_H_
#define RAGGEMM_FFI_HANDLER_H_

#include <cstdint>
#include <exception>
#include <functional>
#include <new>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ffi/buffers.h"
#include "ffi/call_frame.h"
#include "ffi/custom_call.h"
#include "ffi/decode.h"
#include "ffi/huge_pages.h"
#include "ffi/on_error.h"
#include "ffi/plan_records.h"
#include "raggemm/plan.h"
#include "xla/ffi/api/ffi.h"

namespace raggemm {

// XLA's intra-op pool. A task that starts late finds its own closure and nothing of XLA's: ffi::ThreadPool passes
// the pool a pointer to the closure, and this adapter is used while scheduling only.
class XlaTaskPool : public TaskPool {
 public:
  explicit XlaTaskPool(xla::ffi::ThreadPool pool) : pool_(pool) {}

  // 0 where this XLA has no pool.
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

// What `call` returns; where it throws, what fail(code, message) returns.
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

// What `compute` comes to, by its status or by what it throws, and by the call's attribute on_error.
template <typename Call, typename Compute>
xla::ffi::Error AnswerOf(const Call& call, Compute compute) {
  namespace ffi = ::xla::ffi;
  const auto fail = [&](XLA_FFI_Error_Code code, absl::string_view message) {
    const auto fill = [&] { return FillOutWithNaN(call.problem, call.workspace); };
    if (SucceedsAfter(code, message, call.on_error, fill)) return ffi::Error::Success();
    return ffi::Error(static_cast<ffi::ErrorCode>(code), std::string(message));
  };
  return ResultOf(
      [&] {
        const absl::Status status = compute();
        return status.ok() ? ffi::Error::Success()
                           : fail(static_cast<XLA_FFI_Error_Code>(status.code()), status.message());
      },
      fail);
}

// XLA's headers see checked frames only, and nothing thrown below it, by them included, leaves the library.
template <typename Call>
XLA_FFI_Error* Guard(const XLA_FFI_CallFrame* frame, const Signature& signature, Call call) {
  const XLA_FFI_Api* api = ApiOf(frame);
  const auto make_error = [api](XLA_FFI_Error_Code code, const char* message) {
    XLA_FFI_Error_Create_Args error{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message, code};
    return api->XLA_FFI_Error_Create(&error);
  };
  return ResultOf(
      [&] {
        absl::StatusOr<XLA_FFI_CallFrame> checked = CheckedCallFrame(frame, signature);
        if (checked.ok()) return call(&*checked);
        return make_error(XLA_FFI_Error_Code_INVALID_ARGUMENT, std::string(checked.status().message()).c_str());
      },
      make_error);
}

inline Signature SignatureOf(const CustomCall& call) {
  return {XLA_FFI_ExecutionStage_EXECUTE, call.least_operands(), call.most_operands(), call.least_results(),
          call.most_results()};
}

template <class Call>
XLA_FFI_Error* Instantiate(const XLA_FFI_CallFrame* frame) {
  namespace ffi = ::xla::ffi;
  return Guard(frame, {XLA_FFI_ExecutionStage_INSTANTIATE}, [](XLA_FFI_CallFrame* f) {
    static const auto* handler =
        ffi::Ffi::BindInstantiate()
            .Attrs()
            .To([](ffi::Dictionary attributes) { return ToFfiError(DecodeAttributes<Call>(attributes).status()); })
            .release();
    return handler->Call(f);
  });
}

// A handler that calls with_call(call, pool, results).
template <class Call, typename WithCall>
auto Bound(WithCall with_call) {
  namespace ffi = ::xla::ffi;
  return ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets().Attrs().To(
      [=](ffi::ThreadPool xla_pool, ffi::RemainingArgs operands, ffi::RemainingRets results,
          ffi::Dictionary attributes) {
        absl::StatusOr<Decoded<Call>> call = DecodeCall<Call>({operands, results, attributes});
        XlaTaskPool pool(xla_pool);
        return with_call(call, pool, results);
      });
}

// Lets a call have a pool that has threads; otherwise AUTO means OpenMP.
inline void SetPool(XlaTaskPool& pool, Options& options) {
  if (pool.num_threads() > 0) options.pool = &pool;
}

template <class Call>
XLA_FFI_Error* Execute(const XLA_FFI_CallFrame* frame) {
  namespace ffi = ::xla::ffi;
  return Guard(frame, SignatureOf(Call::Description()), [](XLA_FFI_CallFrame* f) {
    static const auto* handler =
        Bound<Call>([](absl::StatusOr<Decoded<Call>>& call, XlaTaskPool& pool, const ffi::RemainingRets& results) {
          if (!call.ok()) return ToFfiError(call.status());
          return AnswerOf(*call, [&] {
            SetPool(pool, call->options);
            if (RecordsPlans()) {
              RecordPlan([&] {
                return Call::PlanOf(call->problem, call->options, call->workspace)
                    .value_or("");  // Run says what is wrong
              });
            }
            for (size_t i = 0; i < results.size(); ++i) {
              const ffi::ErrorOr<ffi::AnyBuffer> result = ResultAt(results, i);
              AdviseHugePages(result->untyped_data(), BytesOf(*result));
            }
            return Call::Run(call->problem, call->options, call->workspace);
          });
        }).release();
    return handler->Call(f);
  });
}

}  // namespace raggemm

#endif  // RAGGEMM_FFI_HANDLER_H_
