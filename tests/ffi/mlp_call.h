// Calls raggemm_moe_mlp_v1 and raggemm_moe_mlp_backward_v1 of libraggemm_ffi.so like XLA, for a TestMlp or a
// TestMlpBackward of tests/support.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/ffi/plugin_call.h"
#include "tests/host/mini_host.h"
#include "tests/host/problem_call.h"
#include "tests/support/test_mlp.h"
#include "tests/support/test_mlp_backward.h"

namespace raggemm::test {

inline XLA_FFI_Handler* MlpHandler(const char* stage) {
  return ThePlugin().library.Find<XLA_FFI_Handler>(absl::StrCat("raggemm_moe_mlp_v1_", stage).c_str());
}

class MlpCall : public SpoiltCall {
 public:
  explicit MlpCall(const MlpSpec& spec)
      : mlp_(spec), expected_(SequenceBits(mlp_)), call_(host::MakeCall(mlp_.problem, mlp_.Workspace())) {
    mlp_.ClearOut();
  }

  TestMlp& mlp() { return mlp_; }
  const TestMlp& mlp() const { return mlp_; }
  host::Call& call() override { return call_; }

  host::Error Run(host::TaskRunner* pool) override {
    if (host::Error e = host::Instantiate(MlpHandler("instantiate"), call_.attributes); !e.ok()) return e;
    return Execute(pool);
  }
  host::Error Execute(host::TaskRunner* pool) override {
    mlp_.ClearOut();
    return host::Execute(MlpHandler("execute"), call_, pool);
  }

  testing::AssertionResult IsRight() const override {
    if (mlp_.OutBits() != expected_) return testing::AssertionFailure() << "out has other bits than the sequence";
    if (mlp_.SurroundingsIntact()) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "bytes outside a buffer have changed";
  }

  bool SurroundingsIntact() const override { return mlp_.SurroundingsIntact(); }
  bool OutIsUntouched() const override {
    const Array& out = mlp_.out.array;
    const auto* bytes = static_cast<const unsigned char*>(out.data);
    return std::all_of(bytes, bytes + BytesOf(out), [](unsigned char byte) { return byte == 0x55; });
  }

 private:
  TestMlp mlp_;
  std::vector<uint64_t> expected_;
  host::Call call_;
};

class MlpBackwardCall : public SpoiltCall {
 public:
  explicit MlpBackwardCall(const MlpSpec& spec)
      : test_(spec),
        workspace_(DType::kS64, {MoeMlpBackwardWorkspaceSize(test_.Extents())}),
        call_(host::MakeCall(test_.problem.forward, {})) {
    EXPECT_EQ(test_.Run({.executor = Executor::kSerial, .isa = Isa::kScalar}), absl::OkStatus());
    expected_ = test_.Bits();
    test_.ClearGradients();
    call_.args.insert(call_.args.begin() + 5, host::ToBuffer(test_.problem.forward.out));
    call_.results.clear();
    std::string results;
    for (const MlpGradientSlot& slot : kMlpGradientSlots) {
      const std::optional<Array>& x = test_.problem.gradients.*slot.gradient;
      if (!x) continue;
      absl::StrAppend(&results, results.empty() ? "" : ",", slot.name);
      call_.results.push_back(host::ToBuffer(*x));
    }
    call_.results.push_back(host::ToBuffer(workspace_.array));
    call_.attributes["results"] = results;
  }

  TestMlpBackward& test() { return test_; }
  host::Call& call() override { return call_; }

  static XLA_FFI_Handler* HandlerOf(const char* stage) {
    return ThePlugin().library.Find<XLA_FFI_Handler>(absl::StrCat("raggemm_moe_mlp_backward_v1_", stage).c_str());
  }
  host::Error Execute(host::TaskRunner* pool) override {
    test_.ClearGradients();
    return host::Execute(HandlerOf("execute"), call_, pool);
  }
  host::Error Run(host::TaskRunner* pool) override {
    if (host::Error e = host::Instantiate(HandlerOf("instantiate"), call_.attributes); !e.ok()) return e;
    return Execute(pool);
  }
  testing::AssertionResult IsRight() const override {
    if (test_.Bits() == expected_) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "gradients have other bits than those of scalar code";
  }
  bool SurroundingsIntact() const override { return test_.mlp.SurroundingsIntact(); }
  bool OutIsUntouched() const override {
    const std::vector<uint64_t> bits = test_.Bits();
    return std::all_of(bits.begin(), bits.end(), [](uint64_t x) { return (x & 0x5555) == 0x5555; });
  }

 private:
  TestMlpBackward test_;
  FloatTensor workspace_;
  std::vector<uint64_t> expected_;
  host::Call call_;
};

}  // namespace raggemm::test
