# requires: numpy==2.4.6 ml_dtypes==0.6.0
"""Writes casts.txt: what NumPy and ml_dtypes make of casts, for bimetal-tensor's tests.

Lines of the file:

    values TARGET HEX...              all 256 values of an 8-bit float, as f32 bits
    sample TARGET IN:OUT...           single casts of f32 bits, to find an error by
    hash MODE SET SOURCE TARGET HASH  FNV-1a 64 over the little-endian results of a whole set

The test generates the same sets. NaNs are compared with their sign but without their payload.
"""

import argparse
import pathlib
import warnings

import ml_dtypes
import numpy as np

warnings.simplefilter("ignore")  # overflow and NaN are what is tested

TYPES = {
    "uint8": np.uint8,
    "bool": np.bool_,
    "uint32": np.uint32,
    "int32": np.int32,
    "int64": np.int64,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "float64": np.float64,
}
NARROW = ["float8_e4m3fn", "float8_e5m2", "float16", "bfloat16"]
QUIET_NAN = {
    "float8_e4m3fn": 0x7F,
    "float8_e5m2": 0x7E,
    "float16": 0x7E00,
    "bfloat16": 0x7FC0,
    "float32": 0x7FC00000,
    "float64": 0x7FF8000000000000,
}


def unsigned(values):
    return values.view(f"u{values.dtype.itemsize}")


def patterns(name):
    """Every bit pattern of a narrow float, in order."""
    size = np.dtype(TYPES[name]).itemsize
    return np.arange(256**size, dtype=f"u{size}").view(TYPES[name])


def near(name):
    """f32 neighbourhoods of every finite value and half-way point of a narrow float, both signs."""
    values = patterns(name)[: 1 << (np.dtype(TYPES[name]).itemsize * 8 - 1)].astype(np.float32)
    values = values[np.isfinite(values)].astype(np.float64)
    step = values[-1] - values[-2]
    middles = (values + np.append(values[1:], values[-1] + step)) / 2
    bits = np.stack([values, middles], 1).astype(np.float32).view(np.uint32).reshape(-1).astype(np.int64)
    bits = np.stack([bits - 1, bits, bits + 1], 1).reshape(-1)
    bits = bits[bits >= 0]  # 0 has no lower neighbour
    bits = np.stack([bits, bits | 0x80000000], 1).reshape(-1)
    return bits.astype(np.uint32).view(np.float32)


def splitmix(count):
    with np.errstate(over="ignore"):
        z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def strided():
    """f32 bits 0, 16411, 2 * 16411 ... up to 2^32."""
    return np.arange(0, 1 << 32, 16411, dtype=np.uint64).astype(np.uint32).view(np.float32)


def wide_ints():
    """i64 of every magnitude: random bits, shifted right by 0, 1 ... 63, 0 ..."""
    count = 1 << 16
    return splitmix(count).view(np.int64) >> (np.arange(count, dtype=np.int64) % 64)


def wide_floats():
    """f64 with random sign and mantissa and exponents -40 to 23."""
    bits = splitmix(1 << 16)
    exponent = (bits >> np.uint64(52)) % np.uint64(64) + np.uint64(1023 - 40)
    bits = (bits & np.uint64(0x800FFFFFFFFFFFFF)) | (exponent << np.uint64(52))
    return bits.view(np.float64)


def cast(values, target, saturate=False):
    if saturate:
        largest = np.float32(ml_dtypes.finfo(TYPES[target]).max)
        values = np.where(np.isnan(values), values, np.clip(values, -largest, largest))
    out = unsigned(values.astype(TYPES[target])).copy()
    if target in QUIET_NAN:
        nan = np.isnan(out.view(TYPES[target]).astype(np.float64))
        sign = out.dtype.type(1 << (out.dtype.itemsize * 8 - 1))
        out[nan] = (out[nan] & sign) | out.dtype.type(QUIET_NAN[target])
    return out


def fnv(values):
    state = 0xCBF29CE484222325
    for byte in values.astype(values.dtype.newbyteorder("<")).tobytes():
        state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{state:016x}"


def lines():
    for name in NARROW[:2]:
        bits = unsigned(cast(patterns(name), "float32"))
        yield " ".join(["values", name] + [f"{b:x}" for b in bits])
    for name in NARROW:
        inputs = near(name)
        inputs = inputs[:: max(1, len(inputs) // 1500) | 1]
        pairs = zip(unsigned(inputs), cast(inputs, name))
        yield " ".join(["sample", name] + [f"{i:x}:{o:x}" for i, o in pairs])
    floats = {"strided": strided()}
    for name in NARROW:
        floats["near_" + name] = near(name)
    for target in NARROW:
        for label, inputs in floats.items():
            yield f"hash plain {label} float32 {target} {fnv(cast(inputs, target))}"
            yield f"hash saturating {label} float32 {target} {fnv(cast(inputs, target, True))}"
    for source in NARROW:
        for target in NARROW + ["float32", "float64"]:
            if source != target:
                # Through f32, which is exact; ml_dtypes casts some pairs only so.
                out = cast(patterns(source).astype(np.float32), target)
                yield f"hash plain patterns {source} {target} {fnv(out)}"
    # Only targets that NumPy reaches with a single rounding.
    for target in ["bool", "uint8", "uint32", "int32", "float32", "float64"]:
        yield f"hash plain wide_ints int64 {target} {fnv(cast(wide_ints(), target))}"
    for target in ["bool", "float16", "float32"]:
        yield f"hash plain wide_floats float64 {target} {fnv(cast(wide_floats(), target))}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    header = f"# make_casts.py, numpy {np.__version__}, ml_dtypes {ml_dtypes.__version__}"
    (parser.parse_args().out / "casts.txt").write_text("\n".join([header, *lines()]) + "\n")
