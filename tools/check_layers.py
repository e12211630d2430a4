"""Checks that a file of src/ includes only what its module may use.

    python tools/check_layers.py [ROOT]

The table is the architecture: each module, the modules it may include, and whether it may use
libtorch. Tests (*_test.cc) and benches (*_bench.cc) may include any module.
"""
import pathlib
import re
import sys

TORCH_FREE = "base recipe mesh plan events launch checkpoint data comm trace".split()
USES = {
    "base": "",
    "recipe": "base",
    "mesh": "base",
    "plan": "base recipe mesh",
    "events": "base",
    "launch": "base recipe",
    "checkpoint": "base mesh",
    "data": "base recipe",
    "comm": "base mesh",
    "trace": "base mesh events comm",
    "collective": "base mesh comm",
    "nn": "base recipe checkpoint",
    "optim": "base recipe checkpoint nn",
    "parallel": "base recipe mesh plan checkpoint comm collective nn optim",
    "train": "base recipe mesh plan events launch checkpoint data comm collective nn optim parallel",
    "cli": "base recipe mesh plan events launch checkpoint data comm trace collective nn optim parallel train",
}
# Of cli, the files of `tutti` itself must not reach libtorch, neither directly nor through a module.
WORKER_FILE = re.compile(r"^worker_")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
TORCH = re.compile(r"^(torch|ATen|c10)/")


def is_test(path):
    return path.stem.endswith(("_test", "_bench"))


def problems_of(path, module):
    free = module in TORCH_FREE or (module == "cli" and not WORKER_FILE.match(path.name))
    allowed = set(USES[module].split()) | {module}
    for bracket, name in INCLUDE.findall(path.read_text(encoding="utf-8")):
        if TORCH.match(name):
            if free:
                yield f"<{name}>: {module} is built without libtorch"
            continue
        target = name.split("/")[0]
        if bracket != '"' or "/" not in name or is_test(path):
            continue
        if target in USES and target not in allowed:
            yield f'"{name}": {module} may use only {", ".join(sorted(allowed))}'
        elif target in USES and free and target not in TORCH_FREE and target != module:
            yield f'"{name}": {target} needs libtorch and {path.name} must not'


def check(root):
    found = []
    for folder in sorted((root / "src").iterdir()):
        if folder.is_dir() and folder.name not in USES:
            found.append(f"{folder.relative_to(root)}: a module that the table in {__file__} lacks")
            continue
        for path in sorted(folder.glob("*")) if folder.is_dir() else []:
            if path.suffix in (".cc", ".h"):
                found += [f"{path.relative_to(root)}: {what}" for what in problems_of(path, folder.name)]
    return found


if __name__ == "__main__":
    default = pathlib.Path(__file__).resolve().parent.parent
    result = check(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default)
    for line in result:
        print("layers:", line, file=sys.stderr)
    sys.exit(bool(result))
