#!/usr/bin/env python3
"""mmasim_judge.py SUMS_STEPS [--steps N] [--seed N] [--jsonl FILE]: holds the predictor of tensor-core sums against a
published model of them, mmasim (https://arxiv.org/abs/2511.10909), which shares no code with it.

Draws N steps (100,000) of each instruction of Hopper that both model, and compares every sum bit for bit. SUMS_STEPS is
the program of bench/sums_steps.c.

mmasim has no fp8 form of mma.sync on Hopper. nvcc compiles it as two f16 instructions and an addition, so its form
here is made of mmasim's f16 instruction in that way (docs/last-bit.md).

Prints a line per form. Status 1 if a sum differs or if a draw has lost its purpose, 2 if a program fails, and 77 with
the reason if mmasim is not installed."""

import argparse
import json
import subprocess
import sys

try:
    import numpy as np
    import torch
    import mmasim.nv_ptx as model
except ImportError as missing:
    print(f"mmasim_judge: SKIP: {missing}")
    sys.exit(77)

# Bits of the exponent and of the fraction, and the bias. tf32 is f32 whose low bits an instruction drops.
FORMAT = {"f16": (5, 10, 15), "bf16": (8, 7, 127), "f32": (8, 23, 127), "e4m3": (4, 3, 7), "e5m2": (5, 2, 15)}
CODES = {"f16": np.uint16, "bf16": np.uint16, "f32": np.uint32, "e4m3": np.uint8, "e5m2": np.uint8}
TORCH = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "e4m3": torch.float8_e4m3fn,
         "e5m2": torch.float8_e5m2}
SIGNED = {np.uint8: np.int8, np.uint16: np.int16, np.uint32: np.int32}

# Instruction, shape and types as mmasim names them; unit; types of a and b; K; type of the sum.
FORMS = [("mma", f"m16n8k{k}.f32.{t}.{t}.f32", "mma_16", t, t, k, "f32") for t in ("f16", "bf16") for k in (16, 8)]
FORMS += [("mma", f"m16n8k{k}.f16.f16.f16.f16", "mma_16_f16", "f16", "f16", k, "f16") for k in (16, 8)]
FORMS += [("mma", f"m16n8k{k}.f32.tf32.tf32.f32", "mma_tf32", "f32", "f32", k, "f32") for k in (8, 4)]
FORMS += [("wgmma", f"m64n8k16.f32.{t}.{t}", "wgmma_16", t, t, 16, "f32") for t in ("f16", "bf16")]
FORMS += [("wgmma", "m64n8k16.f16.f16.f16", "wgmma_16_f16", "f16", "f16", 16, "f16"),
          ("wgmma", "m64n8k8.f32.tf32.tf32", "wgmma_tf32", "f32", "f32", 8, "f32")]
FORMS += [(kind, f"{shape}k32.f32.{a}.{b}{tail}", unit, a, b, 32, "f32")
          for kind, shape, tail, unit in (("wgmma", "m64n8", "", "wgmma_8"), ("mma as f16", "m16n8", ".f32", "mma_8"))
          for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2")]

MODES = ("near", "any", "least", "zeros", "special", "cancel", "largest", "tiny", "ties")


def factors(draw, type_name, steps, K, mode):
    """Codes of one operand of each step."""
    exponent, fraction, bias = FORMAT[type_name]
    top = (1 << exponent) - 1
    last = top if type_name == "e4m3" else top - 1  # e4m3 has numbers with the largest exponent
    shape = (steps, K)
    base = draw.integers(0, top + 1, (steps, 1))
    field = draw.integers(0, last + 1, shape)
    if mode in ("near", "cancel"):
        field = np.clip(base + draw.integers(-6, 7, shape), 0, last)
    if mode == "least":
        near = np.clip(base + draw.integers(-4, 5, shape), 0, last)
        field = np.where(draw.integers(0, 4, shape) == 0, near, draw.integers(0, 3, shape))
    if mode == "largest":
        field = last - draw.integers(0, 3, shape)
    if mode == "tiny":  # products near the least f32 numbers, where the type has any
        field = np.clip(top // 4 - draw.integers(0, 5, (steps, 1)) + draw.integers(-6, 7, shape), 0, last)
    bits = draw.integers(0, 1 << fraction, shape)
    if mode == "ties":  # one product is a power of two, half of the least f16 number in most; the others are tiny
        bits = np.where(draw.integers(0, 3, shape) == 0, bits >> draw.integers(0, fraction + 1, (steps, 1)), 0)
        field = np.zeros(shape, np.int64)
        field[:, 0], bits[:, 0] = np.maximum(bias - draw.integers(12, 14, steps), 1), 0
    if mode == "zeros":
        zero = draw.integers(0, 3, shape) != 0
        field, bits = np.where(zero, 0, field), np.where(zero, 0, bits)
    if mode == "special":
        special = draw.integers(0, 41, shape) == 0
        infinite = special & (draw.integers(0, 4, shape) != 0)
        field, bits = np.where(special, top, field), np.where(infinite, 0, bits)
    sign = draw.integers(0, 2, shape)
    if mode == "cancel":  # every second product is the one before it, with the other sign
        field[:, 1::2], bits[:, 1::2], sign[:, 1::2] = field[:, ::2], bits[:, ::2], 1 - sign[:, ::2]
    return (sign << (exponent + fraction) | field << fraction | bits).astype(CODES[type_name])


def starts(draw, form, mode, a, b, steps):
    """The sums that the steps start from, as f32 bits: near the largest product, anything, zero and special values."""
    half = form[6] == "f16"
    exponent, fraction, bias = FORMAT[form[6]]
    top = (1 << exponent) - 1

    def powers(codes, type_name):
        e, f, of = FORMAT[type_name]
        field = codes.astype(np.int64) >> f & ((1 << e) - 1)
        return np.maximum(field, 1) - of

    middle = (powers(a, form[3]) + powers(b, form[4])).max(axis=1)
    field = np.clip(middle + bias + draw.integers(-30, 31, steps), 0, top - 1)
    bits = draw.integers(0, 1 << fraction, steps)
    kind = draw.integers(0, 12 if mode == "special" else 10, steps)
    field = np.where(kind == 1, 0, np.where(kind == 2, draw.integers(0, top, steps), field))
    field = np.where(kind >= 10, top, np.where(kind == 0, 0, field))
    if mode in ("tiny", "ties"):  # zero and subnormal sums
        field = np.where(kind < 9, 0, field)
    bits = np.where((kind == 0) | (kind == 10) | (mode == "tiny") & (kind < 6), 0, bits)
    codes = draw.integers(0, 2, steps) << (exponent + fraction) | field << fraction | bits
    if half:
        return codes.astype(np.uint16).view(np.float16).astype(np.float32)
    return codes.astype(np.uint32).view(np.float32)


def tensor(codes, type_name):
    """Codes as a tensor of their type."""
    return torch.from_numpy(codes.view(SIGNED[CODES[type_name]])).view(TORCH[type_name])


def published(form, a, b, start):
    """The sums by mmasim, as bits."""
    kind, name, _, type_a, type_b, _, out = form
    c = torch.from_numpy(start).to(TORCH[out])
    x, y = tensor(a, type_a), tensor(b, type_b)
    if kind == "mma as f16":
        step = model.MMA("Hopper", "m16n8k16.f32.f16.f16.f32")
        first = torch.arange(32) % 4 < 2
        x, y, zero = x.to(torch.float16), y.to(torch.float16), torch.zeros_like(c)
        sums = step.dpa(x[:, ~first], y[:, ~first], step.dpa(x[:, first], y[:, first], zero)) + c
        sums[sums.isnan()] = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)  # as a device adds
    else:
        sums = (model.MMA if kind == "mma" else model.WGMMA)("Hopper", name).dpa(x, y, c)
    codes = sums.view(torch.int16 if out == "f16" else torch.int32).numpy()
    return codes.view(np.uint16 if out == "f16" else np.uint32)


def predicted(program, form, a, b, start):
    """The sums by the predictor, as bits."""
    _, _, unit, type_a, type_b, K, out = form
    steps = np.concatenate([np.ascontiguousarray(x).view(np.uint8).reshape(len(x), -1)
                            for x in (a, b, start.reshape(-1, 1))], axis=1)
    command = [program, unit, type_a, type_b, str(K), out]
    done = subprocess.run(command, input=steps.tobytes(), stdout=subprocess.PIPE, check=False)
    sums = np.frombuffer(done.stdout, np.uint16 if out == "f16" else np.uint32) if done.returncode == 0 else []
    if len(sums) != len(start):
        print(f"mmasim_judge: {' '.join(command)}: status {done.returncode}, {len(sums)} sums of {len(start)}")
        sys.exit(2)
    return sums


def judge(program, form, count, draw):
    """Compares `count` steps of a form. Returns its line for the log."""
    line = {"instruction": form[0], "form": form[1], "unit": form[2], "steps": 0, "differ": 0, "zeros": 0, "subnormal": 0, "infinities": 0, "nan": 0}
    whole, top, least = (0x7FFF, 0x7C00, 0x400) if form[6] == "f16" else (0x7FFFFFFF, 0x7F800000, 0x800000)
    for number, mode in enumerate(MODES):
        steps = count // len(MODES) + (number < count % len(MODES))
        a, b = factors(draw, form[3], steps, form[5], mode), factors(draw, form[4], steps, form[5], mode)
        if mode == "cancel":  # the second factors are equal in each pair
            b[:, 1::2] = b[:, ::2]
        start = starts(draw, form, mode, a, b, steps)
        ours, theirs = predicted(program, form, a, b, start), published(form, a, b, start)
        size, other = ours & whole, ours != theirs
        line["steps"] += steps
        line["differ"] += int(other.sum())
        for word, seen in (("zeros", size == 0), ("subnormal", (size > 0) & (size < least)),
                           ("infinities", size == top), ("nan", size > top)):
            line[word] += int(seen.sum())
        for i in np.flatnonzero(other)[:3]:
            print(f"{form[1]}, {mode}: c {start[i:i+1].view(np.uint32)[0]:08x}: predicted {ours[i]:x}, mmasim "
                  f"{theirs[i]:x}:", " ".join(f"{x:x}*{y:x}" for x, y in zip(a[i], b[i])))
    return line


def main():
    parse = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parse.add_argument("program")
    parse.add_argument("--steps", type=int, default=100000)
    parse.add_argument("--seed", type=int, default=20261127)
    parse.add_argument("--jsonl")
    given = parse.parse_args()
    torch.set_num_threads(1)
    lines = []
    for number, form in enumerate(FORMS):
        line = judge(given.program, form, given.steps, np.random.default_rng([given.seed, number]))
        lines.append(line)
        print(f"{line['instruction']:<10} {line['form']:<32} {line['unit']:<13}", end=" ")
        print(f"{line['steps']} steps, {line['differ']} differ, {line['nan']} NaN,",
              f"{line['infinities']} infinities, {line['zeros']} zeros, {line['subnormal']} subnormal", flush=True)
    bad = sum(line["differ"] > 0 or line["nan"] == 0 or line["zeros"] == 0 for line in lines)
    bad += not any(line["infinities"] for line in lines) or not any(line["subnormal"] for line in lines)
    print(f"{len(lines)} forms, {sum(line['steps'] for line in lines)} steps, "
          f"{sum(line['differ'] for line in lines)} differ: {'no' if bad else 'yes'}")
    if given.jsonl:
        with open(given.jsonl, "w", encoding="utf-8") as log:
            head = {"what": "bench/mmasim_judge.py: the predictor of sums against mmasim", "seed": given.seed,
                    "gpu": "none", "steps_per_form": given.steps}
            for line in [head] + lines:
                log.write(json.dumps(line) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
