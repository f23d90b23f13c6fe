# requires: torch==2.15.0 numpy
"""Ten steps of each optimizer over given gradients, clipping by global norm, schedules.

The gradients are inputs of the case (`grad_weight` is `[steps, ...]`), so a test needs no
differentiation; the outputs hold the parameters after every step.
"""

import math

import torch

from _fixture import Lcg, main, plain

STEPS = 10
SHAPES = {"weight": (3, 2), "bias": (4,)}


def trajectory(name, make, attrs, lr_of_step=None, zero=False):
    r = Lcg(sum(map(ord, name)))
    start = {k: r.tensor(*shape) for k, shape in SHAPES.items()}
    grads = {k: r.tensor(STEPS, *shape, low=-12, high=12) for k, shape in SHAPES.items()}
    if zero:
        # From the first step on one element, and in one step every element, has no gradient.
        grads["bias"][:, 0] = 0
        grads["weight"][4] = 0
    params = {k: torch.nn.Parameter(v.clone()) for k, v in start.items()}
    optimizer = make(params)
    after = {k: [] for k in params}
    for step in range(STEPS):
        if lr_of_step is not None:
            for group in optimizer.param_groups:
                group["lr"] = lr_of_step(step)
        for k, p in params.items():
            p.grad = grads[k][step].clone()
        optimizer.step()
        for k, p in params.items():
            after[k].append(p.detach().clone())
    outputs = {k: torch.stack(v) for k, v in after.items()}
    for k, p in params.items():
        for slot, value in optimizer.state[p].items():
            if slot != "step" and value is not None:
                outputs[f"{k}.{slot}"] = value
    if lr_of_step is not None:
        attrs = attrs | {"lr": [lr_of_step(step) for step in range(STEPS)]}
    return {
        "case": name,
        "attrs": {"steps": STEPS} | attrs,
        "inputs": {k: plain(v) for k, v in start.items()}
        | {f"grad_{k}": plain(v) for k, v in grads.items()},
        "outputs": {k: plain(v) for k, v in outputs.items()},
        "grads": {},
    }


def optimizers():
    sgd, adam, adamw = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
    for name, kind, attrs in [
        ("sgd", sgd, {"lr": 0.1}),
        ("sgd_weight_decay", sgd, {"lr": 0.1, "weight_decay": 0.05}),
        ("sgd_momentum", sgd, {"lr": 0.1, "momentum": 0.9}),
        ("sgd_momentum_dampened", sgd, {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
        ("sgd_nesterov_weight_decay", sgd, {"lr": 0.05, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01}),
        ("adam", adam, {"lr": 1e-2}),
        ("adam_large_eps_and_betas", adam, {"lr": 0.1, "betas": (0.8, 0.95), "eps": 0.1}),
        ("adam_coupled_weight_decay", adam, {"lr": 1e-2, "weight_decay": 0.1}),
        ("adamw", adamw, {"lr": 1e-2, "weight_decay": 0.01}),
        ("adamw_nanogpt", adamw, {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.1}),
    ]:
        defaults = {"weight_decay": 0.0}
        defaults |= (
            {"momentum": 0.0, "dampening": 0.0, "nesterov": False}
            if kind is sgd
            else {"betas": (0.9, 0.999), "eps": 1e-8}
        )
        attrs = defaults | attrs
        yield trajectory(name, lambda p, kind=kind, a=attrs: kind(p.values(), **a), attrs)
    yield trajectory(
        "adam_zero_gradients", lambda p: adam(p.values(), lr=1e-2), {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}, zero=True
    )
    groups = {"weight": {"lr": 1e-2, "weight_decay": 0.1}, "bias": {"lr": 2e-2, "weight_decay": 0.0}}
    yield trajectory(
        "adamw_groups",
        lambda p: adamw([{"params": [p[k]]} | g for k, g in groups.items()]),
        {"groups": groups, "betas": (0.9, 0.999), "eps": 1e-8},
    )
    # The momentum buffer holds gradients, not updates: a change of the rate does not rescale it.
    yield trajectory(
        "sgd_momentum_changing_lr",
        lambda p: sgd(p.values(), lr=1.0, momentum=0.9),
        {"momentum": 0.9, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0},
        lr_of_step=lambda step: 0.1 / (step + 1),
    )


def clipping():
    r = Lcg(21)
    for name, max_norm, scale in [("clipped", 1.0, 1.0), ("not_reached", 100.0, 1.0), ("zero", 1.0, 0.0), ("huge", 2.5, 2.0**100)]:
        grads = {k: r.tensor(*shape) * scale for k, shape in SHAPES.items()}
        params = [torch.nn.Parameter(torch.zeros_like(g)) for g in grads.values()]
        for p, g in zip(params, grads.values()):
            p.grad = g.clone()
        norm = torch.nn.utils.clip_grad_norm_(params, max_norm)
        yield {
            "case": f"clip_grad_norm_{name}",
            "attrs": {"max_norm": max_norm, "note": "factor = min(1, max_norm / (norm + 1e-6))"},
            "inputs": {k: plain(g) for k, g in grads.items()},
            "outputs": {"norm": plain(norm)} | {k: plain(p.grad) for k, p in zip(grads, params)},
            "grads": {},
        }


def schedules():
    peak, floor, warmup, total = 1e-3, 1e-4, 5, 25

    def emit(name, attrs, rates):
        return {"case": name, "attrs": attrs, "inputs": {}, "outputs": {"lr": plain(torch.tensor(rates))}, "grads": {}}

    def nanogpt(step):
        if step < warmup:
            return peak * (step + 1) / (warmup + 1)
        if step > total:
            return floor
        done = (step - warmup) / (total - warmup)
        return floor + 0.5 * (1 + math.cos(math.pi * done)) * (peak - floor)

    attrs = {"peak": peak, "floor": floor, "warmup": warmup, "total": total}
    note = "warm-up: peak * (step + 1) / (warmup + 1); then cosine from peak at step = warmup to floor at step = total"
    yield emit("warmup_cosine_nanogpt", attrs | {"note": note}, [nanogpt(s) for s in range(total + 5)])

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1 / warmup, total_iters=warmup - 1),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total - warmup, eta_min=floor),
        ],
        milestones=[warmup],
    )
    rates = []
    for _ in range(total + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    note = "warm-up: peak * (step + 1) / warmup; then cosine from peak at step = warmup to floor at step = total"
    yield emit("warmup_cosine_torch", attrs | {"note": note}, rates)

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10, eta_min=floor)
    rates = []
    for _ in range(11):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    yield emit("cosine", {"peak": peak, "floor": floor, "total": 10}, rates)


main({f.__name__: f for f in [optimizers, clipping, schedules]})
