"""ejkernel: grouped_matmul, transposed_grouped_matmul and make_group_metadata of ejkernel 0.0.80; register().

Names, defaults and positional-only arguments are those of ejkernel.modules.operations.grouped_matmul and its kernels.
The semantics are those of the kernels for the platform "xla", which run on CPU by jax.lax.ragged_dot_general.
existing_out is added to every row. With group_offset, row 0 of lhs is the first row of group group_offset, as in the v3
kernel for CPU with rhs_bias. Deliberate differences:

- All functions support group_offset. On CPU, ejkernel supports it only in v3 with rhs_bias. An offset out of range is
  an error; v3 clamps it. A missing offset is a ValueError if rhs has fewer groups than group_sizes; v3 with rhs_bias
  takes 0.
- Rows after the last group are zero, or rows of existing_out. In v3 with rhs_bias they belong to the last group.
- A negative size, or sizes whose sum exceeds m, are an error at run time. ejkernel truncates them.
- NaN and Inf stay in their group.
- Nothing is tuned or cached.
- rhs may be a QuantizedTensor, or with rhs_scale have elements of quantized weights (int8, int4, float8, ...). Scales
  are applied to sums if possible, and have gradients.
- A platform other than "xla", or a dot algorithm as precision, is a NotImplementedError.
- An out_shard_callback without mesh, in_specs and out_specs is a ValueError.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from raggemm._src import checks
from raggemm._src.grouped_gemm import compute_product
from raggemm._src.operands import ArgNames, make_operands
from raggemm._src.quantization import attach_scale
from raggemm.compat.megablox import make_group_metadata
from raggemm.compat.megablox import tgmm as transposed_grouped_matmul

__all__ = ["grouped_matmul", "make_group_metadata", "register", "transposed_grouped_matmul"]

_ARGUMENT_NAMES = ArgNames(sizes="group_sizes", c="existing_out", bias="rhs_bias")


def _check_precision(precision: Any) -> None:
    """Raises NotImplementedError unless precision is None, a jax.lax.Precision, its name, or a pair of them."""
    try:
        lhs, rhs = precision if isinstance(precision, tuple | list) else (precision, precision)
        for x in (lhs, rhs):
            if x is not None:
                jax.lax.Precision(x)
    except ValueError:
        raise NotImplementedError(
            f"precision is {precision}, must be None, a jax.lax.Precision or its name, or a pair of them"
        ) from None


def _check_platform(platform: Any) -> None:
    if platform not in (None, "auto", "xla"):
        raise NotImplementedError(f'platform is {platform!r}, must be None, "auto" or "xla": raggemm runs on CPU')


def squeeze_bias(rhs_bias: Any) -> jax.Array:
    """Returns a bias [num_groups, 1, n] as [num_groups, n]."""
    rhs_bias = checks.as_array("rhs_bias", rhs_bias)
    if rhs_bias.ndim != 3 or rhs_bias.shape[1] != 1:
        raise ValueError(f"rhs_bias: shape is {rhs_bias.shape}, must be [num_groups, 1, n]")
    return rhs_bias[:, 0]


def _zero_other_sizes(rhs: Any, group_sizes: Any, group_offset: Any) -> jax.Array:
    """Sets the sizes of groups that are not in rhs to 0, so that row 0 of lhs belongs to the first group of rhs."""
    sizes, first = (
        checks.as_integer_array("group_sizes", group_sizes),
        checks.as_integer_array("group_offset", group_offset),
    )
    if sizes.ndim != 1 or jnp.ndim(rhs) != 3 or first.size != 1:
        return sizes  # compute_product rejects these arguments.
    group = jnp.arange(sizes.shape[0]) - first.reshape(()).astype(int)
    return jnp.where((group >= 0) & (group < jnp.shape(rhs)[0]), sizes, 0)


def _kernel_v3(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    preferred_element_type: Any = jnp.float32,
    tiling: Any = (128, 128, 128),
    group_offset: Any = None,
    existing_out: Any = None,
    rhs_scale: Any = None,
    rhs_bias: Any = None,
    transpose_rhs: bool = False,
    interpret: bool = False,
    precision: Any = jax.lax.Precision.DEFAULT,
) -> jax.Array:
    """Computes "grouped_matmulv3" with the signature of ejkernel's registry. tiling and interpret have no effect."""
    _check_precision(precision)
    if rhs_scale is not None:
        rhs = attach_scale(rhs, rhs_scale, transposed=transpose_rhs)
    dtype = jnp.float32 if preferred_element_type is None else preferred_element_type
    options = {"preferred_element_type": dtype, "group_offset": group_offset}
    if existing_out is not None:
        options["c"] = checks.as_float_array("existing_out", existing_out).astype(dtype)
    if rhs_bias is not None:
        options["bias"] = squeeze_bias(rhs_bias)
    if group_offset is not None:
        group_sizes = _zero_other_sizes(rhs, group_sizes, group_offset)
    return compute_product(
        _ARGUMENT_NAMES, *make_operands(lhs, rhs, group_sizes, (1, 2 if transpose_rhs else 1)), **options
    )


def _kernel(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    preferred_element_type: Any = jnp.float32,
    tiling: Any = (128, 128, 128),
    group_offset: Any = None,
    existing_out: Any = None,
    transpose_rhs: bool = False,
    interpret: bool = False,
    precision: Any = jax.lax.Precision.DEFAULT,
) -> jax.Array:
    return _kernel_v3(
        lhs,
        rhs,
        group_sizes,
        preferred_element_type,
        tiling,
        group_offset,
        existing_out,
        transpose_rhs=transpose_rhs,
        interpret=interpret,
        precision=precision,
    )


def grouped_matmul(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    group_offset: Any = None,
    existing_out: Any = None,
    /,
    *,
    preferred_element_type: Any = jnp.float32,
    rhs_scale: Any = None,
    rhs_bias: Any = None,
    transpose_rhs: bool = False,
    interpret: bool = False,
    do_padding: bool = True,
    precision: Any = jax.lax.Precision.DEFAULT,
    use_v2: bool = False,
    use_v3: bool = False,
    out_shard_callback: Callable[[jax.Array], jax.Array] | None = None,
    platform: str | None = None,
    cfg: Any = None,
    mesh: Any = None,
    in_specs: tuple | None = None,
    out_specs: Any = None,
) -> jax.Array:
    """Computes lhs[rows of group g] x rhs[g] for each group.

    Args:
      lhs, group_sizes: see raggemm.gmm.
      rhs: [num_groups, k, n], or [num_groups, n, k] with transpose_rhs: of the types of lhs, or a QuantizedTensor.
      group_offset: see raggemm.gmm. Sizes of groups that are not in rhs are ignored.
      existing_out: [m, n] of a float type, added to the result.
      preferred_element_type: dtype of the result. None means float32, also for float64 operands.
      rhs_scale: [num_groups, blocks, 1, n] or [num_groups, blocks, n], one scale per column n and block of k. Blocks
        have the same size. rhs may then have the types of a QuantizedTensor's data. ValueError without use_v3.
      rhs_bias: [num_groups, 1, n], added to the rows of its group. ValueError without use_v3.
      transpose_rhs: see rhs.
      precision: None, a jax.lax.Precision, its name, or a pair of them. No effect.
      out_shard_callback: applied to the result of each device. Needs mesh, in_specs and out_specs.
      platform: None, "auto" or "xla" (else NotImplementedError). The same holds for cfg.platform.
      mesh, in_specs, out_specs: all None, or all given: the call is then a shard_map over lhs, rhs and group_sizes.
      interpret, do_padding, use_v2, use_v3, cfg: no other effect.

    Returns:
      [m, n].
    """
    del do_padding
    if use_v2 and use_v3:
        raise ValueError("use_v2 and use_v3 are mutually exclusive, but both are set")
    if not use_v3 and (rhs_scale is not None or rhs_bias is not None):
        raise ValueError("rhs_scale and rhs_bias are only supported by grouped_matmulv3, with use_v3=True")
    _check_platform(platform)
    _check_platform(getattr(cfg, "platform", None))
    call = functools.partial(
        _kernel_v3,
        preferred_element_type=preferred_element_type,
        group_offset=group_offset,
        existing_out=existing_out,
        rhs_scale=rhs_scale,
        rhs_bias=rhs_bias,
        transpose_rhs=transpose_rhs,
        interpret=interpret,
        precision=precision,
    )
    sharding = {"mesh": mesh, "in_specs": in_specs, "out_specs": out_specs}
    missing = [name for name, value in sharding.items() if value is None]
    if not missing:
        callback = out_shard_callback or (lambda out: out)
        return jax.shard_map(lambda *args: callback(call(*args)), **sharding, check_vma=False)(lhs, rhs, group_sizes)
    if len(missing) < 3 or out_shard_callback is not None:
        raise ValueError(f"mesh, in_specs and out_specs must be given together, but {', '.join(missing)} is missing")
    return call(lhs, rhs, group_sizes)


def _use_on_cpu(kernel: Callable, fallback: Callable) -> Callable:
    """Returns a function that calls kernel if jax.default_backend() is the CPU, else fallback."""

    @functools.wraps(kernel)
    def call(*args, **kwargs):
        return (kernel if jax.default_backend() == "cpu" else fallback)(*args, **kwargs)

    return call


def register(priority: int = 1) -> None:
    """Makes ejkernel call raggemm on CPU for grouped_matmul, grouped_matmulv2 and, if it exists, grouped_matmulv3.

    Adds the functions to ejkernel's registry for the platform "xla". If jax.default_backend() is not the CPU,
    ejkernel's own kernels stay in use. A second call has no effect.

    Args:
      priority: priority in the registry. It must exceed the priority of ejkernel's kernels.

    Raises:
      ImportError: if ejkernel is not installed.
    """
    try:
        import ejkernel.kernels  # noqa: F401  registers ejkernel's own kernels
        from ejkernel.kernels._registry import kernel_registry
    except ImportError as error:
        raise ImportError("raggemm.compat.ejkernel.register() needs ejkernel, which cannot be imported") from error
    kernels: dict[str, Callable[..., Any]] = {
        "grouped_matmul": _kernel,
        "grouped_matmulv2": _kernel,
        "grouped_matmulv3": _kernel_v3,
    }
    for algorithm, kernel in kernels.items():
        if algorithm not in kernel_registry.list_algorithms():
            continue
        before = kernel_registry.get(algorithm, platform="xla", backend="any")
        if inspect.unwrap(before) is not kernel:
            kernel_registry.register(algorithm, "xla", "any", priority)(_use_on_cpu(kernel, before))
