#include "tests/fuzz/fuzz_call.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "ffi/decode.h"
#include "ffi/handlers.h"
#include "tests/ffi/bind.h"
#include "tests/oracle/reference.h"
#include "tests/oracle/values.h"

namespace raggemm::test {
namespace {

constexpr unsigned char kUnwritten = 0xFF;  // NaN in every type
constexpr unsigned char kFiller = 0x3C;     // a small number in every type
constexpr int64_t kMostBytes = 1 << 16;

int64_t ElementBytes(XLA_FFI_DataType dtype) {
  const Format* format = FormatOfXla(dtype);
  return format == nullptr ? 8 : SizeOf(format->dtype);  // 8: room for those that are not ours
}

void RequireReference(const host::Call& call) {
  host::CallFrame frame(call, XLA_FFI_ExecutionStage_EXECUTE, nullptr);
  const auto decoded = DecodeGemm(*frame.get());
  Require(decoded.ok(), "what was computed can be decoded");
  const Array& out = decoded->problem.out;
  if (ElementCount(out) == 0) return;  // of more groups, perhaps, than can be counted
  const absl::StatusOr<Reference> reference = ComputeReference(decoded->problem);
  Require(reference.ok(), "what was computed has a reference");
  for (size_t i = 0; i < reference->want.size(); ++i) {
    const double got = ToDouble(out, static_cast<int64_t>(i));
    const double error = ErrorInUnitsOfBound(got, reference->want[i], reference->bound[i], out.dtype);
    Require(error <= 1, "out is within its bound of the reference");
  }
}

}  // namespace

void Require(bool holds, absl::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", std::string(what).c_str());
  std::abort();
}

bool IsDefined(const host::Error& error) {
  switch (error.code) {
    case XLA_FFI_Error_Code_OK:
      return true;
    case XLA_FFI_Error_Code_INVALID_ARGUMENT:
    case XLA_FFI_Error_Code_FAILED_PRECONDITION:
      return !error.message.empty();
    default:
      std::fprintf(stderr, "code %d: %s\n", static_cast<int>(error.code), error.message.c_str());
      return false;
  }
}

int64_t BytesOf(const host::Buffer& buffer) {
  int64_t bytes = ElementBytes(buffer.dtype);
  for (int64_t dim : buffer.dims) {
    if (dim < 0) return -1;
    if (__builtin_mul_overflow(bytes, dim, &bytes)) bytes = kMostBytes + 1;  // a later dim may be 0
  }
  return bytes <= kMostBytes ? bytes : -1;
}

ExactCall::ExactCall(const std::vector<Operand>& args, const std::vector<Operand>& results,
                     host::Attributes attributes) {
  for (const Operand& operand : args) call_.args.push_back(Allocate(operand));
  for (const Operand& operand : results) call_.results.push_back(Allocate(operand));
  call_.attributes = std::move(attributes);
}

host::Buffer ExactCall::Allocate(const Operand& operand) {
  host::Buffer buffer = operand.buffer;
  buffer.data = nullptr;
  const int64_t bytes = BytesOf(buffer);
  if (bytes <= 0) return buffer;
  const auto kept = std::min(bytes, static_cast<int64_t>(operand.content.size()));
  unsigned char* data = memory_.emplace_back(new unsigned char[bytes]).get();
  std::copy_n(operand.content.begin(), kept, data);
  std::fill(data + kept, data + bytes, kFiller);
  buffer.data = data;
  return buffer;
}

void ExecuteAndCheck(const host::Call& call) {
  const host::Buffer& out = call.results[0];
  const int64_t bytes = out.data == nullptr ? 0 : std::max(BytesOf(out), int64_t{0});
  if (bytes > 0) std::memset(out.data, kUnwritten, bytes);
  const host::Error error = host::Execute(raggemm_grouped_gemm_v1_execute, call, nullptr);
  Require(IsDefined(error), "the answer is success or an error of the caller's");
  Require(host::LiveErrors() == 0, "every error was destroyed");
  if (error.ok()) {
    RequireReference(call);
  } else {
    const auto* begin = static_cast<const unsigned char*>(out.data);
    Require(std::all_of(begin, begin + bytes, [](unsigned char byte) { return byte == kUnwritten; }),
            "after an error out is untouched");
  }
}

}  // namespace raggemm::test
