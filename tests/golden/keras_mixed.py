# requires: keras==3.15.1 jax scipy
"""What Keras computes under `mixed_float16`: policies, layers, losses, and steps of `LossScaleOptimizer`.

Parameters are written in PyTorch's layouts, tensors as in the other files. Inputs and parameters are multiples of 1/8 or 1/64, which f16 holds exactly.
"""

import argparse
import json
import os
import pathlib

os.environ["KERAS_BACKEND"] = "jax"

import jax  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
from keras import layers, ops  # noqa: E402


class Lcg:
    """x -> (1664525 x + 1013904223) mod 2^32 (Numerical Recipes), of which the top 16 bits are used."""

    def __init__(self, seed):
        self.state = seed

    def array(self, *shape, unit=1 / 8, reach=16):
        values = []
        for _ in range(int(np.prod(shape))):
            self.state = (1664525 * self.state + 1013904223) % 2**32
            values.append(unit * ((self.state >> 16) % (2 * reach + 1) - reach))
        return np.array(values, dtype="float32").reshape(shape)


def plain(array):
    array = np.asarray(ops.convert_to_numpy(array))
    flat = [float(f"{float(v):.9g}") for v in array.astype("float64").reshape(-1)]
    return {"shape": list(array.shape), "data": flat}


def name(dtype):
    return keras.backend.standardize_dtype(dtype)


def policies():
    names = ["mixed_float16", "mixed_bfloat16", "float16", "bfloat16", "float32", "float64"]
    known = []
    for policy in map(keras.DTypePolicy, names):
        known.append([policy.name, policy.variable_dtype, policy.compute_dtype])
    unknown = []
    for text in ["half", "mixed_float64", "mixed_f16", "float12", ""]:
        try:
            keras.DTypePolicy(text)
        except ValueError:
            unknown.append(text)
    return {"case": "policies", "known": known, "unknown": unknown}


def layer_case(case, layer, x, params, training=False, after=()):
    """One layer with given variables, by the name under which a test sets them."""
    policy = keras.DTypePolicy("mixed_float16")
    layer.dtype_policy = policy
    out = {}
    layer.build(x.shape)
    for path, (variable, value, layout) in params(layer).items():
        variable.assign(value)
        assert name(variable.dtype) == "float32", path
        out[path] = plain(layout(value))
    y = layer(x, training=training) if training else layer(x)
    found = {"case": case, "params": out, "x": plain(x), "y": plain(y), "dtype": name(y.dtype)}
    found["state"] = {path: plain(get(layer)) for path, get in after}
    return found


def same(value):
    return value


def channels_first(x):
    return np.moveaxis(x, -1, 1)


def image(case):
    """Keras' images are channels last: written channels first."""
    for key in ("x", "y"):
        array = np.array(case[key]["data"]).reshape(case[key]["shape"])
        case[key] = plain(channels_first(array)) if array.ndim == 4 else case[key]
    return case


def layer_cases():
    r = Lcg(1)
    small = dict(unit=1 / 64, reach=32)
    cases = []
    w, b = r.array(6, 5, **small), r.array(5)
    dense = lambda l: {"weight": (l.kernel, w, np.transpose), "bias": (l.bias, b, same)}
    cases.append(layer_case("dense", layers.Dense(5), r.array(4, 6), dense))
    k, kb = r.array(3, 3, 2, 4, **small), r.array(4)
    conv = lambda l: {
        "weight": (l.kernel, k, lambda k: np.transpose(k, (3, 2, 0, 1))),
        "bias": (l.bias, kb, same),
    }
    cases.append(image(layer_case("conv", layers.Conv2D(4, 3), r.array(2, 6, 6, 2), conv)))
    none = lambda l: {}
    cases.append(image(layer_case("max_pool", layers.MaxPooling2D(2), r.array(1, 4, 4, 2), none)))
    cases.append(
        image(layer_case("average_pool", layers.AveragePooling2D(2), r.array(1, 4, 4, 2), none))
    )
    cases.append(
        image(layer_case("global_mean", layers.GlobalAveragePooling2D(), r.array(2, 5, 5, 3), none))
    )
    cases.append(layer_case("relu", layers.ReLU(), r.array(3, 4), none))
    cases.append(layer_case("softmax", layers.Softmax(), r.array(3, 7), none))
    g, c = r.array(6), r.array(6)
    norm = lambda l: {"weight": (l.gamma, g, same), "bias": (l.beta, c, same)}
    x = r.array(5, 6)
    cases.append(layer_case("layer_norm", layers.LayerNormalization(epsilon=1e-5), x, norm))
    statistics = [("running_mean", lambda l: l.moving_mean), ("running_var", lambda l: l.moving_variance)]
    batch = layers.BatchNormalization(epsilon=1e-5, momentum=0.9)
    cases.append(layer_case("batch_norm", batch, x, norm, training=True, after=statistics))
    kernel, hidden = r.array(3, 16, **small), r.array(4, 16, **small)
    bias = r.array(16)
    lstm = lambda l: {
        "weight_ih_l0": (l.cell.kernel, kernel, np.transpose),
        "weight_hh_l0": (l.cell.recurrent_kernel, hidden, np.transpose),
        "bias_ih_l0": (l.cell.bias, bias, same),
    }
    sequence = layers.LSTM(4, return_sequences=True)
    cases.append(layer_case("lstm", sequence, r.array(2, 5, 3), lstm))
    table = r.array(7, 3)
    embedding = layers.Embedding(7, 3, dtype="mixed_float16")
    rows = np.array([[0, 6, 3], [3, 3, 1]], dtype="int32")
    embed = lambda l: {"weight": (l.embeddings, table, same)}
    cases.append(layer_case("embedding", embedding, rows, embed))
    return cases


def attention():
    r = Lcg(2)
    layer = layers.MultiHeadAttention(num_heads=2, key_dim=4, dtype="mixed_float16")
    x = r.array(2, 5, 8)
    layer.build(x.shape, x.shape)
    projections, biases = [], []
    for dense in (layer._query_dense, layer._key_dense, layer._value_dense):
        kernel, bias = r.array(8, 2, 4, unit=1 / 64, reach=32), r.array(2, 4)
        dense.kernel.assign(kernel)
        dense.bias.assign(bias)
        projections.append(kernel.reshape(8, 8).T)
        biases.append(bias.reshape(8))
    kernel, bias = r.array(2, 4, 8, unit=1 / 64, reach=32), r.array(8)
    layer._output_dense.kernel.assign(kernel)
    layer._output_dense.bias.assign(bias)
    y = layer(x, x)
    params = {
        "in_proj_weight": plain(np.concatenate(projections)),
        "in_proj_bias": plain(np.concatenate(biases)),
        "out_proj.weight": plain(kernel.reshape(8, 8).T),
        "out_proj.bias": plain(bias),
    }
    return {"case": "attention", "params": params, "x": plain(x), "y": plain(y), "dtype": name(y.dtype)}


def losses():
    r = Lcg(3)
    logits = ops.cast(r.array(6, 4), "float16")
    classes = np.array([0, 3, 1, 2, 2, 0], dtype="int32")
    target = ops.cast(r.array(6, 4), "float16")
    mse = keras.losses.MeanSquaredError()(target, logits)
    ce = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(classes, logits)
    return {
        "case": "losses",
        "logits": plain(logits),
        "classes": classes.tolist(),
        "target": plain(target),
        "mse": float(mse),
        "cross_entropy": float(ce),
        "dtypes": [name(mse.dtype), name(ce.dtype)],
    }


def stepper(optimizer, weight):
    """A compiled step: `apply` itself leaks tracers out of its `cond` on JAX."""
    compiled = jax.jit(optimizer.stateless_apply)

    def step(grad):
        state = [v.value for v in optimizer.variables]
        values, state = compiled(state, [ops.convert_to_tensor(grad)], [weight.value])
        weight.assign(values[0])
        for variable, value in zip(optimizer.variables, state):
            variable.assign(value)

    return step


def steps(case, inner, gradients, growth):
    """Steps of given gradients, multiplied by the scale of the moment."""
    start = np.array([1.0, -0.5, 2.0], dtype="float32")
    weight = keras.Variable(start, name="w")
    optimizer = keras.optimizers.LossScaleOptimizer(inner, dynamic_growth_steps=growth)
    optimizer.build([weight])
    step = stepper(optimizer, weight)
    rows = []
    for g in gradients:
        scaled = np.array(g, dtype="float32") * float(ops.convert_to_numpy(optimizer.dynamic_scale))
        step(scaled)
        row = {
            "scale": float(ops.convert_to_numpy(optimizer.dynamic_scale)),
            "counter": int(ops.convert_to_numpy(optimizer.step_counter)),
            "iterations": int(ops.convert_to_numpy(inner.iterations)),
            "w": plain(weight.value)["data"],
        }
        if inner.use_ema:
            row["average"] = plain(inner._model_variables_moving_average[0])["data"]
        rows.append(row)
    shown = [[v if np.isfinite(v) else str(v) for v in g] for g in gradients]
    return {"case": case, "growth": growth, "start": plain(start)["data"], "gradients": shown, "steps": rows}


def step_cases():
    inf, nan = float("inf"), float("nan")
    good = [[0.5, -1.0, 0.25], [2.0, 0.5, -1.5], [-0.25, 3.0, 0.125], [1.0, 1.0, -2.0]]
    mixed = [good[0], [inf, 0.0, 0.0], good[1], good[2], [0.0, nan, 1.0], [0.0, -inf, 1.0], good[3]]
    mixed += good + [[1.0, inf, 1.0]] + good
    sgd = lambda **k: keras.optimizers.SGD(0.1, momentum=0.9, **k)
    adamw = lambda **k: keras.optimizers.AdamW(0.01, weight_decay=0.1, epsilon=1e-8, **k)
    return [
        steps("sgd", sgd(), mixed, 3),
        steps("adamw_ema_clip", adamw(use_ema=True, ema_momentum=0.75, global_clipnorm=1.0), mixed, 3),
        steps("accumulate", sgd(gradient_accumulation_steps=2, global_clipnorm=2.0), good * 2, 2000),
    ]


def scales():
    """Run lengths of the scale over 4,100 steps, of which some overflow: [scale, steps]."""
    weight = keras.Variable(np.zeros(1, dtype="float32"))
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.0))
    optimizer.build([weight])
    apply = stepper(optimizer, weight)
    zero, bad = np.zeros(1, "float32"), np.array([np.inf], "float32")
    overflows = [2, 2004, 2005]
    runs = []
    for step in range(4100):
        apply(bad if step in overflows else zero)
        scale = float(ops.convert_to_numpy(optimizer.dynamic_scale))
        if runs and runs[-1][0] == scale:
            runs[-1][1] += 1
        else:
            runs.append([scale, 1])
    return {"case": "scales", "overflows": overflows, "runs": runs}


def inputs():
    """Dtypes that a layer sees of what it is given."""

    class Look(layers.Layer):
        def call(self, x):
            self.seen = name(x.dtype)
            return x

    found = []
    for dtype in ["float32", "float16", "bfloat16", "int32", "uint8", "bool"]:
        layer = Look(dtype="mixed_float16")
        layer(ops.cast(np.ones((2, 2)), dtype))
        found.append([dtype, layer.seen])
    return {"case": "inputs", "seen": found}


def gradients():
    """Dtypes of gradients and slots of a mixed layer."""
    layer = layers.Dense(2, dtype="mixed_float16")
    layer.build((4, 3))
    x = ops.ones((4, 3))
    state = [v.value for v in layer.trainable_variables]

    def loss(values):
        y, _ = layer.stateless_call(values, [], x)
        return ops.mean(ops.cast(y, "float32"))

    grads = jax.grad(loss)(state)
    optimizer = keras.optimizers.Adam()
    optimizer.build(layer.trainable_variables)
    slots = [v for v in optimizer.variables if len(v.shape) > 0]
    return {
        "case": "gradients",
        "gradients": [name(g.dtype) for g in grads],
        "slots": [name(v.dtype) for v in slots],
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    out = parser.parse_args().out / "keras_mixed.json"
    cases = [policies(), inputs(), gradients(), *layer_cases(), attention(), losses()]
    cases += [*step_cases(), scales()]
    lines = ",\n".join(json.dumps(case) for case in cases)
    out.write_text(f"[{lines}]\n")


if __name__ == "__main__":
    main()
