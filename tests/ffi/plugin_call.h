// Calls raggemm_grouped_gemm_v1 of libraggemm_ffi.so (the plugin) like XLA, with problems of tests/support.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "raggemm/plan.h"
#include "tests/host/mini_host.h"
#include "tests/host/problem_call.h"
#include "tests/host/run_case.h"
#include "tests/support/bits_rule.h"
#include "tests/support/problem_spec.h"

namespace raggemm::test {

// The plugin is loaded once and never closed, because tasks may still run after a test.
inline const host::Plugin& ThePlugin() {
  static const auto* plugin = new host::Plugin(RAGGEMM_FFI_LIBRARY);
  return *plugin;
}

// Returns the plan of the call in a frame as text, or the error message if the call is invalid.
inline std::string PlanText(XLA_FFI_CallFrame* frame) {
  char* text = ThePlugin().plan_text(frame);
  std::string copy = text;
  ThePlugin().free_text(text);
  return copy;
}

// Returns a ragged-M problem with c, bias, alpha, beta and group_offset. Only groups 1 to 3 of five are processed. Two
// of the 17 rows are in no group.
inline ProblemSpec EveryOperand() {
  return {.mode = RaggedMode::kRaggedM,
          .groups = 5,
          .m = 17,
          .n = 12,
          .k = 9,
          .sizes = {3, 4, 0, 6, 2},
          .sizes_type = DType::kS64,
          .c = true,
          .bias = true,
          .alpha = true,
          .beta = true,
          .group_offset = 1,
          .local_groups = 3};
}

inline ProblemSpec EveryOperandOfExperts() {
  ProblemSpec spec = EveryOperand();
  spec.activation = Activation::kSilu;
  spec.gate = DType::kF32;
  spec.lhs_rows = 7;
  return spec;
}

// A call of the plugin that a test may spoil (make invalid).
class SpoiltCall {
 public:
  virtual ~SpoiltCall() = default;
  virtual host::Call& call() = 0;
  // Returns success if all results are right and no byte around a buffer has changed.
  virtual testing::AssertionResult IsRight() const = 0;
  virtual bool OutIsUntouched() const = 0;
  virtual bool SurroundingsIntact() const = 0;
  // Clears the results, then calls the stage EXECUTE of the handler.
  virtual host::Error Execute(host::TaskRunner* pool) = 0;
  // Calls the stages INSTANTIATE and EXECUTE of the handlers, like XLA. Returns the first error.
  virtual host::Error Run(host::TaskRunner* pool) = 0;

  // Returns success if `error` has this code and all of the texts, and the call wrote nothing.
  testing::AssertionResult IsRefused(const host::Error& error, const std::vector<std::string>& texts,
                                     XLA_FFI_Error_Code code = XLA_FFI_Error_Code_INVALID_ARGUMENT) const;
};

// A problem in guarded buffers, its expected result, and its custom call. The workspace has exactly the required size.
class PluginCall : public SpoiltCall {
 public:
  explicit PluginCall(const ProblemSpec& spec) : PluginCall(TestProblem(spec), spec.cliff) {}
  explicit PluginCall(TestProblem problem, Cliff workspace_cliff = Cliff::kBehind)
      : problem_(std::move(problem)),
        workspace_(DType::kS64, {host::WorkspaceElements(problem_.problem, ThePlugin().workspace_coefficients)}, 0,
                   workspace_cliff),
        expected_(ExpectedOut(problem_.problem).value()),
        call_(host::MakeCall(problem_.problem, absl::MakeSpan(static_cast<int64_t*>(workspace_.buffer().data()),
                                                              workspace_.buffer().size() / sizeof(int64_t)))) {}

  TestProblem& problem() { return problem_; }
  const TestProblem& problem() const { return problem_; }
  host::Call& call() override { return call_; }

  host::Error Run(host::TaskRunner* pool) override {
    if (host::Error error = host::Instantiate(ThePlugin().instantiate, call_.attributes); !error.ok()) return error;
    return Execute(pool);
  }
  host::Error Execute(host::TaskRunner* pool) override {
    problem_.ClearOut();
    return ExecuteAsItIs(pool);
  }
  host::Error ExecuteAsItIs(host::TaskRunner* pool) { return host::Execute(ThePlugin().execute, call_, pool); }

  testing::AssertionResult IsRight() const override {
    if (testing::AssertionResult same = HasBits(problem_.problem.out, expected_); !same) return same;
    if (SurroundingsIntact()) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "bytes outside a buffer have changed";
  }

  bool SurroundingsIntact() const override {
    return problem_.SurroundingsIntact() && workspace_.buffer().SurroundingsIntact();
  }

  bool OutIsUntouched() const override {
    const Array& out = problem_.problem.out;
    const auto* bytes = static_cast<const unsigned char*>(out.data);
    return std::all_of(bytes, bytes + BytesOf(out), [](unsigned char byte) { return byte == 0xFF; });
  }

 private:
  TestProblem problem_;
  Tensor workspace_;
  std::vector<double> expected_;
  host::Call call_;
};

// Gives a TaskPool of tests/support the interface of the host's thread pools.
class RunnerOf : public host::TaskRunner {
 public:
  explicit RunnerOf(TaskPool& pool) : pool_(pool) {}
  int64_t num_threads() const override { return pool_.num_threads(); }
  void Schedule(XLA_FFI_Task* task, void* data) override {
    pool_.Schedule([task, data] { task(data); });
  }

 private:
  TaskPool& pool_;
};

class ThrowingRunner : public host::TaskRunner {
 public:
  explicit ThrowingRunner(std::function<void()> fail) : fail_(std::move(fail)) {}
  int64_t num_threads() const override {
    fail_();
    return 1;
  }
  void Schedule(XLA_FFI_Task*, void*) override {}

 private:
  std::function<void()> fail_;
};

}  // namespace raggemm::test
