// Buffers that detect accesses outside of them. Accesses beyond one end hit an unmapped page and crash.
// SurroundingsIntact finds writes beyond the other end.
#pragma once

#include <cstddef>
#include <cstdint>

namespace raggemm::test {

// The side of a buffer on which the unmapped page lies.
enum class Cliff : uint8_t { kBehind, kBefore };

// A buffer next to an unmapped page. data() is null if the buffer has no bytes.
class GuardedBuffer {
 public:
  // Leaves `gap` bytes between the buffer and the unmapped page. With a gap of one element, a buffer of round size is
  // not aligned to vectors.
  explicit GuardedBuffer(size_t bytes, size_t gap = 0, Cliff cliff = Cliff::kBehind);
  GuardedBuffer(GuardedBuffer&& other) noexcept;
  GuardedBuffer& operator=(GuardedBuffer&&) = delete;
  ~GuardedBuffer();

  void* data() const { return data_; }
  size_t size() const { return bytes_; }
  // Returns true if no mapped byte around the buffer has changed since the buffer was made.
  bool SurroundingsIntact() const;

 private:
  size_t bytes_, pages_;
  unsigned char* region_;  // First of `pages_` mapped pages, which have an unmapped page on each side.
  void* data_;
};

}  // namespace raggemm::test
