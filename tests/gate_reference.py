"""What topk_gate must return, in NumPy's float64, a row at a time, and inputs that are hard for it."""

import numpy as np
import torch

EXTREMES = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, -torch.nan, 100.0, -100.0, 6e-8]


def order(values):
    """Indices of a row, best first: NaN above all, -0.0 equal to 0.0, equal values by index."""
    nan = np.isnan(values)
    return np.lexsort((np.arange(len(values)), -np.where(nan, 0, values), ~nan))


def sigmoid(x):
    return np.exp(-np.logaddexp(0, -x))


def gap(values, ranked, count):
    """How far apart the first count + 1 values are where they differ at all."""
    top = values[ranked[: count + 1]]
    with np.errstate(invalid="ignore"):
        steps = top[:-1] - top[1:]
    return min(steps[steps > 0], default=np.inf)


class Row:
    """One row routed: indices, and `clear`: no two different scores are so close that rounding decides."""

    def __init__(self, x, k, scoring, bias, groups, kept, tolerance):
        self.x, self.scoring = x, scoring
        with np.errstate(all="ignore"):
            self.top = np.nan if np.isnan(x).any() else x.max()
            e = np.exp(x - self.top)
            self.total = e.sum()
            score = sigmoid(x) if scoring == "sigmoid" else e / self.total
            choice = x if bias is None else score + bias
            self.clear = True
            if kept < groups:
                grouped = choice.reshape(groups, -1)
                if scoring == "softmax":
                    of_group = np.array([g[order(g)[0]] for g in grouped])
                else:
                    values = grouped if bias is not None else score.reshape(groups, -1)
                    of_group = np.array([g[order(g)[:2]].sum() for g in values])
                ranked = order(of_group)
                if bias is not None or scoring == "sigmoid":
                    self.clear &= gap(of_group, ranked, kept) > tolerance
                allowed = np.isin(np.arange(len(x)) // grouped.shape[1], ranked[:kept])
            else:
                allowed = np.ones(len(x), bool)
        ranked = order(choice)
        ranked = ranked[allowed[ranked]]
        self.indices = ranked[:k]
        if bias is not None:
            self.clear &= gap(choice, ranked, k) > tolerance

    def weights(self, indices, renormalize, scale):
        x = self.x[indices]
        with np.errstate(all="ignore"):
            score = sigmoid(x) if self.scoring == "sigmoid" else np.exp(x - self.top)
            total = score.sum() if renormalize else 1 if self.scoring == "sigmoid" else self.total
            return np.zeros(len(x)) if total == 0 else score / total * scale

    def tolerance(self, indices, unit):
        """Relative, of each weight: a rounded x - top is an absolute error in the exponent."""
        with np.errstate(all="ignore"):
            far = np.abs(self.x[indices] - (self.top if self.scoring == "softmax" else 0))
        return unit * (16 + len(self.x) ** 0.5 + 2 * np.where(np.isfinite(far), far, 0))


def check(result, logits, k, *, scoring="softmax", bias=None, renormalize=True, num_groups=1, topk_groups=1,
          scale=1.0):  # fmt: skip
    """Assert that a result is right; returns the share of rows whose indices could be compared exactly."""
    rows = logits.detach().cpu().double().reshape(-1, logits.shape[-1]).numpy()
    added = None if bias is None else bias.detach().cpu().double().numpy()
    unit = 2.0**-53 if logits.dtype == torch.float64 else 2.0**-24
    weights = result[0].detach().cpu().double().reshape(len(rows), -1).numpy()
    indices = result[1].cpu().long().reshape(len(rows), -1).numpy()
    compared = 0
    for r, x in enumerate(rows):
        row = Row(x, k, scoring, added, num_groups, topk_groups, 64 * unit)
        at = indices[r]
        assert len(set(at.tolist())) == k and (not k or (at.min() >= 0 and at.max() < len(x))), at
        if row.clear:
            compared += 1
            assert at.tolist() == row.indices.tolist(), (r, at, row.indices, x)
        expected, close = row.weights(at, renormalize, scale), row.tolerance(at, unit)
        assert (np.isnan(weights[r]) == np.isnan(expected)).all(), (r, weights[r], expected)
        off = np.abs(weights[r] - expected) > close * np.abs(expected) + 1e-37
        assert not off.any(), (r, weights[r], expected, np.abs(weights[r] / expected - 1))
    return compared / max(len(rows), 1)


def random_logits(rows, n, dtype, generator, kind):
    """[rows, n]: normal numbers, few distinct ones, extremes among normal ones, or one value."""
    x = generator.normal(size=(rows, n)) * 3
    if kind == "ties":
        x = generator.choice([-3.0, 0.25, 1.0, 2.5], (rows, n))
    elif kind == "equal":
        x = np.full((rows, n), -1.5)
    elif kind == "extremes":
        x = np.where(generator.random((rows, n)) < 0.2, generator.choice(EXTREMES, (rows, n)), x)
    elif kind == "sorted":
        x = np.sort(x)[:, :: generator.choice([1, -1])].copy()
    elif kind == "masked":  # experts switched off
        x = np.where(generator.random((rows, n)) < 0.9, -np.inf, x)
    return torch.from_numpy(x).to(dtype)


def crowded(rows, lanes, k, dtype):
    """Rows whose best elements fill k - 1 of the lanes that share a row: a bound's most candidates."""
    vector = 16 // dtype.itemsize
    at = torch.arange(16 * lanes)
    lane = at // vector % lanes
    x = torch.where(lane < k - 1, 8.0, -8.0) + torch.rand(rows, 16 * lanes) * 6
    return x.to(dtype)


KINDS = ["normal", "ties", "equal", "extremes", "sorted", "masked"]
