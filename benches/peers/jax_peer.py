"""The bench's workloads in JAX: the same sizes, parameter counts and rows.

A train step is one jitted function over donated state, images lie channels last (the layout that XLA's CPU compiler prefers), and pooling is a
reshape with a maximum, which is faster here than a window reduction. Half precision means f32 parameters, products in half
precision, losses and statistics in f32. XLA sizes its thread pools by the CPUs a process may use, so the process is pinned.
"""

import os

import common

ARGS = common.arguments(__doc__)
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: ARGS.threads])
if ARGS.threads == 1:
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402

jax.devices()
BASE = common.peak_rss_mb()
DTYPE = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}[ARGS.dtype]
RANDOM = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(RANDOM.standard_normal(shape, dtype=np.float32))


def uniform(fan, *shape):
    return jnp.asarray(RANDOM.uniform(-1, 1, shape).astype(np.float32) / np.sqrt(fan))


def indices(end, *shape):
    return jnp.asarray(RANDOM.integers(end, size=shape).astype(np.int32))


def linear_params(inputs, outputs):
    return {"w": uniform(inputs, inputs, outputs), "b": uniform(inputs, outputs)}


def linear(p, x):
    return x @ p["w"].astype(DTYPE) + p["b"].astype(DTYPE)


def norm_params(width):
    return {"g": jnp.ones(width), "b": jnp.zeros(width)}


def layer_norm(p, x):
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    var = jnp.maximum((wide * wide).mean(-1, keepdims=True) - mean * mean, 0)
    return ((wide - mean) * lax.rsqrt(var + 1e-5) * p["g"] + p["b"]).astype(x.dtype)


def cross_entropy(logits, y):
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, y[:, None], -1)[:, 0]
    return (jax.nn.logsumexp(logits, -1) - chosen).mean()


def adam_state(params):
    zeros = jax.tree_util.tree_map(jnp.zeros_like, params)
    return {"step": jnp.zeros((), jnp.int32), "m": zeros, "v": jax.tree_util.tree_map(jnp.copy, zeros)}


def adam(params, state, grads, decay=0.0):
    """Adam (Kingma and Ba 2015) with a rate of 1e-3; `decay` is decoupled."""
    step = state["step"] + 1
    bias1, bias2 = 1 - 0.9**step, 1 - 0.999**step
    tree = jax.tree_util.tree_map
    m = tree(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
    v = tree(lambda v, g: 0.999 * v + 0.001 * g * g, state["v"], grads)

    def move(p, m, v):
        return p - 1e-3 * ((m / bias1) / (jnp.sqrt(v / bias2) + 1e-8) + decay * p)

    return tree(move, params, m, v), {"step": step, "m": m, "v": v}


def gelu(x):
    return jax.nn.gelu(x, approximate=False)


def kernel(inputs, outputs, size):
    return uniform(inputs * size * size, size, size, inputs, outputs)


def conv(w, x, stride=1, padding=0):
    layout = ("NHWC", "HWIO", "NHWC")
    pads = [(padding, padding)] * 2
    return lax.conv_general_dilated(
        x, w.astype(DTYPE), (stride, stride), pads, dimension_numbers=layout
    )


def block_params(width):
    return {
        "project": linear_params(width, 3 * width),
        "out": linear_params(width, width),
        "norm1": norm_params(width),
        "norm2": norm_params(width),
        "up": linear_params(width, 4 * width),
        "down": linear_params(4 * width, width),
    }


def attention(p, x, heads, causal):
    batch, steps, width = x.shape
    packed = linear(p["project"], x).reshape(batch, steps, 3, heads, width // heads)
    q, k, v = packed[:, :, 0], packed[:, :, 1], packed[:, :, 2]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // heads) ** -0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((steps, steps), bool)), scores, -1e4)
    shares = jax.nn.softmax(scores.astype(jnp.float32), -1).astype(x.dtype)
    y = jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(batch, steps, width)
    return linear(p["out"], y)


def block(p, x, gpt):
    def hidden(x):
        return linear(p["down"], gelu(linear(p["up"], x)))

    if gpt:
        x = x + attention(p, layer_norm(p["norm1"], x), 4, True)
        return x + hidden(layer_norm(p["norm2"], x))
    x = layer_norm(p["norm1"], x + attention(p, x, 4, False))
    return layer_norm(p["norm2"], x + hidden(x))


# Each gives parameters, statistics that a step moves, the forward pass, and the batch.


def perceptron():
    p = [linear_params(784, 512), linear_params(512, 512), linear_params(512, 10)]

    def forward(p, state, x):
        x = jax.nn.relu(linear(p[0], x.astype(DTYPE)))
        return linear(p[2], jax.nn.relu(linear(p[1], x))), state

    return p, {}, forward, normal(128, 784), indices(10, 128)


def convolutional():
    p = {
        "k1": kernel(1, 64, 3),
        "b1": uniform(9, 64),
        "k2": kernel(64, 64, 3),
        "b2": uniform(576, 64),
        "hidden": linear_params(7744, 64),
        "head": linear_params(64, 10),
    }

    def forward(p, state, x):
        x = jax.nn.relu(conv(p["k1"], x.astype(DTYPE)) + p["b1"].astype(DTYPE))
        x = x.reshape(64, 13, 2, 13, 2, 64).max((2, 4))
        x = jax.nn.relu(conv(p["k2"], x) + p["b2"].astype(DTYPE)).reshape(64, -1)
        return linear(p["head"], jax.nn.relu(linear(p["hidden"], x))), state

    return p, {}, forward, normal(64, 28, 28, 1), indices(10, 64)


def statistics(channels):
    return {"mean": jnp.zeros(channels), "var": jnp.ones(channels)}


def batch_norm(p, state, x):
    wide = x.astype(jnp.float32)
    mean = wide.mean((0, 1, 2))
    var = ((wide - mean) ** 2).mean((0, 1, 2))
    count = wide.size / mean.size
    y = (wide - mean) * (lax.rsqrt(var + 1e-5) * p["g"]) + p["b"]
    moved = {
        "mean": 0.9 * state["mean"] + 0.1 * mean,
        "var": 0.9 * state["var"] + 0.1 * var * (count / (count - 1)),
    }
    return y.astype(x.dtype), moved


def resnet20():
    p = {"conv": kernel(3, 16, 3), "norm": norm_params(16), "head": linear_params(64, 10)}
    state, strides, inputs = {"norm": statistics(16)}, [], 16
    for outputs, first in (16, 1), (32, 2), (64, 2):
        for i in range(3):
            stride = 1 if i else first
            q = {"conv1": kernel(inputs, outputs, 3), "conv2": kernel(outputs, outputs, 3)}
            names = ["norm1", "norm2"]
            if stride != 1 or inputs != outputs:
                q["conv3"] = kernel(inputs, outputs, 1)
                names.append("norm3")
            name = f"block{len(strides)}"
            p[name] = q | {n: norm_params(outputs) for n in names}
            state[name] = {n: statistics(outputs) for n in names}
            strides.append(stride)
            inputs = outputs

    def forward(p, state, x):
        new = {}
        x, new["norm"] = batch_norm(p["norm"], state["norm"], conv(p["conv"], x.astype(DTYPE), 1, 1))
        x = jax.nn.relu(x)
        for i, stride in enumerate(strides):
            q, s, moved, passed = p[f"block{i}"], state[f"block{i}"], {}, x
            y, moved["norm1"] = batch_norm(q["norm1"], s["norm1"], conv(q["conv1"], x, stride, 1))
            y = conv(q["conv2"], jax.nn.relu(y), 1, 1)
            y, moved["norm2"] = batch_norm(q["norm2"], s["norm2"], y)
            if "conv3" in q:
                passed = conv(q["conv3"], x, stride)
                passed, moved["norm3"] = batch_norm(q["norm3"], s["norm3"], passed)
            x, new[f"block{i}"] = jax.nn.relu(y + passed), moved
        return linear(p["head"], x.mean((1, 2))), new

    return p, state, forward, normal(32, 32, 32, 3), indices(10, 32)


def gpt():
    p = {
        "tokens": normal(65, 128),
        "positions": normal(128, 128),
        "blocks": [block_params(128) for _ in range(4)],
        "norm": norm_params(128),
        "head": linear_params(128, 65),
    }

    def forward(p, state, x):
        x = (p["tokens"][x] + p["positions"]).astype(DTYPE)
        for q in p["blocks"]:
            x = block(q, x, True)
        return linear(p["head"], layer_norm(p["norm"], x)).reshape(2048, 65), state

    return p, {}, forward, indices(65, 16, 128), indices(65, 2048)


def bert():
    p = {
        "tokens": normal(30522, 256),
        "positions": normal(128, 256),
        "norm": norm_params(256),
        "blocks": [block_params(256) for _ in range(4)],
        "pool": linear_params(256, 256),
        "head": linear_params(256, 2),
    }

    def forward(p, state, x):
        x = layer_norm(p["norm"], (p["tokens"][x] + p["positions"]).astype(DTYPE))
        for q in p["blocks"]:
            x = block(q, x, False)
        return linear(p["head"], jnp.tanh(linear(p["pool"], x[:, 0]))), state

    return p, {}, forward, indices(30522, 8, 128), indices(2, 8)


def recurrent():
    p = {
        "input": uniform(128, 128, 512),
        "hidden": uniform(128, 128, 512),
        "b1": uniform(128, 512),
        "b2": uniform(128, 512),
        "head": linear_params(128, 10),
    }

    def forward(p, state, x):
        bias = (p["b1"] + p["b2"]).astype(DTYPE)
        gates = jnp.swapaxes(x.astype(DTYPE) @ p["input"].astype(DTYPE) + bias, 0, 1)
        w = p["hidden"].astype(DTYPE)

        def cell(carry, gate):
            h, c = carry
            i, f, g, o = jnp.split(gate + h @ w, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        zeros = jnp.zeros((64, 128), DTYPE)
        (h, _), _ = lax.scan(cell, (zeros, zeros), gates)
        return linear(p["head"], h), state

    return p, {}, forward, normal(64, 50, 128), indices(10, 64)


TRAIN = {
    "W1": perceptron,
    "W2": convolutional,
    "W3": resnet20,
    "W4": gpt,
    "W5": bert,
    "W6": recurrent,
}


def train():
    params, state, forward, x, y = TRAIN[ARGS.name]()
    scale = 65536.0 if ARGS.dtype == "f16" else 1.0

    def loss(params, state, x, y):
        logits, state = forward(params, state, x)
        return cross_entropy(logits, y) * scale, state

    def step(params, state, moments, x, y):
        (value, state), grads = jax.value_and_grad(loss, has_aux=True)(params, state, x, y)
        if scale != 1.0:
            grads = jax.tree_util.tree_map(lambda g: g / scale, grads)
        params, moments = adam(params, moments, grads)
        return params, state, moments, value

    jitted = jax.jit(step, donate_argnums=(0, 1, 2))
    count = sum(t.size for t in jax.tree_util.tree_leaves(params))
    kept = [params, state, adam_state(params), None]

    def run():
        kept[:] = jitted(*kept[:3], x, y)
        jax.block_until_ready(kept)

    measured = common.times(run, ARGS.seconds)
    common.emit(ARGS, "jax", "train", measured, BASE, params=count)


def gemm(variant):
    layout, (m, n, k) = variant.split()[0], common.shape(variant)
    a = normal(*((k, m) if layout[0] == "T" else (m, k))).astype(DTYPE)
    b = normal(*((n, k) if layout[1] == "T" else (k, n))).astype(DTYPE)

    def product(a, b):
        a = a.T if layout[0] == "T" else a
        return a @ (b.T if layout[1] == "T" else b)

    jitted = jax.jit(product)
    return lambda: jax.block_until_ready(jitted(a, b))


def forward_or_both(variant, function, wrt, dy):
    """A jitted run of `function(*wrt)`, with gradients where the variant says so; the result is returned, or it would not be computed."""
    if not variant.startswith("fwd+bwd"):
        jitted = jax.jit(function)
        return lambda *more: jitted(*wrt, *more)

    def both(*arguments):
        inputs, dy, more = arguments[: len(wrt)], arguments[len(wrt)], arguments[len(wrt) + 1 :]
        y, pull = jax.vjp(lambda *inputs: function(*inputs, *more), *inputs)
        return y, *pull(dy)

    jitted = jax.jit(both)
    return lambda *more: jitted(*wrt, dy, *more)


def bias_gelu_dropout(variant):
    rows, columns = common.shape(variant)
    x, dy = normal(rows, columns).astype(DTYPE), normal(rows, columns).astype(DTYPE)
    bias, keys = normal(columns).astype(DTYPE), [jax.random.key(0)]

    def function(x, bias, key):
        keep = jax.random.bernoulli(key, 0.9, x.shape)
        return jnp.where(keep, gelu(x + bias) * (1 / 0.9), 0).astype(DTYPE)

    both = forward_or_both(variant, function, [x, bias], dy)

    def run():
        keys[0], key = jax.random.split(keys[0])
        jax.block_until_ready(both(key))

    return run


def norm(variant):
    rows, columns = common.shape(variant)
    x, dy = normal(rows, columns).astype(DTYPE), normal(rows, columns).astype(DTYPE)
    both = forward_or_both(variant, lambda x, p: layer_norm(p, x), [x, norm_params(columns)], dy)
    return lambda: jax.block_until_ready(both())


def softmax_cross_entropy(variant):
    rows, columns = common.shape(variant)
    x, y = normal(rows, columns).astype(DTYPE), indices(columns, rows)
    jitted = jax.jit(jax.value_and_grad(lambda x: cross_entropy(x, y)))
    return lambda: jax.block_until_ready(jitted(x))


def adamw(_variant):
    params = [normal(n) for n in common.W11_SIZES]
    grads = [normal(n) for n in common.W11_SIZES]
    update = lambda params, moments, grads: adam(params, moments, grads, 0.01)  # noqa: E731
    jitted = jax.jit(update, donate_argnums=(0, 1))
    kept = [params, adam_state(params)]

    def run():
        kept[:] = jitted(*kept, grads)
        jax.block_until_ready(kept)

    return run


KERNELS = {
    "W7": gemm,
    "W8": bias_gelu_dropout,
    "W9": norm,
    "W10": softmax_cross_entropy,
    "W11": adamw,
}

if ARGS.name in TRAIN:
    train()
else:
    for wanted in ARGS.variants.split(","):
        measured = common.times(KERNELS[ARGS.name](wanted), ARGS.seconds)
        common.emit(ARGS, "jax", wanted, measured, BASE)
