# For ./dev, which sources it: the wheel, and its tests in environments that know nothing of this checkout.
wheels=$root/build/wheel
# The versions of jax and jaxlib that one wheel is tested with, the oldest first.
wheel_versions=(0.8.1 0.9.0 0.9.2 0.10.2)

# Leaves the sdist and the wheel in dist. The wheel is built from the sdist, with the packages that pyproject.toml
# names, and then given the shared libraries that a plain Linux lacks.
make_wheel() {
  local tools=$wheels/tools stamp=$wheels/.complete want
  debian_packages "${build_packages[@]}"
  mkdir -p "$wheels"
  python_environment "$tools" python/wheel/tools.txt "" "what makes the wheel into build/wheel/tools"
  want=$(hash_of CMakeLists.txt LICENSE README.md pyproject.toml cmake ffi include kernels proto python/raggemm)
  fresh "$stamp" "$want" && compgen -G "$root/dist/*.whl" >/dev/null && return
  say "building the sdist and from it the wheel (some minutes)"
  rm -rf "$root/dist" "$wheels/dist" "$stamp"
  "$tools/bin/python" -m build --outdir "$wheels/dist" "$root" >"$wheels/build.log" 2>&1 ||
    { tail -n 50 "$wheels/build.log" && die "building the wheel failed"; }
  PATH=$tools/bin:$PATH "$tools/bin/auditwheel" repair --wheel-dir "$root/dist" "$wheels"/dist/*.whl
  cp "$wheels"/dist/*.tar.gz "$root/dist"
  echo "$want" >"$stamp"
}

# Compiles what sees XLA's headers with those of the newest jaxlib, which is fetched, never installed.
compile_with_newest_headers() {
  local newest=$wheels/newest
  rm -rf "$newest"
  "$wheels/tools/bin/python" -m pip download --disable-pip-version-check --quiet --no-deps --only-binary=:all: \
    --python-version 3.13 --platform manylinux_2_27_x86_64 --dest "$newest" jaxlib
  "$python" -m zipfile -e "$newest"/jaxlib-*.whl "$newest"
  say "compiling the handlers with the headers of $(basename "$newest"/*.whl)"
  cmake -G Ninja -S "$root" -B "$newest/build" -DCMAKE_BUILD_TYPE=Debug -DRAGGEMM_BUILD_TESTS=OFF \
    -DRAGGEMM_BUILD_BENCH=OFF -DRAGGEMM_JAXLIB_INCLUDE="$newest/jaxlib/include" >"$newest/build.log"
  cmake --build "$newest/build" --target raggemm_ffi_objects
}

# The wheel with one version of jax: pip check, the demo and the tests, in a folder where nothing else is importable.
test_wheel_with() {
  local version=$1 folder=$wheels/jax-$1 requirements=build/wheel/jax-$1.txt
  sed "s/^\(jax\|jaxlib\)==.*/\1==$version/" "$root"/python/{requirements,wheel/neighbours}.txt >"$root/$requirements"
  python_environment "$folder" "$requirements" "" "jax $version into build/wheel/jax-$version"
  "$folder/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps --force-reinstall "$root"/dist/*.whl
  "$folder/bin/python" -m pip check
  rm -rf "$folder/run"
  mkdir "$folder/run"
  cp -r "$root/python/tests" "$root/python/examples" "$root/python/wheel" "$folder/run"
  (
    cd "$folder/run"
    "$folder/bin/python" -m pytest -n 2 --dist=loadfile --rootdir=. --strict-markers -q wheel tests
    "$folder/bin/python" -m raggemm.demo
  )
}

test_wheel() {
  local version
  make_wheel
  find_python
  for version in "${@:-${wheel_versions[@]}}"; do
    say "the wheel with jax $version"
    test_wheel_with "$version"
  done
  compile_with_newest_headers
  say "wheel: OK with jax ${*:-${wheel_versions[*]}}"
}
