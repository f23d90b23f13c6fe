"""Inputs from a documented generator, and the JSON form of a case (see README.md)."""

import argparse
import json
import math
import pathlib

import torch

torch.set_default_dtype(torch.float64)


class Lcg:
    """x -> (1664525 x + 1013904223) mod 2^32 (Numerical Recipes), of which the top 16 bits are used."""

    def __init__(self, seed):
        self.state = seed

    def next(self, below):
        self.state = (1664525 * self.state + 1013904223) % 2**32
        return (self.state >> 16) % below

    def tensor(self, *shape, low=-16, high=16, unit=1 / 8):
        """Multiples of `unit`: `unit * k` for whole `k` with low <= k <= high."""
        count = math.prod(shape)
        values = [unit * (low + self.next(high - low + 1)) for _ in range(count)]
        return torch.tensor(values).reshape(shape)

    def indices(self, *shape, below):
        count = math.prod(shape)
        return torch.tensor([self.next(below) for _ in range(count)]).reshape(shape)

    def distinct(self, *shape, unit=1 / 8):
        """All values different, so that the largest of any window is one element (max pooling)."""
        values = [unit * (k - math.prod(shape) // 2) for k in range(math.prod(shape))]
        for i in reversed(range(1, len(values))):
            j = self.next(i + 1)
            values[i], values[j] = values[j], values[i]
        return torch.tensor(values).reshape(shape)


def number(value):
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        return value
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    short = float(f"{value:.12g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short


def plain(tensor):
    return {
        "shape": list(tensor.shape),
        "data": [number(v) for v in tensor.detach().reshape(-1).tolist()],
    }


def case(name, inputs, run, attrs=None, cotangent=None, extra=None):
    """Runs `run(**inputs)` and differentiates it.

    `run` returns one tensor or a dict whose first entry is the differentiated one. `cotangent` is the
    derivative of the final number by that tensor; without it the tensor must be a single number. `extra`,
    called after the backward pass, returns more outputs (running statistics).
    """
    leaves = {
        k: v.clone().requires_grad_() if v.is_floating_point() else v for k, v in inputs.items()
    }
    result = run(**leaves)
    outputs = result if isinstance(result, dict) else {"y": result}
    first = next(iter(outputs.values()))
    if cotangent is None:
        assert first.numel() == 1, f"{name} needs a cotangent"
        total = first.sum()
    else:
        assert cotangent.shape == first.shape, f"{name}: {cotangent.shape}, {first.shape}"
        total = (first * cotangent).sum()
    names = [k for k, v in leaves.items() if v.requires_grad]
    grads = torch.autograd.grad(total, [leaves[k] for k in names], allow_unused=True)
    if extra is not None:
        outputs = {**outputs, **extra()}
    shown = dict(inputs)
    if cotangent is not None:
        shown["cotangent"] = cotangent
    return {
        "case": name,
        "attrs": attrs or {},
        "inputs": {k: plain(v) for k, v in shown.items()},
        "outputs": {k: plain(v) for k, v in outputs.items()},
        "grads": {k: plain(g) for k, g in zip(names, grads) if g is not None},
    }


def main(subjects):
    """Writes `torch_<subject>.json` for every `{subject: function that returns its cases}`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    out = parser.parse_args().out
    for subject, cases in subjects.items():
        lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases())
        path = out / f"torch_{subject}.json"
        path.write_text(f"[\n{lines}\n]\n")
        print(f"{path.name}: {path.stat().st_size} bytes")
