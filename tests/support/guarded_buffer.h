// Buffers that detect accesses outside. Access beyond one end hits an unmapped page and crashes. A write beyond the
// other end is found afterwards.
#ifndef RAGGEMM_TESTS_SUPPORT_GUARDED_BUFFER_H_
#define RAGGEMM_TESTS_SUPPORT_GUARDED_BUFFER_H_

#include <cstddef>
#include <cstdint>

namespace raggemm::test {

// Side of a buffer with the unmapped page.
enum class Cliff : uint8_t { kBehind, kBefore };

// A buffer next to an unmapped page. data() is null if the buffer has no bytes. Do not construct buffers concurrently.
class GuardedBuffer {
 public:
  // Leaves `gap` bytes between the buffer and the unmapped page, so that buffers of round sizes start at odd addresses.
  explicit GuardedBuffer(size_t bytes, size_t gap = 0, Cliff cliff = Cliff::kBehind);
  GuardedBuffer(GuardedBuffer&& other) noexcept;
  GuardedBuffer& operator=(GuardedBuffer&&) = delete;
  ~GuardedBuffer();

  void* data() const { return data_; }
  size_t size() const { return bytes_; }
  // Returns true if the mapped bytes around the buffer have not changed.
  bool SurroundingsIntact() const;

 private:
  size_t bytes_, pages_;
  unsigned char* region_;  // pages_ mapped pages, with an unmapped page on each side.
  void* data_;
};

}  // namespace raggemm::test

#endif  // RAGGEMM_TESTS_SUPPORT_GUARDED_BUFFER_H_
