# For ./dev, which sources it: the wheel, and its tests in environments that know nothing of this checkout.
wheels=$root/build/wheel
# The versions of jax and jaxlib that one wheel is tested with on this system's Python, the oldest first. The newest at
# all, which python/requirements.txt pins for a newer Python, has a root of Debian 13 to itself.
wheel_versions=(0.8.1 0.9.0 0.9.2 0.10.2)
# The versions whose headers the handlers and the mini host are built with, and the newest's: each version of XLA's FFI
# API, 0.2 to 0.5.
header_versions=(0.8.1 0.9.2 0.11.1)
debian_13=$wheels/debian-13
debian_13_packages=(python3 python3-venv)

# Leaves the sdist and the wheel in dist. The wheel is built from the sdist, with the packages that pyproject.toml
# names, and then given the shared libraries that a plain Linux lacks.
make_wheel() {
  local tools=$wheels/tools stamp=$wheels/.complete want
  debian_packages "${build_packages[@]}"
  mkdir -p "$wheels"
  python_environment "$tools" python/wheel/tools.txt "" "what makes the wheel into build/wheel/tools"
  want=$(hash_of CMakeLists.txt LICENSE README.md pyproject.toml cmake ffi include kernels proto python/raggemm)
  fresh "$stamp" "$want" && compgen -G "$root/dist/*_x86_64.whl" >/dev/null && return
  say "building the sdist and from it the wheel (some minutes)"
  rm -rf "$root/dist" "$wheels/dist" "$stamp"
  "$tools/bin/python" -m build --outdir "$wheels/dist" "$root" >"$wheels/build.log" 2>&1 ||
    { tail -n 50 "$wheels/build.log" && die "building the wheel failed"; }
  PATH=$tools/bin:$PATH "$tools/bin/auditwheel" repair --wheel-dir "$root/dist" "$wheels"/dist/*.whl
  cp "$wheels"/dist/*.tar.gz "$root/dist"
  echo "$want" >"$stamp"
}

# Builds what sees XLA's headers with those of one version of jaxlib, which is fetched, never installed, and runs the
# driver with them: VERSION. One build tree for all: the kernels see no such header.
test_headers_of() {
  local headers=$wheels/headers-$1 tree=$wheels/headers-build
  if [[ ! -d $headers ]]; then
    rm -rf "$headers.part"
    "$venv/bin/python" -m pip download --disable-pip-version-check --quiet --no-deps --only-binary=:all: \
      --python-version 3.13 --platform manylinux_2_27_x86_64 --dest "$headers.part" "jaxlib==$1"
    "$venv/bin/python" -m zipfile -e "$headers.part"/jaxlib-*.whl "$headers.part"
    mv "$headers.part/jaxlib/include" "$headers"
    rm -rf "$headers.part"
  fi
  say "the handlers and the driver with the headers of jaxlib $1"
  cmake -G Ninja -S "$root" -B "$tree" -DCMAKE_BUILD_TYPE=Debug -DRAGGEMM_BUILD_TESTS=OFF -DRAGGEMM_BUILD_BENCH=OFF \
    -DRAGGEMM_WARNINGS_AS_ERRORS=ON -DRAGGEMM_JAXLIB_INCLUDE="$headers" >"$tree.log"
  cmake --build "$tree" --target ffi_driver
  "$tree/bin/ffi_driver" --all --cases="$root/proto/cases/edge.textproto" | tail -n 1
}

# Our headers, each included alone, and XLA's of several versions.
test_headers() {
  local header version
  debian_packages "${build_packages[@]}"
  python_packages_begin
  python_packages_end
  mkdir -p "$wheels"
  for header in "$root"/include/raggemm/*.h; do
    say "${header#"$root"/} alone"
    g++ -std=c++20 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I "$root/include" -include "$header" -x c++ /dev/null
  done
  for version in "${header_versions[@]}" "$(newest_jax)"; do test_headers_of "$version"; done
  say "headers: OK"
}

# The newest version of jax, which python/requirements.txt pins for a newer Python.
newest_jax() { sed -n 's/^jax==\(.*\); python_version >= .*/\1/p' "$root/python/requirements.txt"; }

# Prints the files of Python tests that the wheel with a version of jax shall pass: VERSION SHARED. If that is yes, the
# two versions between the oldest and that of .venv run every other file each, and that of .venv, with which ./dev test
# runs all, those of the package alone.
wheel_tests() {
  local files=() first=0 step=1
  if [[ $2 == yes ]]; then
    case $1 in
      "${wheel_versions[1]}") step=2 ;;
      "${wheel_versions[2]}") first=1 step=2 ;;
      "${wheel_versions[3]}") printf '%s\n' tests/test_{package,load,same_bits}.py && return ;;
    esac
  fi
  files=("$root"/python/tests/test_*.py)
  for ((; first < ${#files[@]}; first += step)); do echo "tests/${files[first]##*/}"; done
}

# The wheel with one version of jax: pip check, the tests, and with the newest the demo, in a folder where the demo
# alone is importable beside it: VERSION ENVIRONMENT FILES-OF-TESTS...
test_wheel_with() {
  local version=$1 folder=$wheels/$2 requirements=build/wheel/$2.txt
  cat "$root"/python/{requirements,wheel/neighbours}.txt | grep -v '^jax\(lib\)\?==' >"$root/$requirements"
  printf '%s\n' "jax==$version" "jaxlib==$version" >>"$root/$requirements"
  python_environment "$folder" "$requirements" "" "jax $version into build/wheel/$2"
  "$folder/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps --force-reinstall \
    "$root"/dist/*_x86_64.whl
  "$folder/bin/python" -m pip check
  rm -rf "$folder/run"
  mkdir -p "$folder/run/docs"
  cp -r "$root"/python/{tests,examples,wheel} "$folder/run"
  cp "$root/docs/quantized.md" "$folder/run/docs"
  (
    cd "$folder/run"
    export PYTHONPATH=$root/bench/jax
    "$folder/bin/python" -m pytest -n 2 --dist=loadfile --rootdir=. --strict-markers -q wheel "${@:3}"
    [[ $version != "$(newest_jax)" ]] || "$folder/bin/python" -m raggemm_demo
  )
}

# Makes a root of Debian 13 with these packages in $debian_13, or sets why_not: PACKAGE...
make_debian_13() {
  why_not=
  if [[ $EUID -ne 0 ]]; then
    why_not="only root can make one"
    return
  fi
  if ! unshare --mount true 2>/dev/null; then
    why_not="this system lets nobody mount /proc, /dev and /sys in it"
    return
  fi
  fresh "$debian_13/.complete" "$*" && return
  debian_packages debootstrap
  say "making a root of Debian 13 in ${debian_13#"$root"/} (a minute or two)"
  rm -rf "$debian_13"
  mkdir -p "${debian_13%/*}"
  if ! { debootstrap --variant=minbase --include=ca-certificates trixie "$debian_13" &&
    in_debian_13 apt-get update &&
    in_debian_13 apt-get install -q -y --no-install-recommends "$@"; } >"$debian_13.log" 2>&1; then
    why_not="debootstrap or apt-get failed, see ${debian_13#"$root"/}.log"
    return
  fi
  echo "$*" >"$debian_13/.complete"
}

# Calls a program, a function of this file or one that is exported, in the root $debian_13, where the checkout has the
# path that it has here and the network is reached as from here: with this system's names, certificates and settings of
# pip. All of that is mounted for the one process alone.
in_debian_13() {
  export root wheels
  export -f say die fresh hash_of find_python python_environment environment_state is_environment pip_install
  export -f newest_jax test_wheel_with test_source
  # shellcheck disable=SC2016
  PATH=/usr/sbin:/usr/bin:/sbin:/bin PYTHON=/usr/bin/python3 DEBIAN_FRONTEND=noninteractive \
    unshare --mount bash -euc '
    mkdir -p "$0$root"
    touch "$0/etc/hosts" "$0/etc/pip.conf"
    mount -t proc proc "$0/proc"
    mount --rbind /dev "$0/dev"
    mount --rbind /sys "$0/sys"
    mount --bind "$root" "$0$root"
    for file in /etc/{hosts,resolv.conf,pip.conf,ssl/certs/ca-certificates.crt}; do
      [[ ! -f $file ]] || mount --bind "$file" "$0$file"
    done
    exec chroot "$0" bash -euo pipefail -c "\"\$@\"" bash "$@"' "$debian_13" "$@"
}

# Builds and tests the sources in /source: what ./dev test does, but for the checkers and for the Python package, whose
# wheel is tested in such a root, with the same Python and jax.
test_source() {
  local failed=()
  cd /source
  ./dev build
  ctest --preset release || failed+=(ctest)
  .venv/bin/python -m pytest -n 2 --dist=loadfile -q tests python/tests/test_{package,load,same_bits}.py ||
    failed+=(pytest)
  ((${#failed[@]} == 0)) || die "Debian 13 FAILED: ${failed[*]}"
}

# The sources on Debian 13, with its g++, in a root apart from that of the wheel, which has no compiler.
test_debian_13() {
  local debian_13=$root/build/debian-13 why_not
  make_debian_13 "${debian_13_packages[@]}" git  # which tests of ./dev use
  [[ -z $why_not ]] || not_run "Debian 13, which is tested in a root of its own: $why_not"
  mkdir -p "$debian_13/source"
  find "$debian_13/source" -mindepth 1 -maxdepth 1 ! -name build ! -name .venv -exec rm -rf {} +
  (cd "$root" && git ls-files -z --cached --others --exclude-standard | tar -c --null -T -) |
    tar -x -C "$debian_13/source"
  in_debian_13 test_source
  say "Debian 13: OK"
}

# SHARED VERSION...; without versions all.
test_wheel() {
  local version versions=("${@:2}") tested=() missing=() why_not files
  ((${#versions[@]})) || versions=("${wheel_versions[@]}" "$(newest_jax)")
  make_wheel
  find_python
  for version in "${versions[@]}"; do
    mapfile -t files < <(wheel_tests "$version" "$1")
    if [[ " ${wheel_versions[*]} " == *" $version "* ]]; then
      say "the wheel with jax $version"
      test_wheel_with "$version" "jax-$version" "${files[@]}"
    else
      make_debian_13 "${debian_13_packages[@]}"
      if [[ -n $why_not ]]; then
        missing+=("$version")
        say "NOT covered: jax $version, which is tested in a root of Debian 13: $why_not"
        continue
      fi
      say "the wheel with jax $version in a root of Debian 13"
      in_debian_13 test_wheel_with "$version" "debian-13-jax-$version" "${files[@]}"
    fi
    tested+=("$version")
  done
  ((${#tested[@]})) || not_run "jax ${missing[*]}: $why_not"
  say "wheel: OK with jax ${tested[*]}${missing:+; NOT covered: ${missing[*]}}"
}
