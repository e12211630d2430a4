"""clang-tidy over the modules without libtorch, by the control preset's compile commands.

    python tools/tidy.py [--all] [FILE..]

A file that was clean is not looked at again until it, a header or .clang-tidy changes; --all looks
at every file.
"""
import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "control"
CLEAN = BUILD / "tidy"
JOBS = 2


def sources():
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        if path.is_relative_to(ROOT / "src") and not path.stem.endswith(("_test", "_bench")):
            yield path


def stamp(path):
    return CLEAN / "+".join(path.relative_to(ROOT).parts)


def changed(path, newest_header):
    mark = stamp(path)
    return not mark.exists() or mark.stat().st_mtime < max(newest_header, path.stat().st_mtime)


def tidy(path):
    done = subprocess.run(["clang-tidy-19", "--quiet", "-p", str(BUILD), str(path)],
                          capture_output=True, text=True)
    if done.returncode == 0:
        stamp(path).touch()
        return ""
    return done.stdout or done.stderr


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    CLEAN.mkdir(parents=True, exist_ok=True)
    newest = max(p.stat().st_mtime for p in [*ROOT.glob("src/*/*.h"), ROOT / ".clang-tidy"])
    files = [p.resolve() for p in arguments.files] or [
        p for p in sorted(set(sources())) if arguments.all or changed(p, newest)]
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        found = 0
        for text in pool.map(tidy, files):
            if text:
                found += 1
                print(text, file=sys.stderr, flush=True)
    print(f"tidy: {len(files)} files looked at, {found} with findings", file=sys.stderr)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
