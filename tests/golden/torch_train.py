# requires: torch==2.15.0 numpy
"""Whole training runs: the loss of every step, then the outputs in evaluation mode.

A model, its parameters by name, and four batches that are visited in turn; everything that a layer, a loss, an optimizer and a
schedule could disagree about meets in one number per step.
"""

import math

import torch
from torch import nn

from _fixture import Lcg, main, plain

STEPS = 30


def start(module, r):
    """Small multiples of 1/16 in place of the initial values."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            low = 8 if p.dim() == 1 and "norm" in name and "weight" in name else -6
            p.copy_(r.tensor(*p.shape, low=low, high=low + 12, unit=1 / 16))


def run(name, module, batches, loss_of, make, clip=None, lr_of_step=None, frozen=(), attrs=None):
    r = Lcg(sum(map(ord, name)))
    start(module, r)
    initial = {f"param.{k}": plain(p) for k, p in module.named_parameters()}
    for k, p in module.named_parameters():
        if k in frozen:
            p.requires_grad_(False)
    inputs = batches(r)
    optimizer = make([p for p in module.parameters() if p.requires_grad])
    losses, norms = [], []
    module.train()
    for step in range(STEPS):
        if lr_of_step is not None:
            for group in optimizer.param_groups:
                group["lr"] = lr_of_step(step)
        optimizer.zero_grad()
        loss = loss_of(module, {k: v[step % 4] for k, v in inputs.items()})
        loss.backward()
        if clip is not None:
            norms.append(nn.utils.clip_grad_norm_(module.parameters(), clip).item())
        optimizer.step()
        losses.append(loss.item())
    module.eval()
    with torch.no_grad():
        y = module(**{k: v[0] for k, v in inputs.items() if k != "target"})
    outputs = {"losses": plain(torch.tensor(losses)), "eval": plain(y)}
    if norms:
        outputs["norms"] = plain(torch.tensor(norms))
    return {
        "case": name,
        "attrs": {"steps": STEPS} | (attrs or {}),
        "inputs": initial | {k: plain(v) for k, v in inputs.items()},
        "outputs": outputs,
        "grads": {},
    }


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(5, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x):
        return self.fc2(nn.functional.gelu(self.norm(self.fc1(x))))


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        h = nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.head(h.flatten(1))


class Text(nn.Module):
    """An embedding tied to the output, causal attention under a key mask, an LSTM."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(7, 6), nn.LayerNorm(6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.lstm = nn.LSTM(6, 6, batch_first=True)

    def forward(self, tokens, keep):
        x = self.embed(tokens)
        later = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
        h = self.norm(x)
        x = x + self.attention(h, h, h, key_padding_mask=keep == 0, attn_mask=later, need_weights=False)[0]
        return self.lstm(x)[0] @ self.embed.weight.t()


def cross_entropy(module, b, **options):
    y = module(**{k: v for k, v in b.items() if k != "target"})
    return nn.functional.cross_entropy(y.flatten(0, -2), b["target"].flatten(), **options)


def cosine(step):
    return 2e-3 + (2e-2 - 2e-3) * 0.5 * (1 + math.cos(math.pi * step / STEPS))


def train():
    adamw = lambda p: torch.optim.AdamW(p, lr=2e-2, betas=(0.9, 0.99), weight_decay=0.1)
    yield run(
        "mlp_adamw_cosine_clip",
        Mlp(),
        lambda r: {"x": r.tensor(4, 6, 5), "target": r.indices(4, 6, below=4)},
        cross_entropy,
        adamw,
        clip=0.5,
        lr_of_step=cosine,
    )
    yield run(
        "conv_sgd_momentum",
        Conv(),
        lambda r: {"x": r.tensor(4, 4, 2, 4, 4), "target": r.indices(4, 4, below=3)},
        cross_entropy,
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    )

    def sequences(r):
        tokens, target = r.indices(4, 3, 5, below=7), r.indices(4, 3, 5, below=7)
        keep = torch.ones(4, 3, 5, dtype=torch.long)
        keep[:, 1, 4:], keep[:, 2, 3:] = 0, 0
        target[keep == 0] = -100
        target[0, 0, 1] = -100
        return {"tokens": tokens, "keep": keep, "target": target}

    yield run(
        "text_tied_frozen_smoothed",
        Text(),
        sequences,
        lambda m, b: cross_entropy(m, b, label_smoothing=0.1),
        adamw,
        frozen=("norm.weight", "lstm.bias_hh_l0"),
    )


main({"train": train})
