#!/usr/bin/env python3
"""The train steps of `bimetal-gpu bench` in PyTorch: the same networks, batches, optimizers and precisions.

Eager, with automatic mixed precision; GPT-2 also compiled (--full: all of them). Rows are written after each measurement.
Exit code 3: no torch, or no CUDA device for it.
"""
import argparse, json, sys, time

parser = argparse.ArgumentParser()
parser.add_argument("--json")
parser.add_argument("--full", action="store_true")
parser.add_argument("--tiny", action="store_true", help="small sizes, on the CPU if there is no GPU")
args = parser.parse_args()

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError:
    print("python3 has no torch")
    sys.exit(3)
if not torch.cuda.is_available() and not args.tiny:
    print(f"torch {torch.__version__} sees no CUDA device")
    sys.exit(3)
device = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    def __init__(self, width, heads, gpt):
        super().__init__()
        self.heads, self.gpt = heads, gpt
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def attend(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0, is_causal=self.gpt)
        return self.drop(self.out(y.transpose(1, 2).reshape(b, t, w)))

    def hidden(self, x):
        return self.drop(self.down(F.gelu(self.up(x))))

    def forward(self, x):
        if self.gpt:
            x = x + self.attend(self.norm1(x))
            return x + self.hidden(self.norm2(x))
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.hidden(x))


class Transformer(nn.Module):
    def __init__(self, words, time, depth, width, heads, gpt):
        super().__init__()
        self.gpt = gpt
        self.tokens, self.positions = nn.Embedding(words, width), nn.Embedding(time, width)
        self.blocks = nn.ModuleList(Block(width, heads, gpt) for _ in range(depth))
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        if not gpt:
            self.pool, self.head = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, x):
        x = self.tokens(x) + self.positions.weight
        x = self.drop(x if self.gpt else self.norm(x))
        for block in self.blocks:
            x = block(x)
        if self.gpt:
            return F.linear(self.norm(x), self.tokens.weight).flatten(0, 1)
        return self.head(torch.tanh(self.pool(x[:, 0])))


def normed(inputs, outputs, kernel, stride):
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.a, self.b = normed(inputs, width, 1, 1), normed(width, width, 3, stride)
        self.c = normed(width, 4 * width, 1, 1)
        self.shortcut = normed(inputs, 4 * width, 1, stride) if stride != 1 or inputs != 4 * width else nn.Identity()

    def forward(self, x):
        return F.relu(self.c(F.relu(self.b(F.relu(self.a(x))))) + self.shortcut(x))


def resnet(width, blocks, classes):
    layers = [normed(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            layers.append(Bottleneck(inputs, width << stage, 2 if stage and not block else 1))
            inputs = 4 * (width << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def network(name):
    """The network, its batch, and the number of items in it."""
    if name == "resnet-50":
        batch, size, width, blocks, classes = (2, 32, 4, [1] * 4, 10) if args.tiny else (64, 224, 64, [3, 4, 6, 3], 1000)
        x = torch.randn(batch, 3, size, size, device=device)
        return resnet(width, blocks, classes), x, torch.randint(classes, (batch,), device=device), batch
    gpt = name == "gpt2-124m"
    batch, time, depth, width, heads = (2, 16, 1, 16, 2) if args.tiny else (8 if gpt else 32, 1024 if gpt else 128, 12, 768, 12)
    words = 64 if args.tiny else (50257 if gpt else 30522)
    x = torch.randint(words, (batch, time), device=device)
    y = torch.randint(words, (batch * time,), device=device) if gpt else torch.randint(2, (batch,), device=device)
    return Transformer(words, time, depth, width, heads, gpt), x, y, batch * time


def measure(name, precision, compiled):
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    model, x, y, items = network(name)
    model = model.to(device).train()
    parameters = sum(p.numel() for p in model.parameters())
    fused = {"fused": True} if device == "cuda" else {}
    if name == "resnet-50":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, **fused)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, **fused)
    half = {"mixed_bfloat16": torch.bfloat16, "mixed_float16": torch.float16}.get(precision)
    scaler = torch.amp.GradScaler(device, enabled=precision == "mixed_float16")
    run = torch.compile(model) if compiled else model

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=half or torch.bfloat16, enabled=half is not None):
            loss = F.cross_entropy(run(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss

    def batch(steps):
        start = time.perf_counter()
        for _ in range(steps):
            loss = step()
        value = loss.item()
        return (time.perf_counter() - start) / steps, value

    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    batch(3)
    found = sorted(batch(1 if args.tiny else 5) for _ in range(1 if args.tiny else 3))
    seconds, loss = found[len(found) // 2]
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    return {"seconds": seconds, "items_per_second": items / seconds, "peak_memory": peak, "parameters": parameters, "loss": loss}


rows = []
print(f"torch {torch.__version__} on {torch.cuda.get_device_name() if device == 'cuda' else 'the CPU'}")
for name in ["gpt2-124m", "bert-base", "resnet-50"]:
    for compiled in [False, True]:
        for precision in ["float32", "tf32", "mixed_bfloat16", "mixed_float16"]:
            if compiled and not args.full and (name != "gpt2-124m" or precision != "mixed_bfloat16"):
                continue
            if compiled and args.tiny:
                continue
            row = {"network": name, "precision": precision, "compiled": compiled}
            try:
                row.update(measure(name, precision, compiled))
                print(f"{name:10} {precision:15} {'compiled' if compiled else 'eager':8} {1e3 * row['seconds']:9.2f} ms", flush=True)
            except Exception as e:
                row["error"] = str(e).splitlines()[0][:200]
                print(f"{name:10} {precision:15} {row['error']}", flush=True)
            rows.append(row)
            if args.json:
                with open(args.json, "w") as file:
                    json.dump(rows, file, indent=2)
                    file.write("\n")
