"""The check of the README's promises finds what it is to check."""

from __future__ import annotations

import pytest
from promises import PAGES, SAYS, blocks, says


@pytest.mark.parametrize("page", PAGES)
def test_blocks_are_found(page: str) -> None:
    assert blocks(page)


def test_commands_are_read_as_they_are_written() -> None:
    commands = [command for block in blocks("README.md") for command in block.commands()]
    assert "recollect audit init.safetensors trained.safetensors --out audit" in commands
    assert not any("#" in command or command.startswith("make") for command in commands)


@pytest.mark.parametrize(("page", "sentence"), [(page, sentence) for page, sentence, _ in SAYS])
def test_what_is_checked_is_still_said(page: str, sentence: str) -> None:
    assert says(page, sentence)
