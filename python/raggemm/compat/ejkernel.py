"""ejkernel: grouped_matmul, transposed_grouped_matmul and make_group_metadata of ejkernel 0.0.80; register().

Names, defaults and positional-only arguments are those of ejkernel.modules.operations.grouped_matmul and of the kernels
under it. On CPU ejkernel runs its kernels for the platform "xla", on jax.lax.ragged_dot_general, and their semantics
are the ones here: existing_out is added to the result, everywhere. (Its TPU kernels overwrite the rows of the groups.)
With a group_offset the rows of lhs are those of its own groups alone: row 0 is the first one of group group_offset, as
its v3 kernel for CPU with rhs_bias has it. Deliberate differences:

- group_offset works in all of them, where all but v3 with rhs_bias raise on CPU. One that is out of range is an error,
  where v3 takes the nearest that is in range. One that is left out where rhs has fewer groups than group_sizes is a
  ValueError, where v3 with rhs_bias takes 0.
- Rows behind those of the groups are zero, or existing_out's; in v3 with rhs_bias they belong to the last group.
- Sizes whose sum exceeds m are an error when running, where they are cut off; so is a negative one.
- NaN and Inf stay in their group.
- Nothing is tuned and nothing cached: cfg, tiling, do_padding, use_v2 and use_v3 choose among kernels that have one
  result here.
- rhs may have the elements of quantized weights where there is a rhs_scale (int8, int4, float8, ...), and be a
  QuantizedTensor without one. Scales multiply sums where they can, and have gradients.
- A platform other than "xla" and a precision that is a dot algorithm are a NotImplementedError.
- An out_shard_callback without mesh, in_specs and out_specs is a ValueError; there it is not called.
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


_WORDS = ArgNames(sizes="group_sizes", c="existing_out", bias="rhs_bias")


def _check_precision(precision: Any) -> None:
    """Products are exact and sums are made in float32 or float64, which honours every Precision, but no algorithm that
    rounds its operands."""
    try:
        lhs, rhs = precision if isinstance(precision, tuple | list) else (precision, precision)
        for one in (lhs, rhs):
            if one is not None:
                jax.lax.Precision(one)
    except ValueError:
        raise NotImplementedError(
            f"precision is {precision}, must be None, a jax.lax.Precision or its name, or a pair of them"
        ) from None


def _check_platform(platform: Any) -> None:
    if platform not in (None, "auto", "xla"):
        raise NotImplementedError(f'platform is {platform!r}, must be None, "auto" or "xla": raggemm runs on CPU')


def bias_of_groups(rhs_bias: Any) -> jax.Array:
    """[num_groups, n]"""
    rhs_bias = checks.as_array("rhs_bias", rhs_bias)
    if rhs_bias.ndim != 3 or rhs_bias.shape[1] != 1:
        raise ValueError(f"rhs_bias: shape is {rhs_bias.shape}, must be [num_groups, 1, n]")
    return rhs_bias[:, 0]


def _local(rhs: Any, group_sizes: Any, group_offset: Any) -> jax.Array:
    """group_sizes without the rows of groups that rhs is not for, so that the first row is the first local group's."""
    sizes, first = (
        checks.as_integer_array("group_sizes", group_sizes),
        checks.as_integer_array("group_offset", group_offset),
    )
    if sizes.ndim != 1 or jnp.ndim(rhs) != 3 or first.size != 1:
        return sizes  # the product refuses them
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
    """Computes ejkernel's "grouped_matmulv3", as its registry calls it; tiling and interpret are without effect."""
    _check_precision(precision)
    if rhs_scale is not None:
        rhs = attach_scale(rhs, rhs_scale, transposed=transpose_rhs)
    dtype = jnp.float32 if preferred_element_type is None else preferred_element_type
    options = {"preferred_element_type": dtype, "group_offset": group_offset}
    if existing_out is not None:
        options["c"] = checks.as_float_array("existing_out", existing_out).astype(dtype)
    if rhs_bias is not None:
        options["bias"] = bias_of_groups(rhs_bias)
    if group_offset is not None:
        group_sizes = _local(rhs, group_sizes, group_offset)
    return compute_product(_WORDS, *make_operands(lhs, rhs, group_sizes, (1, 2 if transpose_rhs else 1)), **options)


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
    """Computes ejkernel's "grouped_matmul" and "grouped_matmulv2", as its registry calls them."""
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
    """lhs[rows of group g] x rhs[g] for each group.

    Args:
      lhs: [m, k], float16, bfloat16, float32 or float64, as is rhs.
      rhs: [num_groups, k, n]; with transpose_rhs [num_groups, n, k].
      group_sizes: [total groups], int32, int64 or uint32, the rows of each group. Their sum may be less than m.
      group_offset: integer, () or (1,): the group in group_sizes that rhs[0] and row 0 of lhs are for, where rhs has
        fewer. The sizes of other groups are not read.
      existing_out: [m, n] of a float type, added to the result.
      preferred_element_type: dtype of the result; None means float32, for float64 operands too.
      rhs_scale: [num_groups, blocks, 1, n], or without the axis of 1: the elements of each n of so many blocks of k
        share a value, by which rhs is multiplied; with use_v3 only, else ValueError. rhs is of floats then, or of the
        types of a QuantizedTensor's data.
      rhs_bias: [num_groups, 1, n], added to the rows of its group; with use_v3 only, else ValueError.
      transpose_rhs: whether the matrices of rhs are stored transposed.
      precision: None, a jax.lax.Precision or its name; products are exact and sums are made in float32 or float64.
      out_shard_callback: with mesh, in_specs and out_specs: applied to each device's result.
      platform: None, "auto" or "xla", as cfg.platform.
      mesh, in_specs, out_specs: with all three the call is a shard_map over lhs, rhs and group_sizes.
      interpret, do_padding, use_v2, use_v3, cfg: without effect, but for what is said above.

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
        done = out_shard_callback or (lambda out: out)
        return jax.shard_map(lambda *args: done(call(*args)), **sharding, check_vma=False)(lhs, rhs, group_sizes)
    if len(missing) < 3 or out_shard_callback is not None:
        raise ValueError(f"mesh, in_specs and out_specs must be given together, but there is no {', '.join(missing)}")
    return call(lhs, rhs, group_sizes)


def _on_cpu(kernel: Callable, otherwise: Callable) -> Callable:
    """kernel where jax.default_backend(), by which ejkernel chooses, is the CPU."""

    @functools.wraps(kernel)
    def chosen(*args, **kwargs):
        return (kernel if jax.default_backend() == "cpu" else otherwise)(*args, **kwargs)

    return chosen


def register(priority: int = 1) -> None:
    """Makes ejkernel itself call raggemm on CPU: grouped_matmul, grouped_matmulv2 and, where it has that, v3.

    They enter its registry for the platform "xla" with a priority above its own kernels', which stay in use where
    jax.default_backend() is not the CPU. A second call changes nothing. ImportError if ejkernel is not installed.
    """
    try:
        import ejkernel.kernels  # noqa: F401  registers its own
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
            kernel_registry.register(algorithm, "xla", "any", priority)(_on_cpu(kernel, before))
