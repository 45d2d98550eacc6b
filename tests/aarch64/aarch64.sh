# For ./dev, which sources it: another architecture, built by Debian's cross compiler and tested under qemu, on any
# x86-64 host. What qemu lacks is left out by name below.
aarch64=$root/build/aarch64
aarch64_packages=(g++-aarch64-linux-gnu libabsl-dev:arm64 libgmock-dev:arm64 libgomp1:arm64 libgtest-dev:arm64
  libprotobuf-dev:arm64)
aarch64_test_packages=(libexpat1:arm64 libffi8:arm64 llvm-19 qemu-user-static zlib1g:arm64)

# PATTERN WHY
aarch64_left_out=(
  "AdviseHugePages qemu keeps advice about memory to itself"
  "PlanChoicesTest tests/kernels/plan_choices.txt has those of x86"
  "ThreadFailures qemu does not live with the limits that it sets"
  "Soak qemu itself takes more memory with each thread that begins"
)

# The Python tests that run there, in ten minutes.
aarch64_python_tests=(
  "test_package.py"
  "test_compat_megablox.py -k gmm"
  "test_override.py"
  "test_moe_mlp.py"
  "test_quantized_gemm.py"
)
# What these tests take of python/requirements.txt.
aarch64_requirements="jax|jaxlib|numpy|scipy|ml_dtypes|opt_einsum|flatbuffers|hypothesis|sortedcontainers|pytest"
aarch64_requirements+="|iniconfig|packaging|pluggy|Pygments"

# PACKAGE...
aarch64_debian_packages() {
  if ! dpkg --print-foreign-architectures | grep -qx arm64; then
    [[ $EUID -eq 0 ]] || die "as root: dpkg --add-architecture arm64"
    dpkg --add-architecture arm64
  fi
  debian_packages "${build_packages[@]}" "${aarch64_packages[@]}" "$@"
}

# The wheel for aarch64, made of the sdist of the other one.
make_aarch64_wheel() {
  local source=$wheels/sdist out=$wheels/dist-aarch64 stamp=$wheels/.aarch64 want
  make_wheel
  aarch64_debian_packages
  want="$(<"$wheels/.complete") $(sha256sum <"$root/cmake/aarch64.cmake")"
  fresh "$stamp" "$want" && compgen -G "$root/dist/*_aarch64.whl" >/dev/null && return
  say "building the wheel for aarch64 (some minutes)"
  rm -rf "$source" "$out" "$root"/dist/*_aarch64.whl
  mkdir "$source"
  tar -xzf "$root"/dist/*.tar.gz -C "$source" --strip-components=1
  "$wheels/tools/bin/python" -m build --wheel --outdir "$out" \
    -C cmake.define.CMAKE_TOOLCHAIN_FILE="$source/cmake/aarch64.cmake" "$source" >"$wheels/build-aarch64.log" 2>&1 ||
    { tail -n 50 "$wheels/build-aarch64.log" && die "building the wheel for aarch64 failed"; }
  # It was named after the machine that it was built on.
  "$wheels/tools/bin/python" -m wheel tags --remove --platform-tag=linux_aarch64 "$out"/*.whl
  PATH=$wheels/tools/bin:$PATH "$wheels/tools/bin/auditwheel" repair --wheel-dir "$root/dist" "$out"/*.whl
  echo "$want" >"$stamp"
}

# Python of aarch64 with the wheel and what its tests need, in build/aarch64-python: Debian's, unpacked, and wheels of
# the same versions as in .venv.
make_aarch64_python() {
  local folder=$root/build/aarch64-python want package platform platforms=()
  want="$(hash_of python/requirements.txt tests/aarch64) $(sha256sum "$root"/dist/*_aarch64.whl)"
  fresh "$folder/.complete" "$want" && return
  say "unpacking Python of aarch64 into build/aarch64-python"
  rm -rf "$folder"
  mkdir -p "$folder/system"
  (
    cd "$folder"
    apt-get download -q {python3.11,libpython3.11}-minimal:arm64 libpython3.11-stdlib:arm64
    for package in *.deb; do dpkg -x "$package" system; done
  )
  for platform in manylinux_2_{35,28,27,24,17} manylinux2014; do platforms+=(--platform "${platform}_aarch64"); done
  grep -E "^($aarch64_requirements)==" "$root/python/requirements.txt" >"$folder/requirements.txt"
  "$venv/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps --only-binary=:all: \
    --python-version 3.11 "${platforms[@]}" --target "$folder/site" -r "$folder/requirements.txt" \
    "$root"/dist/*_aarch64.whl
  # As the name of an interpreter, so that it can start itself.
  cat >"$folder/python" <<SCRIPT
#!/bin/sh
export PYTHONHOME=$folder/system/usr PYTHONPATH=$folder/site
exec qemu-aarch64-static -cpu max -0 "\$0" $folder/system/usr/bin/python3.11 "\$@"
SCRIPT
  chmod +x "$folder/python"
  echo "$want" >"$folder/.complete"
}

test_aarch64_python() {
  local row folder=$root/build/aarch64-python failed=()
  rm -rf "$folder/run"
  mkdir "$folder/run"
  cp -r "$root"/python/tests "$folder/run"
  cd "$folder/run/tests"
  for row in "${aarch64_python_tests[@]}"; do
    say "under qemu: $row"
    # shellcheck disable=SC2086  # words
    RAGGEMM_TESTS_SLOWER=10 "$folder/python" -m pytest -q --rootdir=.. -p no:cacheprovider $row || failed+=("$row")
  done
  ((${#failed[@]} == 0)) || die "Python on aarch64 FAILED: ${failed[*]}"
}

# Recorded checksums of x86, on cores of several abilities.
test_aarch64_checksums() {
  local cpu flags
  for cpu in max neoverse-n1 cortex-a72; do
    while read -r flags; do
      # shellcheck disable=SC2086  # words
      qemu-aarch64-static -cpu "$cpu" "$aarch64/bin/ffi_driver" --all --checksums $flags
    done < <(checksum_flags) | diff <(grep -v '^#' "$root/proto/cases/checksums.txt") - ||
      die "aarch64 FAILED: checksums as $cpu"
    say "checksums as $cpu: all as recorded"
  done
}

test_aarch64() {
  local row pattern
  aarch64_debian_packages "${aarch64_test_packages[@]}"
  python_packages_begin
  python_packages_end
  mkdir -p "$root/build"
  configure aarch64
  cd "$root"
  cmake --build --preset aarch64
  "$venv/bin/python" tests/aarch64/counted.py "$aarch64/kernels/CMakeFiles/raggemm.dir/isa" ||
    die "aarch64 FAILED: counted"
  test_aarch64_checksums
  pattern=$(printf '%s\n' "${aarch64_left_out[@]}" | cut -d' ' -f1 | paste -sd '|')
  export RAGGEMM_TESTS_SLOWER=10 GTEST_FILTER='-*DeathTest.*'
  ctest --preset aarch64 ${pattern:+-E "$pattern"} || die "aarch64 FAILED"
  unset RAGGEMM_TESTS_SLOWER GTEST_FILTER
  # Some 2,100 problems on two cores of Zen 4.
  printf 'max\nmax\n' | xargs -P 2 -I CPU qemu-aarch64-static -cpu CPU "$aarch64/bin/fuzz_problems" --seconds=180 ||
    die "aarch64 FAILED: random problems"
  make_aarch64_wheel
  make_aarch64_python
  (test_aarch64_python)
  for row in "${aarch64_left_out[@]}" "*DeathTest.* qemu does not start a program anew"; do
    say "NOT covered under qemu: $row"
  done
  say "aarch64: OK"
}
