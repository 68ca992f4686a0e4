"""Every finding has a stable code, which programs recognise it by and which the docs list."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import recollect

ROOT = Path(recollect.__file__).parent
DOCS = Path(__file__).parents[2] / "docs" / "audit.md"


def made() -> list[tuple[str, ast.Call]]:
    """Each place in the package that makes a finding."""
    return [
        (f"{path.name}:{node.lineno}", node)
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding"
    ]


def codes(call: ast.Call) -> list[str]:
    return [
        keyword.value.value
        for keyword in call.keywords
        if keyword.arg == "code"
        and isinstance(keyword.value, ast.Constant)
        and isinstance(keyword.value.value, str)
    ]


def test_every_finding_has_a_code_of_its_own_that_the_docs_list() -> None:
    assert len(made()) > 15
    without = [where for where, call in made() if len(codes(call)) != 1]
    assert without == []
    known = [codes(call)[0] for _, call in made()]
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", code) for code in known)
    assert len(set(known)) == len(known)
    text = DOCS.read_text()
    assert [code for code in known if f"`{code}`" not in text] == []
