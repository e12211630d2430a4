"""Random small models in random layouts, one after another: each must be in parity or be refused.

    .venv/bin/python fuzz/layouts.py [SECONDS [SEED]]        (./dev fuzz layouts [SECONDS])

Draws a recipe (family, sizes that divide by nothing, a mixture or none, degrees, kinds, rules, optimizer,
recomputation), runs `tutti parity` on it and prints every command that ends in another way than "in parity" (0) or a
refusal (2) with a clear message. Exit code 1 if there was one.
"""
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TUTTI = pathlib.Path(os.environ.get("TUTTI_BIN", ROOT / "build" / "release" / "bin")) / "tutti"
LEAKS = ("torch", "c10", "[json", "Assertion", "terminate")  # words that no refusal may have
SWITCH = ("on", "off")
# tensor, context, pipeline
DEGREES = [(1, 1, 1), (2, 1, 1), (3, 1, 1), (1, 2, 1), (1, 3, 1), (1, 1, 2), (1, 1, 3), (2, 2, 1), (2, 1, 2), (1, 2, 2)]


def draw_mixture(draw):
    return {"experts": draw.randint(2, 5), "experts_per_token": draw.choice((1, 2)), "expert_mlp": draw.choice((3, 8)),
            "aux_loss": draw.choice((0, 0.1)), "z_loss": draw.choice((0, 0.01)),
            "router": draw.choice(("softmax", "sigmoid")), "shared_experts": draw.choice((0, 1)),
            "aux_scope": draw.choice(("micro", "global")), "capacity_factor": draw.choice((0, 0, 1.1)),
            "balance_bias_rate": draw.choice((0, 0.01)), "dense_layers": draw.choice((0, 1))}


def draw_model(draw, kind):
    heads = draw.choice((1, 2, 3, 4, 6))
    model = {"family": "gpt2" if kind == "gpt2" else "llama", "layers": draw.randint(2, 5), "heads": heads,
             "mlp": draw.choice((5, 16)), "tied": draw.choice(SWITCH), "dropout": draw.choice((0, 0.1))}
    if kind == "gpt2":
        model["embed"] = heads * draw.choice((2, 4, 6))
    else:
        model.update(embed=24, head_dim=draw.choice((2, 4, 6)), qk_norm=draw.choice(SWITCH), qkv_bias=draw.choice(SWITCH),
                     kv_heads=draw.choice([k for k in range(1, heads + 1) if heads % k == 0]))
    return model


def draw_layout(draw, mixture):
    tensor, context, pipeline = draw.choice(DEGREES)
    data = draw.choice((1, 2, 3)) if tensor * context * pipeline < 4 else 1
    layout = {"engine": "mesh", "tensor": tensor, "context": context, "pipeline": pipeline,
              "workers": tensor * context * pipeline * data, "bucket_bytes": draw.choice((2048, 4194304))}
    if data > 1:
        layout["zero"] = draw.choice((0, 1, 2, 3))
    if tensor > 1:
        layout.update(sequence_parallel=draw.choice(SWITCH), tensor_chunks=draw.choice((1, 2, 3)),
                      rules=draw.choice(("", "vocab=none", "mlp=none")))
    if context > 1:
        layout["context_kind"] = draw.choice(("ring", "gather", "ulysses"))
    if pipeline > 1:
        kind = draw.choice(("gpipe", "1f1b", "zb-h1", "interleaved", "zb-v", "dualpipe-v"))
        layout.update(pipeline_schedule=kind, pipeline_chunks=2 if kind in ("interleaved", "zb-v", "dualpipe-v") else 1)
    if mixture:
        layout.update({name: ranks for name in ("expert", "expert_tensor") if (ranks := draw.choice((1, 1, 2, 3))) > 1})
    return layout, data


def draw_settings(draw):
    kind = draw.choice(("gpt2", "llama", "mixture"))
    layout, data = draw_layout(draw, kind == "mixture")
    micro = draw.choice((1, 2))
    sections = {"model": draw_model(draw, kind), "parallel": layout,
                "model.moe": draw_mixture(draw) if kind == "mixture" else {},
                "data": {"sequence": draw.choice((5, 16, 17)), "document_mask": draw.choice(SWITCH)},
                "batch": {"micro": micro, "global": micro * data * draw.choice((1, 2, 4))},
                "optimizer": {"name": draw.choice(("adamw", "sgd", "muon")), "state": draw.choice(("fp32", "fp32", "bf16"))}}
    settings = [f"{section}.{name}={value}" for section, fields in sections.items() for name, value in fields.items()]
    return [*settings, "recompute=" + draw.choice(("none", "selective", "full"))]


def write_recipe(folder):
    words = random.Random(1).choices("the cat sat on a mat and so it goes".split(), k=3000)
    (folder / "text.txt").write_text(" ".join(words))
    (folder / "tiny.yaml").write_text(
        "name: tiny\nduration: 4 steps\ndata: {train: [text.txt], validation_fraction: 0.2}\n")


def run(folder, settings):
    command = [str(TUTTI), "parity", "tiny.yaml", *(word for one in settings for word in ("--set", one))]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return "ran for over 300 s", ""
    text = done.stdout + done.stderr
    if done.returncode == 2 and not any(word in text for word in LEAKS):
        return "refused", text
    return "in parity" if done.returncode == 0 else f"ended with {done.returncode}", text


def main():
    seconds, seed = float(sys.argv[1]) if len(sys.argv) > 1 else 60, int(sys.argv[2]) if len(sys.argv) > 2 else 1
    draw, end, counts = random.Random(seed), time.monotonic() + seconds, {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_recipe(folder)
        while time.monotonic() < end:
            settings = draw_settings(draw)
            ending, text = run(folder, settings)
            counts[ending] = counts.get(ending, 0) + 1
            if ending not in ("refused", "in parity"):
                print(f"{ending}: {' '.join(settings)}\n{text[-3000:]}", flush=True)
    print(", ".join(f"{count} {ending}" for ending, count in sorted(counts.items())))
    sys.exit(bool(set(counts) - {"refused", "in parity"}))


if __name__ == "__main__":
    main()
