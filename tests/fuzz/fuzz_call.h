// What the libFuzzer targets share: calls of the handlers in this program, checked for what must hold of every call.
#ifndef RAGGEMM_TESTS_FUZZ_FUZZ_CALL_H_
#define RAGGEMM_TESTS_FUZZ_FUZZ_CALL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/host/mini_host.h"

namespace raggemm::test {

// Ends the program where `holds` is false: libFuzzer then keeps the input.
void Require(bool holds, absl::string_view what);

// Whether the handlers may answer so: success, or an error of the caller's that says what is wrong.
bool IsDefined(const host::Error& error);

// A buffer of a call and the values in it.
struct Operand {
  host::Buffer buffer;
  std::vector<unsigned char> content;
};

// A call whose buffers have exactly the bytes that their types and shapes say, so that the sanitizer sees the first
// byte beyond; null where these are too many to have, or none. Where the content is shorter, fixed bytes follow.
class ExactCall {
 public:
  ExactCall(const std::vector<Operand>& args, const std::vector<Operand>& results, host::Attributes attributes);
  const host::Call& call() const { return call_; }

 private:
  host::Buffer Allocate(const Operand& operand);

  host::Call call_;
  std::vector<std::unique_ptr<unsigned char[]>> memory_;
};

// The bytes of the buffer by its type and shape; -1 where they are too many to have or the shape is no shape.
int64_t BytesOf(const host::Buffer& buffer);

// Executes the call, whose results have `out` first, and requires: a defined answer; where it is an error, out is
// untouched; where it is success, out is within its bound of the float64 reference.
void ExecuteAndCheck(const host::Call& call);

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_FUZZ_FUZZ_CALL_H_
