"""What the files around the code say about it: versions, citation, checks, lock file."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

import attendre_core as at

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
packaging = pytest.importorskip("packaging.requirements")


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def yaml_of(name: str):
    return pytest.importorskip("yaml").safe_load(text(name))


def sessions() -> dict[str, ast.FunctionDef]:
    """Return the sessions of the noxfile by name, each with its function."""
    found = {}
    for function in ast.parse(text("noxfile.py")).body:
        for decorator in getattr(function, "decorator_list", ()):
            call = decorator.func if isinstance(decorator, ast.Call) else decorator
            if ast.unparse(call) == "nox.session":
                words = getattr(decorator, "keywords", ())
                names = [each.value.value for each in words if each.arg == "name"]
                found[(names or [function.name])[0]] = function
    return found


def test_one_version():
    citation = yaml_of("CITATION.cff")
    newest = re.search(r"^## \[(\d.*?)\]", text("CHANGELOG.md"), re.MULTILINE)
    assert newest is not None
    assert at.__version__ == citation["version"] == newest[1]


def test_the_citation_has_what_its_format_demands():
    """Of version 1.2.0 of the Citation File Format."""
    citation = yaml_of("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] in ("software", "dataset")
    assert citation["license"] == PROJECT["license"]
    assert citation["title"] == PROJECT["name"]
    for author in citation["authors"]:
        assert set(author) <= {"name", "family-names", "given-names"}
    for reference in citation["references"]:
        assert {"type", "title", "authors"} <= set(reference)
        for identifier in reference["identifiers"]:
            assert identifier["type"] in ("doi", "url", "swh", "other")
            assert "2401.04881" in identifier["value"]
        assert reference["url"] in PROJECT["urls"].values()


def test_the_workflow_calls_sessions_that_exist():
    workflow = yaml_of(".github/workflows/ci.yml")
    job = workflow["jobs"]["nox"]
    matrix = job["strategy"]["matrix"]
    called = [*matrix["session"], *(each["session"] for each in matrix["include"])]
    known = sessions()
    backends = re.findall(r'^    "([\w-]+)": "', text("noxfile.py"), re.MULTILINE)
    for name in called:
        base, _, argument = name.partition("(")
        if argument:
            assert argument.removesuffix(")") in backends, name
        base = re.sub(r"-3\.\d+$", "", base)
        assert base in known, name
    assert {"lint", "types", "tests", "docs", "wheel"} <= set(called)
    for backend in ("numpy", "array_api_strict", "torch", "jax"):
        assert f"conformance({backend})" in called
    (python,) = (
        ast.literal_eval(word.value)
        for decorator in known["matrix"].decorator_list
        for word in decorator.keywords
        if word.arg == "python"
    )
    assert {f"matrix-{version}" for version in python} <= set(called)
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert any(run.startswith("nox -s") for run in runs)
    assert workflow["permissions"] == {"contents": "read"}


def test_the_pythons_that_are_named_are_tested():
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    matrix = yaml_of(".github/workflows/ci.yml")["jobs"]["nox"]["strategy"]["matrix"]
    tested = {*matrix["python"], *(each["python"] for each in matrix["include"])}
    assert set(named) == tested
    assert PROJECT["requires-python"] == f">={min(named, key=lambda version: int(version[2:]))}"


def test_issue_templates_are_forms():
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    for form in forms:
        found = yaml_of(str(form.relative_to(ROOT)))
        if form.name == "config.yml":
            assert set(found) == {"blank_issues_enabled"}
            continue
        assert {"name", "description", "body"} <= set(found)
        for field in found["body"]:
            assert field["type"] in ("markdown", "textarea", "input", "dropdown", "checkboxes")
            assert field["attributes"]["label"]
        ids = [field["id"] for field in found["body"]]
        assert len(set(ids)) == len(ids)
    assert len(forms) >= 3


def test_every_session_is_in_the_table_for_contributors():
    shown = set(re.findall(r"nox -s \"?([\w-]+)", text("CONTRIBUTING.md")))
    # Those that compare with one other library are described where the library is.
    special = {"environments", "bench", "kvpress", "attention-sinks", "transformers-range"}
    assert set(sessions()) - special <= shown
    assert shown <= set(sessions())


def test_the_lock_file_fits_the_project():
    """Every pin is within what pyproject.toml allows, and says nothing of where it comes from."""
    lines = [line for line in text("requirements-dev.lock").splitlines() if line[:1] != "#"]
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9-]*==[\w.]+", line) for line in lines)
    assert lines == sorted(lines, key=lambda line: line.partition("==")[0])
    pins = dict(line.split("==") for line in lines)
    extras = PROJECT["optional-dependencies"]
    apart = {"sentence-transformers", "scikit-learn", "ray"}
    everything = [line for name in extras if name not in apart for line in extras[name]]
    for line in [*PROJECT["dependencies"], *everything]:
        wanted = packaging.Requirement(line)
        if wanted.name != "attendre-core":
            assert wanted.specifier.contains(pins[wanted.name]), line
    torch = re.search(r'^TORCH = "(torch==[\d.]+)"', text("noxfile.py"), re.MULTILINE)
    assert torch is not None
    assert torch[1] in lines


def test_security_names_tests_that_exist():
    for pattern in re.findall(r"`(tests/[\w/*.]+)`", text("SECURITY.md")):
        assert list(ROOT.glob(pattern)), pattern
