"""The bench's workloads in PyTorch: the same sizes, parameter counts and rows.

A half-precision train step is autocast over f32 parameters, for f16 with a GradScaler; kernels take operands of that type. The optimizer is
the fused one, the fastest that PyTorch has on a CPU.
"""

import os

import common

ARGS = common.arguments(__doc__)
os.environ["OMP_NUM_THREADS"] = str(ARGS.threads)

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(ARGS.threads)
torch.manual_seed(0)
BASE = common.peak_rss_mb()
DTYPE = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[ARGS.dtype]


class Attention(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, steps, width = x.shape
        packed = self.project(x).view(batch, steps, 3, self.heads, width // self.heads)
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, steps, width))


class Block(nn.Module):
    def __init__(self, width, gpt):
        super().__init__()
        self.first = gpt
        self.attention = Attention(width, 4, gpt)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def hidden(self, x):
        return self.down(F.gelu(self.up(x)))

    def forward(self, x):
        if self.first:
            x = x + self.attention(self.norm1(x))
            return x + self.hidden(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.hidden(x))


class Gpt(nn.Module):
    def __init__(self, letters=65, width=128, steps=128):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(letters, width), nn.Embedding(steps, width)
        self.blocks = nn.ModuleList(Block(width, True) for _ in range(4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters)
        self.register_buffer("places", torch.arange(steps))

    def forward(self, x):
        x = self.tokens(x) + self.positions(self.places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


class Bert(nn.Module):
    def __init__(self, words=30522, width=256, steps=128):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(words, width), nn.Embedding(steps, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, False) for _ in range(4))
        self.pool, self.head = nn.Linear(width, width), nn.Linear(width, 2)
        self.register_buffer("places", torch.arange(steps))

    def forward(self, x):
        x = self.norm(self.tokens(x) + self.positions(self.places))
        for block in self.blocks:
            x = block(x)
        return self.head(torch.tanh(self.pool(x[:, 0])))


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def resnet20():
    layers, inputs = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()], 16
    for outputs, first in (16, 1), (32, 2), (64, 2):
        for block in range(3):
            layers.append(Residual(inputs, outputs, 1 if block else first))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(128, 128, batch_first=True), nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def perceptron():
    hidden = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(512, 10))


def convolutional():
    images = [nn.Conv2d(1, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 64, 3), nn.ReLU()]
    return nn.Sequential(*images, nn.Flatten(), nn.Linear(7744, 64), nn.ReLU(), nn.Linear(64, 10))


TRAIN = {
    "W1": (perceptron, lambda: (torch.randn(128, 784), torch.randint(10, (128,)))),
    "W2": (convolutional, lambda: (torch.randn(64, 1, 28, 28), torch.randint(10, (64,)))),
    "W3": (resnet20, lambda: (torch.randn(32, 3, 32, 32), torch.randint(10, (32,)))),
    "W4": (Gpt, lambda: (torch.randint(65, (16, 128)), torch.randint(65, (2048,)))),
    "W5": (Bert, lambda: (torch.randint(30522, (8, 128)), torch.randint(2, (8,)))),
    "W6": (Recurrent, lambda: (torch.randn(64, 50, 128), torch.randint(10, (64,)))),
}


def train():
    build, batch = TRAIN[ARGS.name]
    model, (x, y) = build(), batch()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cpu", enabled=ARGS.dtype == "f16")

    def loss():
        if ARGS.dtype == "f32":
            return F.cross_entropy(model(x), y)
        with torch.autocast("cpu", dtype=DTYPE):
            logits = model(x)
        return F.cross_entropy(logits.float(), y)

    def step():
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss()).backward()
        scaler.step(optimizer)
        scaler.update()

    measured = common.times(step, ARGS.seconds)
    rss = common.peak_rss_mb()
    params = list(model.parameters())
    given = {t.untyped_storage().data_ptr() for t in [x, *params]}
    saved = {}

    def pack(t):
        storage = t.untyped_storage()
        if storage.data_ptr() not in given:
            saved[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        kept = loss()
    del kept
    count = sum(p.numel() for p in params)
    more = {"saved_bytes": sum(saved.values()), "params": count, "peak_rss_mb": rss}
    common.emit(ARGS, "torch", "train", measured, BASE, **more)


def gemm(variant):
    layout, (m, n, k) = variant.split()[0], common.shape(variant)

    def operand(transposed, rows, columns):
        stored = torch.randn(columns, rows) if transposed else torch.randn(rows, columns)
        return stored.to(DTYPE).t() if transposed else stored.to(DTYPE)

    a, b = operand(layout[0] == "T", m, k), operand(layout[1] == "T", k, n)
    out = torch.empty(m, n, dtype=DTYPE)
    return lambda: torch.mm(a, b, out=out)


def backward_or_not(variant, result, wrt, dy):
    """A run of `result()`, with the gradients of `wrt` where the variant says so."""

    def forward():
        with torch.no_grad():
            result()

    def both():
        for t in wrt:
            t.grad = None
        result().backward(dy)

    return both if variant.startswith("fwd+bwd") else forward


def bias_gelu_dropout(variant):
    rows, columns = common.shape(variant)
    x, dy = torch.randn(rows, columns, dtype=DTYPE), torch.randn(rows, columns, dtype=DTYPE)
    x, bias = x.requires_grad_(), torch.randn(columns, dtype=DTYPE).requires_grad_()
    return backward_or_not(variant, lambda: F.dropout(F.gelu(x + bias), 0.1, True), [x, bias], dy)


def layer_norm(variant):
    rows, columns = common.shape(variant)
    x, dy = torch.randn(rows, columns, dtype=DTYPE), torch.randn(rows, columns, dtype=DTYPE)
    x, norm = x.requires_grad_(), nn.LayerNorm(columns).to(DTYPE)
    return backward_or_not(variant, lambda: norm(x), [x, *norm.parameters()], dy)


def softmax_cross_entropy(variant):
    rows, columns = common.shape(variant)
    x, y = torch.randn(rows, columns, dtype=DTYPE).requires_grad_(), torch.randint(columns, (rows,))
    return backward_or_not(variant, lambda: F.cross_entropy(x, y), [x], None)


def adamw(_variant):
    params = [torch.randn(n).requires_grad_() for n in common.W11_SIZES]
    for p in params:
        p.grad = torch.randn_like(p)
    return torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01, fused=True).step


KERNELS = {
    "W7": gemm,
    "W8": bias_gelu_dropout,
    "W9": layer_norm,
    "W10": softmax_cross_entropy,
    "W11": adamw,
}

if ARGS.name in TRAIN:
    train()
else:
    for wanted in ARGS.variants.split(","):
        measured = common.times(KERNELS[ARGS.name](wanted), ARGS.seconds)
        common.emit(ARGS, "torch", wanted, measured, BASE)
