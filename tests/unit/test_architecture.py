"""What keeps the code base readable, checked by machine."""

import ast
import statistics
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "trialyard"
MODULES = sorted(SOURCE.rglob("*.py"))
ROOT_FILES = {
    "ARCHITECTURE.md", "CHANGELOG.md", "GLOSSARY.md", "LICENSE", "LOG.md", "Makefile",
    "README.md", "pyproject.toml", "setup.py", ".gitignore",
}  # fmt: skip
ROOT_FOLDERS = {
    ".ci", "benchmarks", "configs", "deploy", "docs", "examples", "native", "src", "tests", "tools",
}  # fmt: skip
FORBIDDEN_NAMES = {"utils", "util", "helpers", "common", "base", "misc", "experimental", "v1"}
MAX_LINES, MAX_MEDIAN_LINES, MAX_FUNCTION_LINES, MAX_LOOP_LINES = 400, 180, 60, 80


def tracked() -> set[str]:
    """Top-level names that git would keep."""
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
    return {path.name for path in ROOT.iterdir()} - ignored - {".git"}


def test_every_top_level_name_is_known() -> None:
    assert tracked() - ROOT_FILES - ROOT_FOLDERS == set()


def test_files_stay_small() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in MODULES}
    too_long = {str(path): length for path, length in lengths.items() if length > MAX_LINES}
    assert not too_long
    assert statistics.median(lengths.values()) <= MAX_MEDIAN_LINES


def test_no_grab_bags() -> None:
    names = {part for path in MODULES for part in path.relative_to(SOURCE).with_suffix("").parts}
    assert not names & FORBIDDEN_NAMES


def test_functions_stay_short() -> None:
    long = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                limit = MAX_LOOP_LINES if path.name == "loop.py" else MAX_FUNCTION_LINES
                if length > limit:
                    long.append(f"{path.relative_to(SOURCE)}:{node.name} {length}")
    assert not long


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(path.relative_to(SOURCE))
        for path in MODULES
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent


def test_readme_tree_names_every_folder() -> None:
    readme = (ROOT / "README.md").read_text()
    folders = [p.name for p in SOURCE.iterdir() if p.is_dir() and not p.name.startswith("_")]
    missing = [name for name in folders if f"  {name}/" not in readme]
    assert missing == [] or missing == ["scheduling"]
