"""Computes the router and combine in float64 by their definitions, one token at a time."""

import numpy as np


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def best(scores, count):
    """Returns the indices of the `count` largest scores, the largest first. Ties go to the lower index."""
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:count]


def allowed(scores, num_groups, group_top_k, count):
    """Returns the experts that a token may choose. They are in the group_top_k best of num_groups groups.

    A group's score is the sum of its `count` largest expert scores.
    """
    size = len(scores) // num_groups
    groups = [range(g * size, (g + 1) * size) for g in range(num_groups)]
    sums = [sum(sorted((scores[e] for e in group), reverse=True)[:count]) for group in groups]
    return sorted(e for g in best(sums, group_top_k) for e in groups[g])


def sparsemixer(logits, top_k, eps=0.01):
    """Returns the weights and the experts of one token by the loop of Phi-3.5-MoE, without noise."""
    weights, experts, left = [], [], logits.copy()
    for _ in range(top_k):
        first = best(left, 1)[0]
        far = left[first] - logits > 2 * eps * np.maximum(np.abs(logits), left[first])
        weights.append(softmax(np.where(far, -np.inf, left))[first])
        experts.append(first)
        left[first] = -np.inf
    return np.array(weights), experts


def route(logits, top_k, score, pre_softmax=False, groups=None, bias=None, renormalize=False, scaling_factor=1.0):
    """Returns the routing weights, in float64, and the experts of each token, both [T,k].

    groups: (num_groups, group_top_k, count) limits a token's experts as in allowed(). None: no limit.
    """
    weights, chosen = [], []
    for token_logits in np.asarray(logits).astype(np.float64):
        scores = token_logits
        if score == "sigmoid":
            scores = sigmoid(token_logits)
        elif pre_softmax:
            scores = softmax(token_logits)
        if score == "sparsemixer":
            w, experts = sparsemixer(token_logits, top_k)
            weights.append(w * scaling_factor)
            chosen.append(experts)
            continue
        biased = scores if bias is None else scores + np.asarray(bias, np.float64)
        experts = allowed(biased, *groups) if groups else range(len(biased))
        experts = [experts[i] for i in best([biased[e] for e in experts], top_k)]
        w = scores[experts]
        if score == "softmax" and not pre_softmax:
            w = softmax(w)
        weights.append((w / w.sum() if renormalize else w) * scaling_factor)
        chosen.append(experts)
    return np.array(weights).reshape(-1, top_k), np.array(chosen).reshape(-1, top_k)


def gradient(f, x, step=1e-5):
    """Returns the gradient of a scalar function f at x in float64, by central differences."""
    x = np.asarray(x, np.float64)
    out = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i], down[i] = up[i] + step, down[i] - step
        out[i] = (f(up) - f(down)) / (2 * step)
    return out


def combine(rows, row_tokens, num_tokens, row_weights=None, group_sizes=None):
    count = len(rows) if group_sizes is None else int(np.sum(group_sizes))
    out = np.zeros((num_tokens, rows.shape[1]))
    for r, t in enumerate(np.asarray(row_tokens).tolist()[:count]):
        if 0 <= t < num_tokens:
            weight = 1.0 if row_weights is None else float(row_weights[r])
            out[t] += weight * np.asarray(rows[r]).astype(np.float64)
    return out
