// Calls of raggemm_moe_mlp_v1 of the shipped plugin through the host, for MLPs from tests/support.
#ifndef RAGGEMM_TESTS_FFI_MLP_CALL_H_
#define RAGGEMM_TESTS_FFI_MLP_CALL_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ffi/host/mini_host.h"
#include "ffi/host/problem_call.h"
#include "gtest/gtest.h"
#include "tests/ffi/plugin_call.h"
#include "tests/support/test_mlp.h"

namespace raggemm::test {

inline XLA_FFI_Handler* MlpHandler(const char* stage) {
  return ThePlugin().library.Find<XLA_FFI_Handler>(absl::StrCat("raggemm_moe_mlp_v1_", stage).c_str());
}

// An MLP, what must come out of it, and the call that computes it. All buffers are guarded.
class MlpCall {
 public:
  explicit MlpCall(const MlpSpec& spec)
      : mlp_(spec), expected_(SequenceBits(mlp_)), call_(host::MakeCall(mlp_.problem, mlp_.Workspace())) {}

  TestMlp& mlp() { return mlp_; }
  const TestMlp& mlp() const { return mlp_; }
  host::Call& call() { return call_; }  // tests may spoil it
  const host::Call& call() const { return call_; }

  // Clears out, instantiates, executes.
  host::Error Run(host::TaskRunner* pool) {
    mlp_.ClearOut();
    if (host::Error e = host::Instantiate(MlpHandler("instantiate"), call_.attributes); !e.ok()) return e;
    return host::Execute(MlpHandler("execute"), call_, pool);
  }

  testing::AssertionResult IsRight() const {
    if (mlp_.OutBits() != expected_) return testing::AssertionFailure() << "out has other bits than the sequence";
    if (mlp_.SurroundingsIntact()) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "bytes beside a buffer have changed";
  }

  // Whether every byte of out is as Run left it before it called the plugin.
  bool OutIsUntouched() const {
    const Array& out = mlp_.out.array;
    const auto* bytes = static_cast<const unsigned char*>(out.data);
    return std::all_of(bytes, bytes + BytesOf(out), [](unsigned char byte) { return byte == 0x55; });
  }

 private:
  TestMlp mlp_;
  std::vector<uint64_t> expected_;
  host::Call call_;
};

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_FFI_MLP_CALL_H_
