# For ./dev, which sources it: another architecture, built by Debian's cross compiler and tested under qemu, on any
# x86-64 host. What qemu lacks is left out by name below.
aarch64_packages=(g++-aarch64-linux-gnu libabsl-dev:arm64 libgmock-dev:arm64 libgomp1:arm64 libgtest-dev:arm64
  libprotobuf-dev:arm64 qemu-user-static)

# PATTERN WHY
aarch64_left_out=(
  "ffi_huge_pages_test qemu keeps advice about memory to itself"
  "kernels_schedules_test tests/kernels/schedules.txt has those of x86"
  "ffi_load_thread_failures_test qemu does not live with the limits that it sets"
  "ffi_load_soak_test qemu itself takes more memory with each thread that begins"
)

test_aarch64() {
  local row pattern
  if ! dpkg --print-foreign-architectures | grep -qx arm64; then
    [[ $EUID -eq 0 ]] || die "as root: dpkg --add-architecture arm64"
    dpkg --add-architecture arm64
  fi
  debian_packages "${build_packages[@]}" "${aarch64_packages[@]}"
  python_packages_begin
  python_packages_end
  mkdir -p "$root/build"
  configure aarch64
  cd "$root"
  cmake --build --preset aarch64
  pattern=$(printf '%s\n' "${aarch64_left_out[@]}" | cut -d' ' -f1 | paste -sd '|')
  export RAGGEMM_TESTS_SLOWER=10 GTEST_FILTER='-*DeathTest.*'
  ctest --preset aarch64 ${pattern:+-E "$pattern"} || die "aarch64 FAILED"
  for row in "${aarch64_left_out[@]}" "*DeathTest.* qemu does not start a program anew"; do
    say "NOT covered under qemu: $row"
  done
  say "aarch64: OK"
}
