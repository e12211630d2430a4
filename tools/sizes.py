"""Reports lines of code by module and the longest files.

    python tools/sizes.py [--check] [ROOT]

--check prints only the files longer than the style's limit of 500 lines.
"""
import argparse
import pathlib
import sys

FILE_LIMIT = 500
FOLDERS = ("src", "testing", "tests", "tools", "bench", "examples", "fuzz", "cmake",
           "python")
KINDS = (".cc", ".h", ".py", ".sh", ".cmake")


def files(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in KINDS and path.is_file() and "__pycache__" not in path.parts:
                yield path, path.read_text(encoding="utf-8").splitlines()


def check(root):
    return [f"{path.relative_to(root)}: {len(lines)} lines; {FILE_LIMIT} is the limit"
            for path, lines in files(root) if len(lines) > FILE_LIMIT]


def report(root):
    totals, longest = {}, []
    for path, lines in files(root):
        parts = path.relative_to(root).parts
        module = "/".join(parts[:2] if parts[0] in ("src", "tests") else parts[:1])
        test = path.stem.endswith(("_test", "_bench"))
        row = totals.setdefault(module, [0, 0, 0])
        row[0] += 1
        row[2 if test else 1] += len(lines)
        longest.append((len(lines), str(path.relative_to(root))))
    print(f"{'module':24}{'files':>6}{'lines':>8}{'tests':>8}")
    for module, (count, code, test) in sorted(totals.items()):
        print(f"{module:24}{count:6}{code:8}{test:8}")
    print(f"{'all':24}" + "".join(f"{sum(column):{width}}"
                                  for column, width in zip(zip(*totals.values()), (6, 8, 8))))
    print("\nlongest files")
    for count, name in sorted(longest, reverse=True)[:10]:
        print(f"{count:6}  {name}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("root", nargs="?", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent.parent)
    arguments = parser.parse_args()
    if not arguments.check:
        report(arguments.root)
        return
    found = check(arguments.root)
    for line in found:
        print("sizes:", line, file=sys.stderr)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
