#!/usr/bin/env python3
"""Checks the documentation as a whole: every page is in mkdocs.yml and in docs/README.md, begins with its purpose
and ends with links; every link leads to an existing file and heading; all versions agree; the scripts, goals
and options of the Containerfile exist (tests/scripts/ci_test.py checks the CI file)."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
problems = []


def check(good, problem):
    if not good:
        problems.append(problem)


def text_of(name):
    return (ROOT / name).read_text()


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(path):
    """Returns the anchors of the headings, as GitHub and mkdocs form them."""
    names = set()
    for heading in re.findall(r"^#+ +(.+)$", without_code(path.read_text()), re.MULTILINE):
        heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        names.add(re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-"))
    return names


def check_pages():
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    listed = re.findall(r": ([\w-]+\.md)$", text_of("mkdocs.yml"), re.MULTILINE)
    check(len(listed) == len(set(listed)), f"mkdocs.yml lists a page twice: {sorted(listed)}")
    check(set(listed) == pages, f"only in mkdocs.yml: {set(listed) - pages}; only in docs/: {pages - set(listed)}")
    linked = set(re.findall(r"\]\(([\w-]+\.md)", text_of("docs/README.md"))) | {"README.md"}
    check(linked == pages, f"docs/README.md omits {pages - linked}")


def check_address(where, address):
    """Checks the view and the fields of a link to a calculator: /memory?params=7000000000."""
    view, _, query = address.removeprefix("/").partition("?")
    path = ROOT / "web" / "src" / "views" / f"{view}.tsx"
    if not path.exists():
        problems.append(f"{where}: no such view")
        return
    fields = set(re.findall(r"^  (\w+): ", path.read_text() + text_of("web/src/parts/model.tsx"), re.MULTILINE))
    fields |= set(re.findall(r"(\w+): \"", text_of("web/src/parts/model.tsx")))
    for field in re.findall(r"(?:^|&)(\w+)=", query):
        check(field in fields, f"{where}: the view has no field {field}")


def check_links():
    count = 0
    documents = [*sorted((ROOT / "docs").glob("*.md")),
                 *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
    for document in documents:
        for target in re.findall(r"\]\(([^)\s]+)\)", without_code(document.read_text())):
            if "://" in target:
                continue
            count += 1
            name, _, anchor = target.partition("#")
            path = document.parent / name if name else document
            where = f"{document.relative_to(ROOT)} links to {target}"
            if not path.exists():
                problems.append(f"{where}: no such file")
            elif name == "calculators.md" and anchor.startswith("/"):
                check_address(where, anchor)
            elif anchor and path.suffix == ".md":
                check(anchor in anchors(path), f"{where}: no such heading")
    check(count > 100, f"only {count} links were found")
    return count


def check_shape(name, text):
    """Checks that a page begins with its purpose and ends with links."""
    paragraphs = [part.strip() for part in without_code("\n" + text).split("\n\n") if part.strip()]
    title, _, rest = paragraphs[0].partition("\n")
    first = rest or paragraphs[1]
    check(title.startswith("# ") and re.match(r"[\w`]", first),
          f"{name} begins with {first[:40]!r}; must begin with its title and a sentence on its purpose")
    last = text.rpartition("\n## ")[2]
    check(last.startswith("Next\n") and re.search(r"\]\(|`", last),
          f"{name} ends with {last[:40]!r}; must end with ## Next and links")


def check_shapes():
    for path in (ROOT / "docs").glob("*.md"):
        if path.name != "README.md":  # which has only links
            check_shape(f"docs/{path.name}", path.read_text())
    before = len(problems)
    check_shape("bare", "# Title\n\n## Heading\n\ntext\n")
    found = problems[before:]
    del problems[before:]
    check(len(found) == 2, f"a page without purpose and links must give two problems, but gives {found}")


def check_pictures():
    text = "".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    for path in [*(ROOT / "docs").glob("*.svg"), *(ROOT / "docs" / "pictures").iterdir()]:
        check(f"{path.name})" in text, f"no page shows {path.relative_to(ROOT)}")


def check_flags():
    """Checks that flags in sentences, outside of command lines, are in the sources."""
    sources = "".join(path.read_text(errors="replace") for path in (ROOT / "tessera").rglob("*")
                      if path.suffix in (".cpp", ".h"))
    known = set(re.findall(r'--[a-z][a-z0-9-]*|(?<=")[a-z][a-z0-9-]*(?=")', sources)) | {"--shm-size"}  # podman's
    count = 0
    for path in (ROOT / "docs").glob("*.md"):
        if path.name == "benchmarks.md":  # its scripts have other flags
            continue
        for flag in re.findall(r"`(--[a-z][a-z0-9-]*)", without_code(path.read_text())):
            count += 1
            check(known & {flag, flag.removeprefix("--"), flag.removeprefix("--no-")},
                  f"docs/{path.name} names {flag}, which is not in the sources")
    check(count > 300, f"only {count} flags were found")
    check("zero" in known and not known & {"zerro", "--zerro"}, "the search in the sources finds every flag or none")


def check_versions():
    version = re.search(r"^project\(tessera VERSION (\S+)", text_of("CMakeLists.txt"), re.MULTILINE)[1]
    check(f"\nversion: {version}\n" in text_of("CITATION.cff"), f"CITATION.cff does not have version {version}")
    newest = re.search(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", text_of("CHANGELOG.md"), re.MULTILINE)
    check(newest and newest[1] == version, f"CHANGELOG.md begins with {newest and newest[0]}")
    check(newest and f"\ndate-released: {newest[2]}\n" in text_of("CITATION.cff"), "CITATION.cff has another date")
    for found in re.findall(r"tessera(?:-planner)?[_-](\d+\.\d+\.\d+)", text_of("docs/install.md")):
        check(found == version, f"docs/install.md names version {found}")


def check_container():
    goals = set(re.findall(r"^([\w-]+):", text_of("Makefile"), re.MULTILINE))
    options = set(re.findall(r"(?:option\(|set\()(TESSERA_\w+)", text_of("CMakeLists.txt")))
    text = re.sub(r"^\s*#.*$", "", text_of("Containerfile"), flags=re.MULTILINE)
    for goal in re.findall(r"\bmake ([a-z]+)\b(?! +&& *scripts)", text):
        check(goal in goals, f"Containerfile: the Makefile has no goal {goal}")
    for script in re.findall(r"(?<![\w/])(scripts/[\w.]+)", text):
        path = ROOT / script
        check(path.exists() and path.stat().st_mode & 0o100, f"Containerfile: {script} is not an executable file")
    for option in re.findall(r"-D(TESSERA_\w+)=", text):
        check(option in options, f"Containerfile: CMakeLists.txt has no option {option}")
    stages = re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE)
    for used in re.findall(r"--from=(\S+)", text):
        check(used in stages, f"Containerfile: no stage {used}")


def main():
    check_pages()
    check_shapes()
    check_flags()
    check_pictures()
    links = check_links()
    check_versions()
    check_container()
    if problems:
        sys.exit("\n".join(problems))
    print(f"{links} links")


if __name__ == "__main__":
    main()
