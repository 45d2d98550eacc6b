# For ./dev, which sources it: Debian packages, Python environments, the C++ build, the installed package. What is done
# already is not done again.
build_packages=(ca-certificates cmake g++ libabsl-dev libbenchmark-dev libgmock-dev libgtest-dev libprotobuf-dev
  ninja-build protobuf-compiler)
# Competitors of the benchmark. bench/peers says why these builds; none needs to become the system's libblas.so.3.
peers=$root/build/peers
peer_packages=(libblis4-openmp libdnnl-dev libopenblas0-openmp)

# Succeeds if the text in $2 is what the stamp $1 holds, that is, if the step ran to its end on the same input.
fresh() { [[ -f $1 && $(<"$1") == "$2" ]]; }
hash_of() { (cd "$root" && find "$@" -type f -not -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum | sha256sum); }

debian_packages() {
  local package missing=()
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  [[ $EUID -eq 0 ]] || die "missing Debian packages; as root: apt-get install ${missing[*]}"
  say "installing Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q
  apt-get -o DPkg::Lock::Timeout=600 install -q -y --no-install-recommends "${missing[@]}"  # another may be at work
}

# Sets python to an interpreter that can make a .venv.
find_python() {
  python=${PYTHON:-python3}
  "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && return
  [[ -z ${PYTHON:-} ]] || die "PYTHON=$PYTHON is no Python >= 3.11 with venv and ensurepip"
  debian_packages python3 python3-venv
  python=/usr/bin/python3
}

# Makes a Python environment: ENVIRONMENT REQUIREMENTS WHAT-ELSE-IT-DEPENDS-ON WHAT-TO-SAY
# Any difference makes a new one, for one that was moved or interrupted half-way cannot be repaired reliably.
python_environment() {
  local want
  want=$(environment_state "$1" "$2" "$3")
  is_environment "$1" "$want" && return
  find_python
  say "installing $4"
  "$python" -m venv --clear "$1"
  pip_install "$1" -r "$root/$2"
  echo "$want" >"$1/.complete"
}
environment_state() { echo "$1 $(hash_of "$2")${3:+ $3}"; }
is_environment() { fresh "$1/.complete" "$2" && [[ -x $1/bin/python ]]; }
pip_install() { "$1/bin/python" -m pip install --disable-pip-version-check --no-deps "${@:2}"; }

# .venv. jaxlib first, whose headers the build reads; all other packages are installed beside what comes next, until
# python_packages_end. What pip says of them is in a log.
venv_pid=
python_packages_begin() {
  venv_want=$(venv_state)
  is_environment "$venv" "$venv_want" && return
  find_python
  say "installing jaxlib into .venv (some 10 s)"
  "$python" -m venv --clear "$venv"
  pip_install "$venv" --quiet --constraint "$root/python/requirements.txt" jaxlib
  say "installing the other Python packages into .venv, beside what follows (about 30 s)"
  pip_install "$venv" -r "$root/python/requirements.txt" >"$venv/pip.log" 2>&1 &
  venv_pid=$!
}
python_packages_end() {
  [[ -n $venv_pid ]] || return 0
  wait "$venv_pid" || { cat "$venv/pip.log" && die "installing Python packages failed"; }
  echo "$venv_want" >"$venv/.complete"
}
venv_state() { environment_state "$venv" python/requirements.txt ""; }

install_peers() {
  debian_packages "${peer_packages[@]}"
  python_environment "$peers" bench/peers/requirements.txt "$(dpkg-query -W "${peer_packages[@]}")" \
    "competitors into build/peers (2 GB)"
}

# PRESET. Warnings of g++ are errors in CI alone, for other versions of it warn of other things.
configure() {
  local tree=$root/build/$1 stamp=$root/build/$1/.complete strict=OFF want
  [[ $1 != release || ${CI:-} != true ]] || strict=ON
  want="$tree $strict $(venv_state) $(hash_of CMakePresets.json) $(cat "$peers/.complete" 2>/dev/null || true)"
  fresh "$stamp" "$want" && [[ -f $tree/build.ninja ]] && return
  say "configuring build/$1"
  (cd "$root" && cmake --fresh --preset "$1" -DRAGGEMM_JAXLIB_INCLUDE= -DRAGGEMM_WARNINGS_AS_ERRORS=$strict \
    -DPython_EXECUTABLE="$venv/bin/python" >"$tree.log" 2>&1) || { cat "$tree.log" && die "configuring failed"; }
  echo "$want" >"$stamp"
}

prepare() {
  debian_packages "${build_packages[@]}"
  python_packages_begin
  configure release
}

# With the seconds since the start in ninja's one line of progress, and where it knows them those that are left.
compile() {
  local left=
  [[ $(printf '%s\n' 1.12 "$(ninja --version)" | sort -V | head -n 1) != 1.12 ]] || left=", %E s left"
  (cd "$root" && NINJA_STATUS="[%f/%t, %e s$left] " cmake --build --preset release "$@")
}

# The wheel takes its shared libraries from build/release, so nothing is compiled for it. The links make the sources
# importable too, for they come first where Python runs in their folder.
python_install() {
  local stamp="$venv/.raggemm" want
  want=$(hash_of python/raggemm proto/cases pyproject.toml CMakeLists.txt build/release/lib/libraggemm_{ffi,proto}.so)
  fresh "$stamp" "$want" && return
  say "installing raggemm into .venv"
  rm -f "$stamp"
  ln -sfn ../../build/release/lib "$root/python/raggemm/lib"
  ln -sfn ../../proto/cases "$root/python/raggemm/cases"
  "$venv/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation \
    --force-reinstall --config-settings=build-dir="$build" "$root"
  echo "$want" >"$stamp"
}

# Everything up to an installed package, and these TARGETS of the build besides, of which all is one.
setup() {
  mkdir -p "$root/build"
  exec 9>"$root/build/.lock"
  flock --nonblock 9 || { say "waiting for another ./dev to set up" && flock 9; }
  prepare
  [[ -f $build/lib/libraggemm_ffi.so ]] || say "compiling ${*:-the libraries} (the libraries: a minute on two cores)"
  compile --target raggemm_ffi "$@"
  python_packages_end
  python_install
  exec 9>&-
} >&2
