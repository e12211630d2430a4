"""Checks that every header compiles alone.

    python tools/check_headers.py [--torch] [ROOT]

Modules without libtorch, in seconds; with --torch all of them (a minute each dozen).
"""
import argparse
import concurrent.futures
import pathlib
import subprocess
import sys

from check_layers import TORCH_FREE, WORKER_FILE

FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow",
         "-Wno-pragma-once-outside-header", "-x", "c++-header"]
JOBS = 2


def headers(root, torch):
    for path in sorted((root / "src").glob("*/*.h")):
        module = path.parent.name
        free = module in TORCH_FREE or (module == "cli" and not WORKER_FILE.match(path.name))
        if free or torch:
            yield path


def torch_flags(root):
    for folder in root.glob(".venv/lib/python3*/site-packages/torch/include"):
        return ["-isystem", str(folder), "-isystem", str(folder / "torch/csrc/api/include"),
                "-DUSE_C10D_GLOO", "-DUSE_DISTRIBUTED"]
    return []


def compile_alone(path, flags):
    done = subprocess.run(["clang++-19", *FLAGS, *flags, str(path)], capture_output=True, text=True)
    return path, done.returncode, done.stderr


def check(root, torch=False):
    flags = ["-I", str(root / "src")] + (torch_flags(root) if torch else [])
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        results = list(pool.map(lambda path: compile_alone(path, flags), headers(root, torch)))
    return [f"{path.relative_to(root)} does not compile alone:\n{text}"
            for path, code, text in results if code != 0 or text]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("root", nargs="?", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent)
    arguments = parser.parse_args()
    result = check(arguments.root, arguments.torch)
    for line in result:
        print("headers:", line, file=sys.stderr)
    sys.exit(bool(result))


if __name__ == "__main__":
    main()
