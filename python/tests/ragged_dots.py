"""Dimension numbers of jax.lax.ragged_dot_general in an einsum-like notation, and their float64 oracle.

The form "bmk,gbkn->bmn, m" names the axes of lhs, rhs and the result, and then the ragged axis. g is always the group
axis. Axes of both operands are batch axes if the result has them, and contracted axes if not.
"""

import dataclasses

import jax
import numpy as np
import oracle

EXTENTS = {"b": 2, "c": 3, "m": 9, "x": 2, "y": 3, "k": 9, "l": 4, "n": 5, "p": 2, "g": 3}


@dataclasses.dataclass(frozen=True)
class Form:
    text: str

    def __str__(self):
        return self.text

    @property
    def letters(self) -> tuple[str, str, str, str]:
        """Returns the letters of the axes of lhs, rhs and the result, and of the ragged axis."""
        product, ragged = self.text.split(", ")
        operands, out = product.split("->")
        return (*operands.split(","), out, ragged)

    @property
    def numbers(self) -> jax.lax.RaggedDotDimensionNumbers:
        lhs, rhs, out, ragged = self.letters
        both = [a for a in lhs if a in rhs]
        contract, batch = ([a for a in both if (a in out) == wanted] for wanted in (False, True))
        return jax.lax.RaggedDotDimensionNumbers(
            dot_dimension_numbers=tuple(
                tuple([x.index(a) for a in axes] for x in (lhs, rhs)) for axes in (contract, batch)
            ),
            lhs_ragged_dimensions=[lhs.index(ragged)],
            rhs_group_dimensions=[rhs.index("g")] if "g" in rhs else [],
        )

    @property
    def _outer(self) -> str:
        """Returns the letters of the axes that group_sizes may have before the group axis."""
        lhs, rhs, out, ragged = self.letters
        batch = [a for a in lhs if a in rhs and a in out]
        if ragged in batch:
            return "".join(batch[: batch.index(ragged)])
        same_kind = [a for a in lhs if (a in rhs) == (ragged in rhs) and a not in batch]
        return "".join([*batch, *same_kind[: same_kind.index(ragged)]])

    def operands(self, dtype=np.float32, sizes_per_batch=True) -> list[np.ndarray]:
        """Returns random lhs, rhs and group sizes. Sizes may sum to less than the extent of the ragged axis.

        sizes_per_batch: True gives each index of the batch and outer axes its own group sizes.
        """
        rng = np.random.default_rng(3)
        lhs, rhs, _, ragged = self.letters
        lead = [EXTENTS[a] for a in self._outer] if sizes_per_batch else []
        cuts = np.sort(rng.integers(0, EXTENTS[ragged] + 1, (*lead, EXTENTS["g"])), -1)
        sizes = np.diff(cuts, prepend=0).astype(np.int32)
        return [*(rng.normal(size=[EXTENTS[a] for a in x]).astype(dtype) for x in (lhs, rhs)), sizes]

    def einsum(self, lhs, rhs, sizes, einsum=np.einsum):
        """Computes the ragged dot as an einsum of lhs, rhs and a mask that is 1 for members of a group."""
        left, right, out, ragged = self.letters
        if ragged in right and ragged in out:  # If a batch axis is ragged, group sizes have no effect.
            return einsum(f"{left},{right}->{out}", lhs, rhs)
        mask = oracle.membership(sizes, EXTENTS[ragged], lhs.dtype)
        outer = self._outer if sizes.ndim > 1 else ""
        return einsum(f"{left},{right},{outer}g{ragged}->{out}", lhs, rhs, mask)

    def expected(self, lhs, rhs, sizes) -> oracle.Expected:
        left, right, out, _ = self.letters
        length = np.prod([EXTENTS[a] for a in left if a in right and a not in out])
        wide = [np.asarray(x).astype(np.float64) for x in (lhs, rhs)]
        want, magnitude = self.einsum(*wide, sizes), self.einsum(*map(np.abs, wide), sizes)
        return oracle.Expected(want, oracle.tolerance(length, magnitude, want, np.float32, lhs.dtype))


NONCONTRACTING = [
    "mk,gkn->mn, m",
    "mk,gnk->mn, m",
    "km,gkn->mn, m",
    "mk,gk->m, m",
    "mk,kgn->mn, m",
    "mk,gknp->mnp, m",
    "mk,gnkp->mnp, m",
    "mkl,gkln->mn, m",
    "mkl,gnlk->mn, m",
    "bmk,gbkn->bmn, m",
    "bmk,bgkn->bmn, m",
    "bcmk,bcgnk->bcmn, m",
    "mbk,gkbn->bmn, m",
    "xmk,gkn->xmn, m",
    "mxk,gkn->mxn, m",
    "xbmyk,bgkn->bxmyn, m",
]
CONTRACTING = [
    "mk,kn->gmn, k",
    "km,kn->gmn, k",
    "km,nk->gmn, k",
    "kmx,knp->gmxnp, k",
    "bkm,bkn->gbmn, k",
    "bmk,kbn->gbmn, k",
    "xkm,xkn->gmn, k",
    "kym,ykn->gmn, k",
    "bxkym,bxkyn->gbmn, k",
]
BATCH = ["bmk,bkn->bmn, b", "cbmk,cbkn->cbmn, b", "mbk,nbk->bmn, b"]
FORMS = [Form(text) for text in (*NONCONTRACTING, *CONTRACTING, *BATCH)]
