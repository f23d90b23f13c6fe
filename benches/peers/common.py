"""What the peers' scripts share: the command line, clocks, and rows as lines of JSON."""

import argparse
import json
import os
import time


def arguments(text):
    """The words that the bench calls a peer with."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--name", required=True, help="W1 to W11")
    parser.add_argument("--variants", required=True, help="train, or what a kernel does, separated by commas")
    parser.add_argument("--dtype", choices=["f32", "bf16", "f16"], default="f32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="0 takes two samples")
    return parser.parse_args()


def peak_rss_mb():
    """The most memory that this process has held; not ru_maxrss, which survives exec."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return None


def median(values):
    values = sorted(values)
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def times(run, seconds):
    """Medians and minima of a run, by the rules of the bench: samples of at least 0.2 ms, at least five of them."""
    for _ in range(4 if seconds else 1):
        run()

    def sample(runs):
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(runs):
            run()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        return cpu * 1e3 / runs, wall * 1e3 / runs

    estimate = max(sample(1)[1], 1e-6)
    runs = max(1, -int(-0.2 // estimate))
    count = max(5 if seconds else 2, int(min(2000, seconds * 1e3 / (estimate * runs))))
    cpu, wall = zip(*(sample(runs) for _ in range(count)))
    return {
        "cpu_ms": median(cpu),
        "cpu_ms_min": min(cpu),
        "wall_ms": median(wall),
        "wall_ms_min": min(wall),
        "samples": count,
    }


def emit(arguments, peer, variant, measured, base, **more):
    row = {
        "name": arguments.name,
        "variant": variant,
        "dtype": arguments.dtype,
        "threads": arguments.threads,
        **measured,
        "peak_rss_mb": peak_rss_mb(),
        "base_rss_mb": base,
        "load": os.getloadavg()[0],
        "peer": peer,
        "rounds": 1,
        **more,
    }
    print(json.dumps(row), flush=True)


def shape(variant):
    """The numbers at the end of a variant: `fwd 8192x1024`, `NT 128x512x784`."""
    return [int(n) for n in variant.split()[-1].split("x")]


# Sizes of W11's parameters: 25 million elements.
W11_SIZES = [4_000_000] * 5 + [500_000] * 8 + [10_000] * 100
