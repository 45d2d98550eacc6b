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
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  [[ $EUID -eq 0 ]] || die "missing Debian packages; as root: apt-get install ${missing[*]}"
  say "installing Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q
  apt-get install -q -y --no-install-recommends "${missing[@]}"
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
  local environment=$1 requirements=$2 stamp=$1/.complete want
  want="$environment $(hash_of "$requirements")${3:+ $3}"
  fresh "$stamp" "$want" && [[ -x $environment/bin/python ]] && return
  find_python
  say "installing $4"
  "$python" -m venv --clear "$environment"
  "$environment/bin/python" -m pip install --disable-pip-version-check --no-deps -r "$root/$requirements"
  echo "$want" >"$stamp"
}

python_packages() {
  python_environment "$venv" python/requirements.txt "" "Python packages into .venv (about a minute)"
}

install_peers() {
  debian_packages "${peer_packages[@]}"
  python_environment "$peers" bench/peers/requirements.txt "$(dpkg-query -W "${peer_packages[@]}")" \
    "competitors into build/peers (2 GB)"
}

# PRESET. Warnings of g++ are errors in CI alone, for other versions of it warn of other things.
configure() {
  local tree=$root/build/$1 stamp=$root/build/$1/.complete strict=OFF want
  [[ $1 != release || ${CI:-} != true ]] || strict=ON
  want="$tree $strict $(<"$venv/.complete") $(hash_of CMakePresets.json) $(cat "$peers/.complete" 2>/dev/null || true)"
  fresh "$stamp" "$want" && [[ -f $tree/build.ninja ]] && return
  say "configuring build/$1"
  (cd "$root" && cmake --fresh --preset "$1" -DRAGGEMM_JAXLIB_INCLUDE= -DRAGGEMM_WARNINGS_AS_ERRORS=$strict \
    -DPython_EXECUTABLE="$venv/bin/python" >"$tree.log" 2>&1) || { cat "$tree.log" && die "configuring failed"; }
  echo "$want" >"$stamp"
}

prepare() {
  debian_packages "${build_packages[@]}"
  python_packages
  configure release
}

compile() { (cd "$root" && cmake --build --preset release "$@"); }

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

setup() {
  mkdir -p "$root/build"
  exec 9>"$root/build/.lock"
  flock 9
  prepare
  compile
  python_install
  exec 9>&-
} >&2
