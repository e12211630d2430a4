"""Checks that the links of the Markdown files lead somewhere.

    python tools/check_docs.py [ROOT]
"""
import pathlib
import re
import sys

LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
SKIP = {".git", ".venv", "build", "runs", "corpus", "node_modules"}


def anchors(text):
    """The headings as a link names them: lower case, punctuation gone, blanks as dashes."""
    titles = re.findall(r"^#+ +(.*?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def check(root):
    found = []
    for path in sorted(root.rglob("*.md")):
        if SKIP & set(path.relative_to(root).parts):
            continue
        text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
        for link in LINK.findall(re.sub(r"`[^`\n]*`", "", text)):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (path.parent / name).resolve() if name else path
            if not target.exists():
                found.append(f"{path.relative_to(root)}: {link} is not there")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text()):
                found.append(f"{path.relative_to(root)}: {link}: no such heading")
    return found


if __name__ == "__main__":
    default = pathlib.Path(__file__).resolve().parent.parent
    result = check(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default)
    for line in result:
        print("docs:", line, file=sys.stderr)
    sys.exit(bool(result))
