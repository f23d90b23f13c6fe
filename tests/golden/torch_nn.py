# requires: torch==2.15.0 numpy
"""Values and gradients of layers, activations and losses."""

import torch
import torch.nn.functional as F

from _fixture import Lcg, case, main


def linear():
    r = Lcg(1)
    x, w, b = r.tensor(3, 5), r.tensor(4, 5), r.tensor(4)
    yield case("linear", {"x": x, "weight": w, "bias": b}, lambda x, weight, bias: F.linear(x, weight, bias), cotangent=r.tensor(3, 4))
    x = r.tensor(2, 3, 5)
    yield case("linear_3d_no_bias", {"x": x, "weight": w}, lambda x, weight: F.linear(x, weight), cotangent=r.tensor(2, 3, 4))


def conv2d():
    r = Lcg(2)
    for name, n, c, h, w, o, k, attrs in [
        ("plain", 2, 2, 5, 6, 3, (3, 3), {}),
        ("same", 1, 2, 5, 5, 2, (3, 3), {"padding": (1, 1)}),
        ("strided", 2, 2, 6, 5, 2, (3, 2), {"stride": (2, 1), "padding": (1, 0)}),
        ("stride_leaves_a_rest", 1, 1, 6, 7, 2, (3, 3), {"stride": (2, 3)}),
        ("dilated", 1, 2, 7, 6, 2, (3, 2), {"dilation": (2, 3), "padding": (1, 2)}),
        ("grouped", 2, 4, 4, 4, 6, (3, 3), {"groups": 2, "padding": (1, 1)}),
        ("depthwise", 1, 3, 5, 5, 3, (3, 3), {"groups": 3, "stride": (2, 2), "padding": (1, 1)}),
        ("pointwise", 2, 3, 3, 3, 4, (1, 1), {}),
    ]:
        attrs = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1} | attrs
        x, weight, bias = r.tensor(n, c, h, w), r.tensor(o, c // attrs["groups"], *k), r.tensor(o)
        run = lambda x, weight, bias, attrs=attrs: F.conv2d(x, weight, bias, **attrs)
        g = r.tensor(*run(x, weight, bias).shape)
        yield case(f"conv2d_{name}", {"x": x, "weight": weight, "bias": bias}, run, attrs, g)


def pool2d():
    r = Lcg(3)
    for name, pool, attrs in [
        ("max_plain", F.max_pool2d, {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}),
        ("max_overlapping", F.max_pool2d, {"kernel": (3, 2), "stride": (1, 2), "padding": (1, 1)}),
        ("max_rest", F.max_pool2d, {"kernel": (3, 3), "stride": (3, 3), "padding": (0, 0)}),
        ("avg_plain", F.avg_pool2d, {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}),
        ("avg_padded", F.avg_pool2d, {"kernel": (3, 3), "stride": (2, 1), "padding": (1, 1), "count_include_pad": True}),
        ("avg_padding_not_counted", F.avg_pool2d, {"kernel": (3, 3), "stride": (2, 1), "padding": (1, 1), "count_include_pad": False}),
    ]:
        x = r.distinct(2, 2, 5, 6)
        extra = {k: v for k, v in attrs.items() if k == "count_include_pad"}
        run = lambda x, pool=pool, a=attrs, e=extra: pool(x, a["kernel"], a["stride"], a["padding"], **e)
        yield case(f"pool2d_{name}", {"x": x}, run, attrs, r.tensor(*run(x).shape))
    # Equal elements in a window: the gradient goes to the first one.
    x = torch.ones(1, 1, 4, 4)
    run = lambda x: F.max_pool2d(x, 2)
    attrs = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}
    yield case("pool2d_max_ties", {"x": x}, run, attrs, r.tensor(1, 1, 2, 2))


def norms():
    r = Lcg(4)
    for name, shape, axes, eps in [
        ("last_axis", (3, 6), 1, 1e-5),
        ("two_axes", (2, 3, 4), 2, 1e-3),
    ]:
        normalized = shape[-axes:]
        x, w, b = r.tensor(*shape), r.tensor(*normalized), r.tensor(*normalized)
        run = lambda x, weight, bias, n=normalized, e=eps: F.layer_norm(x, n, weight, bias, e)
        attrs = {"normalized_shape": normalized, "eps": eps}
        yield case(f"layer_norm_{name}", {"x": x, "weight": w, "bias": b}, run, attrs, r.tensor(*shape))
    # Constant rows: the variance is 0 and only eps keeps the result finite.
    x, w = torch.full((2, 4), 1.5), r.tensor(4)
    run = lambda x, weight: F.layer_norm(x, (4,), weight, None, 1e-5)
    yield case("layer_norm_constant_rows", {"x": x, "weight": w}, run, {"normalized_shape": (4,), "eps": 1e-5}, r.tensor(2, 4))

    x, w, b = r.tensor(3, 2, 2, 3), r.tensor(2), r.tensor(2)
    for training in (True, False):
        mean, var = torch.tensor([0.5, -0.25]), torch.tensor([1.5, 0.75])
        stats = {"running_mean": mean.clone(), "running_var": var.clone()}
        run = lambda x, weight, bias, s=stats, t=training: F.batch_norm(
            x, s["running_mean"], s["running_var"], weight, bias, t, 0.1, 1e-5
        )
        attrs = {
            "training": training,
            "momentum": 0.1,
            "eps": 1e-5,
            "note": "running = (1 - momentum) * running + momentum * batch; the running variance takes the unbiased batch variance",
            "running_mean_before": mean.tolist(),
            "running_var_before": var.tolist(),
        }
        name = "batch_norm_train" if training else "batch_norm_eval"
        yield case(name, {"x": x, "weight": w, "bias": b}, run, attrs, r.tensor(3, 2, 2, 3), extra=lambda s=stats: s)


def activations():
    r = Lcg(5)
    x, g = torch.cat([r.tensor(15, low=-40, high=40), torch.zeros(1)]), r.tensor(16)
    for name, f in [
        ("relu", F.relu),
        ("gelu", lambda x: F.gelu(x)),
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
        ("silu", F.silu),
        ("tanh", torch.tanh),
        ("sigmoid", torch.sigmoid),
        ("softplus", F.softplus),
        ("elu", F.elu),
    ]:
        yield case(name, {"x": x}, lambda x, f=f: f(x), cotangent=g)
    # Far out the naive formulas overflow in any precision.
    x, g = torch.tensor([-1000.0, -100.0, -20.0, 20.0, 100.0, 1000.0]), torch.ones(6)
    for name, f in [("gelu", F.gelu), ("silu", F.silu), ("sigmoid", torch.sigmoid), ("tanh", torch.tanh)]:
        yield case(f"{name}_far_out", {"x": x}, lambda x, f=f: f(x), cotangent=g)


def softmax():
    r = Lcg(6)
    for name, f in [("softmax", F.softmax), ("log_softmax", F.log_softmax)]:
        for dim in (0, 1, 2):
            x, g = r.tensor(2, 3, 4, low=-40, high=40), r.tensor(2, 3, 4)
            yield case(f"{name}_axis{dim}", {"x": x}, lambda x, f=f, d=dim: f(x, d), {"axis": dim}, g)
        x = torch.tensor([[60000.0, 59999.0, -60000.0], [-60000.0, -60000.0, -60000.0]])
        yield case(f"{name}_large", {"x": x}, lambda x, f=f: f(x, -1), {"axis": -1}, r.tensor(2, 3))
        x = torch.tensor([[0.5, float("-inf"), 1.0], [float("-inf"), 0.0, float("-inf")]])
        g = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]])
        yield case(f"{name}_masked", {"x": x}, lambda x, f=f: f(x, -1), {"axis": -1}, g)


def losses():
    r = Lcg(7)
    logits = r.tensor(6, 5, low=-32, high=32)
    target = r.indices(6, below=5)
    ignored = target.clone()
    ignored[1] = ignored[4] = -100
    for name, t, attrs in [
        ("mean", target, {}),
        ("sum", target, {"reduction": "sum"}),
        ("none", target, {"reduction": "none"}),
        ("smoothed", target, {"label_smoothing": 0.1}),
        ("ignore_index", ignored, {}),
        ("ignore_index_smoothed", ignored, {"label_smoothing": 0.25}),
        ("ignore_index_smoothed_sum", ignored, {"label_smoothing": 0.25, "reduction": "sum"}),
        ("ignore_index_none", ignored, {"reduction": "none"}),
    ]:
        attrs = {"reduction": "mean", "label_smoothing": 0.0, "ignore_index": -100} | attrs
        run = lambda logits, target, a=attrs: F.cross_entropy(logits, target, **a)
        g = r.tensor(6) if attrs["reduction"] == "none" else None
        yield case(f"cross_entropy_{name}", {"logits": logits, "target": t}, run, attrs, g)
    x, t = r.tensor(3, 4), r.tensor(3, 4)
    for reduction in ("mean", "sum", "none"):
        g = r.tensor(3, 4) if reduction == "none" else None
        run = lambda x, target, red=reduction: F.mse_loss(x, target, reduction=red)
        yield case(f"mse_{reduction}", {"x": x, "target": t}, run, {"reduction": reduction}, g)
    x, t = r.tensor(8, low=-80, high=80), r.tensor(8, low=0, high=8)
    run = lambda x, target: F.binary_cross_entropy_with_logits(x, target)
    yield case("bce_with_logits_mean", {"x": x, "target": t}, run, {"reduction": "mean"})


def embedding():
    r = Lcg(8)
    weight = r.tensor(6, 3)
    index = torch.tensor([[0, 2, 2, 5], [2, 0, 3, 2]])
    run = lambda weight, index: F.embedding(index, weight)
    yield case("embedding_repeated_indices", {"weight": weight, "index": index}, run, cotangent=r.tensor(2, 4, 3))


def attention():
    r = Lcg(9)
    b, h, t, d = 2, 2, 4, 3
    shape = (b, h, t, d)
    padding = torch.tensor([[False, False, False, False], [False, False, True, True]])
    for name, causal, padded in [("plain", False, False), ("causal", True, False), ("padded", False, True), ("causal_padded", True, True)]:
        q, k, v, g = r.tensor(*shape), r.tensor(*shape), r.tensor(*shape), r.tensor(*shape)

        def run(q, k, v, key_padding=None, causal=causal):
            allowed = torch.ones(t, t, dtype=torch.bool)
            if causal:
                allowed = allowed.tril()
            allowed = allowed.expand(b, 1, t, t)
            if key_padding is not None:
                allowed = allowed & ~key_padding[:, None, None, :]
            return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)

        inputs = {"q": q, "k": k, "v": v} | ({"key_padding": padding} if padded else {})
        attrs = {"causal": causal, "scale": d**-0.5, "note": "key_padding is 1 where the key is padding"}
        yield case(f"attention_{name}", inputs, run, attrs, g)


def multi_head_attention():
    r = Lcg(10)
    b, t, s, d, heads = 2, 3, 4, 4, 2
    names = ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]
    shapes = [(3 * d, d), (3 * d,), (d, d), (d,)]
    padding = torch.tensor([[False, False, False], [False, True, True]])
    note = "in_proj stacks the query, key and value projections, each [d, d] as a linear layer's weight; key_padding is 1 where the key is padding"

    def forward(x, memory, params, causal, key_padding):
        module = torch.nn.MultiheadAttention(d, heads, batch_first=True)
        mask = torch.ones(t, t, dtype=torch.bool).triu(1) if causal else None
        y, weights = torch.func.functional_call(
            module, params, (x, memory, memory), {"attn_mask": mask, "key_padding_mask": key_padding}
        )
        return {"y": y, "weights_mean_over_heads": weights}

    for name, causal, padded, cross in [("self_causal", True, False, False), ("self_padded", False, True, False), ("cross", False, False, True)]:
        inputs = {"x": r.tensor(b, t, d)}
        if cross:
            inputs["memory"] = r.tensor(b, s, d)
        inputs |= {n: r.tensor(*shape, low=-8, high=8) for n, shape in zip(names, shapes)}
        if padded:
            inputs["key_padding"] = padding

        def run(x, memory=None, key_padding=None, causal=causal, **params):
            return forward(x, x if memory is None else memory, params, causal, key_padding)

        attrs = {"heads": heads, "causal": causal, "note": note}
        yield case(f"multi_head_attention_{name}", inputs, run, attrs, r.tensor(b, t, d))


def lstm():
    r = Lcg(11)
    b, t, i, h = 2, 4, 3, 3
    note = "gates stand in the order input, forget, cell, output in each [4 * hidden, ...] weight"
    for name, layers, initial in [("one_layer", 1, False), ("two_layers_with_state", 2, True)]:
        inputs = {"x": r.tensor(b, t, i)}
        for layer in range(layers):
            width = i if layer == 0 else h
            inputs[f"weight_ih_l{layer}"] = r.tensor(4 * h, width, low=-8, high=8)
            inputs[f"weight_hh_l{layer}"] = r.tensor(4 * h, h, low=-8, high=8)
            inputs[f"bias_ih_l{layer}"] = r.tensor(4 * h, low=-8, high=8)
            inputs[f"bias_hh_l{layer}"] = r.tensor(4 * h, low=-8, high=8)
        if initial:
            inputs |= {"h0": r.tensor(layers, b, h), "c0": r.tensor(layers, b, h)}

        def run(x, h0=None, c0=None, layers=layers, **params):
            module = torch.nn.LSTM(i, h, num_layers=layers, batch_first=True)
            state = None if h0 is None else (h0, c0)
            y, (hn, cn) = torch.func.functional_call(module, params, (x, state))
            return {"y": y, "hn": hn, "cn": cn}

        attrs = {"layers": layers, "hidden": h, "batch_first": True, "note": note}
        yield case(f"lstm_{name}", inputs, run, attrs, r.tensor(b, t, h))


main(
    {
        f.__name__: f
        for f in [linear, conv2d, pool2d, norms, activations, softmax, losses, embedding, attention, multi_head_attention, lstm]
    }
)
